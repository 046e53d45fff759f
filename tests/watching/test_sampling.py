"""Samples of tensors: how they are spread, and that they are values of the tensor."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from torchscan.watching.rows import Rows


def sample(tensor: Tensor, width: int = 64) -> Tensor | None:
    rows = Rows(width, torch.device("cpu"))
    if rows.add(tensor) is None:
        return None
    places, values = rows.join()
    return values[len(places) :]


@pytest.mark.parametrize(
    "shape", [(8, 64, 16, 16), (128, 256), (7, 13, 5), (100_000,), (2, 3, 224, 224)]
)
def test_no_channel_is_left_out(shape: tuple[int, ...]) -> None:
    """Places at equal distances would be in step with a dimension, and see one place of it, or a few."""
    for dim, size in enumerate(shape):
        places = (
            torch.arange(size)
            .view([-1 if each == dim else 1 for each in range(len(shape))])
            .expand(shape)
            .contiguous()
        )
        found = sample(places.float())
        assert found is not None
        assert len(found.unique()) > min(size, 64) // 3, dim


ODD = {
    "channels last": torch.randn(4, 8, 6, 6).contiguous(memory_format=torch.channels_last),
    "transposed": torch.randn(40, 50).t(),
    "every other column": torch.randn(40, 50)[:, ::2],
    "expanded": torch.randn(40, 1).expand(40, 50),
    "part of another": torch.randn(10, 40, 50)[3],
    "integers": torch.randint(0, 9, (40, 50)),
    "half": torch.randn(40, 50).half(),
    "double": torch.randn(40, 50).double(),
    "bool": torch.rand(40, 50) > 0.5,
    "small": torch.randn(3, 4),
    "a number": torch.tensor(2.0),
    "asked for a gradient": torch.randn(40, 50, requires_grad=True),
}


@pytest.mark.parametrize("name", ODD)
def test_samples_are_values_of_the_tensor(name: str) -> None:
    tensor = ODD[name]
    found = sample(tensor)
    assert found is not None
    assert len(found) == min(64, tensor.numel())
    assert torch.isin(found, tensor.detach().float()).all()


def test_of_complex_numbers_the_sizes() -> None:
    assert sample(torch.tensor([3 + 4j, 0j, -2j])).tolist() == [5, 0, 2]  # type: ignore[union-attr]


class _Wrapper(Tensor):
    """As quantized weights are: it looks like a tensor and has no memory of its own. Reading that ends the process."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> _Wrapper:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


def test_what_only_looks_like_a_tensor_is_left_alone() -> None:
    assert sample(_Wrapper(torch.ones(100))) is None


def test_nested_tensors() -> None:
    for layout in (torch.strided, torch.jagged):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(4)], layout=layout)
        assert sample(nested) in (None, pytest.approx([1.0] * 7)), layout


def test_what_has_no_values_has_no_sample() -> None:
    assert sample(torch.empty(0)) is None
    assert sample(torch.empty(4, device="meta")) is None


def test_extremes_of_all_values_are_computed_for_rows_in_turn() -> None:
    rows = Rows(16, torch.device("cpu"))
    rows.turn, rows.period = 1, 2
    values = torch.zeros(100_000)
    values[77_777], values[3] = 9.0, -4.0
    for _ in range(3):
        rows.add(values)
    places, values = rows.join()
    assert [divmod(place, 5) for place in places] == [(1, 0), (1, 1)], "minimum, maximum of row 1"
    assert values[:2].tolist() == [-4.0, 9.0]
