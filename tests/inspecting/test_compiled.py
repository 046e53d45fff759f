"""Compiled models: seen from outside, and compiled as they are without anybody watching."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from torchscan.inspecting.run import RunFacts
from torchscan.inspection import inspect

dynamo: Any = pytest.importorskip("torch._dynamo")
pytestmark = pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = (
            nn.Linear(4, 8),
            nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
            nn.Linear(8, 1),
        )

    def forward(self, x: Tensor) -> Any:
        return self.last(self.block(self.first(x)))


def whole() -> nn.Module:
    return torch.compile(Net(), backend="aot_eager")  # type: ignore[return-value]


def in_place() -> nn.Module:
    model = Net()
    model.compile(backend="aot_eager")
    return model


def in_part() -> nn.Module:
    model = Net()
    model.block = torch.compile(model.block, backend="aot_eager")  # type: ignore[assignment]
    return model


def counters() -> tuple[dict[str, int], dict[str, int], int]:
    found = dynamo.utils.counters
    return dict(found["frames"]), dict(found["graph_break"]), found["stats"]["unique_graphs"]


def run(
    make: Callable[[], nn.Module], *, is_watched: bool, compiles_inside: bool
) -> tuple[Any, Tensor, RunFacts | None]:
    dynamo.reset()
    dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model, x = make(), torch.rand(2, 4)
    if not compiles_inside:
        model(x).sum().backward()
    facts = None
    if is_watched:
        with inspect(model, warm_up=0) as found:
            for _ in range(2):
                model(x).sum().backward()
        facts = found.facts
    else:
        for _ in range(2):
            model(x).sum().backward()
    result = model(x)
    return counters(), result.detach(), facts


@pytest.mark.slow
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.7",
    reason="torch 2.6 compiles again where global hooks come or go",
)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch reads it of what a compiled part is given
@pytest.mark.parametrize("compiles_inside", [False, True])
@pytest.mark.parametrize("make", [whole, in_place, in_part])
def test_what_is_compiled_is_the_same(make: Callable[[], nn.Module], compiles_inside: bool) -> None:
    """Frames, breaks, graphs and results: while it is watched, and afterwards."""
    plain, result, _ = run(make, is_watched=False, compiles_inside=compiles_inside)
    watched, same, facts = run(make, is_watched=True, compiles_inside=compiles_inside)
    assert plain == watched
    assert plain[0]["ok"] >= 1
    assert not plain[1]
    torch.testing.assert_close(result, same, rtol=0, atol=0)
    assert facts is not None
    assert facts.steps == 2
    assert "block.0" not in {call.path for call in facts.calls}


@pytest.mark.slow
def test_what_was_compiled_and_why_again() -> None:
    dynamo.reset()
    model = torch.compile(Net(), backend="eager", dynamic=False)
    with inspect(model) as found:  # type: ignore[arg-type]
        for rows in (2, 3):
            model(torch.rand(rows, 4))
    compilation = found.facts.compilation
    assert compilation is not None
    (frame,) = compilation.frames
    assert (frame.place.split(",")[0], frame.path, frame.times) == ("Net.forward", "_orig_mod", 2)
    assert all("size mismatch" in reason for reason in frame.reasons)  # torch 2.6 gives none
    assert compilation.recompiled == 1


def test_breaks_of_graphs_are_counted() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            dynamo.graph_break()
            return x + 1

    dynamo.reset()
    model = torch.compile(Broken(), backend="eager")
    with inspect(model) as found:  # type: ignore[arg-type]
        model(torch.rand(2))
    assert found.facts.compilation is not None
    assert [times for _, times in found.facts.compilation.breaks] == [1]


def test_where_nothing_is_compiled_nothing_is_said() -> None:
    model = nn.Linear(4, 1)
    with inspect(model) as found:
        model(torch.rand(2, 4))
    assert found.facts.compilation is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_backward_passes_of_compiled_autograd_run_as_without_the_inspection() -> None:
    compiled_autograd: Any = pytest.importorskip("torch._dynamo.compiled_autograd")

    def train(*, is_inspected: bool) -> list[Tensor]:
        dynamo.reset()
        torch.manual_seed(0)
        model, x = Net(), torch.rand(2, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with inspect(model) if is_inspected else contextlib.nullcontext():
            for _ in range(3):
                loss = model(x).sum()
                with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return [each.detach().clone() for each in model.parameters()]

    pairs = zip(train(is_inspected=True), train(is_inspected=False), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
