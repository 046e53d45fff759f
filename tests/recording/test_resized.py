"""Tensors that operators resize: the model sees the shape that torch gives them, and afterwards everything is as before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import crawl_module, record


class Resizing(nn.Module):
    """4 features to 3 (12 MACs a sample), if a tensor that was resized has the shape that is waited for."""

    def __init__(
        self, resize: Callable[[Resizing, Tensor], Tensor], shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, bias=False)
        self.empty = nn.Buffer(torch.empty(0))
        self.filled = nn.Buffer(torch.zeros(7))
        self.indices = nn.Buffer(torch.zeros(0, dtype=torch.long))
        self.resize = resize
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        resized = self.resize(self, x)
        return self.layer(x) if resized.shape == self.shape else x


RESIZING: dict[str, tuple[Callable[[Resizing, Tensor], Any], tuple[int, ...]]] = {
    "mul": (lambda model, x: torch.mul(x, 2, out=model.empty), (5, 4)),
    "add": (lambda model, x: torch.add(x, x, out=model.filled), (5, 4)),
    "matmul": (lambda model, x: torch.matmul(x, x.T, out=model.filled), (5, 5)),
    "cat": (lambda model, x: torch.cat([x, x], out=model.empty), (10, 4)),
    "stack": (lambda model, x: torch.stack([x, x], out=model.filled), (2, 5, 4)),
    "sum": (lambda model, x: torch.sum(x, dim=1, out=model.empty), (5,)),
    "arange": (lambda model, _: torch.arange(6, out=model.indices), (6,)),
    "resize_": (lambda model, _: model.filled.resize_(9, 2), (9, 2)),
    "resize_as_": (lambda model, x: model.empty.resize_as_(x), (5, 4)),
    "set_": (lambda model, x: model.filled.set_(x), (5, 4)),  # type: ignore[call-overload] # its stub knows storages only
}


def resized(name: str) -> Resizing:
    """The buffer is looked at, not what the operator returns."""
    resize, shape = RESIZING[name]

    def resize_and_look(model: Resizing, x: Tensor) -> Tensor:
        before = {id(each): tuple(each.shape) for each in model.buffers()}
        resize(model, x)
        return next(each for each in model.buffers() if tuple(each.shape) != before[id(each)])

    return Resizing(resize_and_look, shape)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", RESIZING)
@pytest.mark.parametrize("how", ["abstract", "real", "meta"])
def test_a_buffer_has_the_shape_that_an_operator_gave_it_until_the_pass_is_over(
    name: str, how: Any
) -> None:
    model = resized(name).to("meta" if how == "meta" else "cpu")
    before = [(each, tuple(each.shape), each.data_ptr(), each._version) for each in model.buffers()]
    trace = record(model, (4,), batch_size=5, execute="auto" if how == "meta" else how)
    assert trace.ops[-1].signature.op is torch.ops.aten.linear.default
    assert trace.ops[-1].signature.inputs[0].shape == (5, 4)
    assert before == [
        (each, tuple(each.shape), each.data_ptr(), each._version) for each in model.buffers()
    ]


@pytest.mark.parametrize("how", ["abstract", "real"])
def test_both_results_of_an_operator_may_be_resized(how: Any) -> None:
    def largest(model: Resizing, x: Tensor) -> Tensor:
        torch.topk(x, 2, out=(model.empty, model.indices))
        assert model.empty.shape == (5, 2)
        return model.indices

    info = crawl_module(Resizing(largest, (5, 2)), (4,), batch_size=5, execute=how)
    assert info["overall"]["macs"] == 5 * 12


@pytest.mark.parametrize("how", ["abstract", "real"])
def test_a_constant_that_is_written_to_grows(how: Any) -> None:
    def double(_: Resizing, x: Tensor) -> Tensor:
        y = torch.zeros(7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.mul(x, 2, out=y)
        return y

    info = crawl_module(Resizing(double, (5, 4)), (4,), batch_size=5, execute=how)
    assert info["overall"]["macs"] == 5 * 12


@pytest.mark.parametrize("how", ["abstract", "real"])
def test_an_argument_of_the_users_that_is_resized_stays_as_it_is(how: Any) -> None:
    x = torch.ones(5, 4)
    info = crawl_module(Resizing(lambda _, x: x.resize_(3, 4), (3, 4)), args=(x,), execute=how)
    assert info["overall"]["macs"] == 3 * 12
    assert torch.equal(x, torch.ones(5, 4))


@pytest.mark.parametrize("how", ["abstract", "real"])
def test_torch_warns_of_what_it_will_not_resize_for_ever(how: Any) -> None:
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        record(resized("add"), (4,), batch_size=5, execute=how)


@pytest.mark.parametrize("how", ["abstract", "real"])
def test_what_has_grown_takes_the_memory_that_it_needs(how: Any) -> None:
    """5 · 4 numbers of 4 bytes in a buffer that was empty."""
    trace = record(resized("mul"), (4,), batch_size=5, execute=how)
    assert [storage.size for storage in trace.storages if storage.name == "empty"] == [5 * 4 * 4]


@pytest.mark.parametrize("how", ["abstract", "real"])
def test_memory_that_is_shared_is_not_written_to(how: Any) -> None:
    def count_up(model: Resizing, _: Tensor) -> Tensor:
        model.empty.set_(model.filled).add_(1)  # type: ignore[call-overload]
        torch.empty(0, dtype=torch.long).set_(model.indices.resize_(2)).add_(1)  # type: ignore[call-overload]
        return model.empty

    model = Resizing(count_up, (7,))
    assert crawl_module(model, (4,), batch_size=5, execute=how)["overall"]["macs"] == 5 * 12
    assert torch.equal(model.filled, torch.zeros(7))
    assert model.empty.shape == model.indices.shape == (0,)


KEPT_ELSEWHERE = torch.empty(0)
FILLED_ELSEWHERE = torch.full((2, 2), 5.0)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_tensors_that_are_no_part_of_the_model_have_their_shape_and_memory_back(
    execute: Any,
) -> None:
    model = nn.Linear(4, 3)
    model.weight.grad = torch.ones(3, 4)

    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Tensor) -> Tensor:
            FILLED_ELSEWHERE.resize_(3, 3)
            assert self.layer.weight.grad is not None
            self.layer.weight.grad.resize_(7)
            torch.mul(x, 2, out=KEPT_ELSEWHERE)
            torch.cat([x, x], out=KEPT_ELSEWHERE)
            return self.layer(KEPT_ELSEWHERE)

    memory = FILLED_ELSEWHERE.data_ptr()
    info = crawl_module(Elsewhere(), (4,), batch_size=5, execute=execute)
    assert info["overall"]["macs"] == 10 * 12
    assert KEPT_ELSEWHERE.shape == (0,)
    assert FILLED_ELSEWHERE.tolist() == [[5, 5], [5, 5]]
    assert FILLED_ELSEWHERE.data_ptr() == memory
    assert model.weight.grad.shape == (3, 4)
