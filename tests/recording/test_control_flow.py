"""torch's control flow is recorded by branch and by iteration, with the modules in it."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import crawl_module, estimate_memory, record
from torchscan.errors import NeedsValuesError
from torchscan.torch_versions import control_flow

pytestmark = pytest.mark.skipif(
    not control_flow(), reason="this version of torch compiles the functions in another way"
)


def _verb(module: str, name: str) -> Callable[..., Any]:
    verb: Callable[..., Any] = getattr(
        importlib.import_module(f"torch._higher_order_ops.{module}"), name
    )
    return verb


while_loop, scan, mapped = (
    _verb("while_loop", "while_loop"),
    _verb("scan", "scan"),
    _verb("map", "map"),
)


class Branches(nn.Module):
    """A layer of 64 weights, or two of 256 together: a condition decides."""

    def __init__(self, condition: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.small = nn.Linear(8, 8)
        self.large = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        self._condition = condition

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of a branch."""
        chosen: Tensor = torch.cond(
            self._condition(x), lambda x: self.small(x), lambda x: self.large(x), (x,)
        )
        return chosen


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_condition_on_data_has_the_branch_with_the_most_flops(device: str) -> None:
    """4 rows of 8: 4 x (8 x 16 + 16 x 8) products."""
    with torch.device(device):
        model = Branches(lambda x: x.sum() > 0)
    info = crawl_module(model, (4, 8))
    assert info["overall"]["macs"] == 4 * 256
    assert info["overall"]["grad_params"] == sum(each.numel() for each in model.parameters())
    assert info["provenance"]["assumptions"] == [
        {"code": "costliest-branch", "values": {"branch": "false"}}
    ]
    assert "small" not in {layer["path"] for layer in info["layers"]}


def test_a_condition_that_is_known_has_its_branch() -> None:
    model = Branches(lambda x: torch.tensor(x.shape[0] > 3))
    assert crawl_module(model, args=(torch.rand(4, 8),))["overall"]["macs"] == 4 * 64
    assert crawl_module(model, args=(torch.rand(3, 8),))["overall"]["macs"] == 3 * 256


def test_a_condition_inside_of_a_branch_counts_one_branch() -> None:
    """The inner condition takes 10 of 10 and 9 rows of weights, and the outer one 12 of 12 and 10."""
    rows = {size: nn.Parameter(torch.zeros(8, size, device="meta")) for size in (9, 10, 12)}

    def inner(x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(
            x.sum() > 0, lambda x: (x @ rows[10]).sum(), lambda x: (x @ rows[9]).sum(), (x,)
        )
        return chosen

    model = Calls(
        lambda _, x: torch.cond(x.sum() > 1, inner, lambda x: (x @ rows[12]).sum(), (x,)),
        weight=rows[12],
    )
    assert crawl_module(model, (4, 8))["overall"]["macs"] == 4 * 8 * 12


def test_branches_that_change_a_tensor_count_both() -> None:
    """A running mean that both branches update is read by the one that is left out, too."""
    with torch.device("meta"):
        model = Branches(lambda x: x.sum() > 0)
        norm = nn.BatchNorm1d(8)
    model.add_module("norm", norm)
    model.small.register_forward_hook(lambda _, __, out: norm(out))
    model.large.register_forward_hook(lambda _, __, out: norm(out))
    info = crawl_module(model, (8,), batch_size=4, mode="train")
    assert info["overall"]["macs"] == 4 * (64 + 256)
    assert [note["code"] for note in info["provenance"]["assumptions"]] == ["both-branches"]


def test_memory_of_a_step_is_that_of_the_branch_alone() -> None:
    """Calls of the branch that is left out hold no memory; its gradients, zeros, do not count."""
    with torch.device("meta"):
        model = Branches(lambda x: x.sum() > 0)
        alone = Branches(lambda _: False)
    options: Any = {"training": True, "optimizer": "SGD", "loss": torch.sum}
    estimate = estimate_memory(model, (4, 8), **options).to_dict()
    expected = estimate_memory(alone, (4, 8), **options).to_dict()
    condition = 4 + 1  # the sum, and whether it is positive
    for phase, peak in expected["peak_by_phase"].items():
        assert peak <= estimate["peak_by_phase"][phase] <= peak + condition
    assert estimate["by_kind"]["gradients"] == expected["by_kind"]["gradients"]


def test_a_loop_runs_as_often_as_its_counter_says() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            steps = torch.zeros((), dtype=torch.int64)
            return while_loop(
                lambda steps, _: steps < 5, lambda steps, x: (steps + 1, self.layer(x)), (steps, x)
            )[1]

    info = crawl_module(Loop(), (4, 8))
    assert [layer["macs"] for layer in info["layers"] if layer["path"]] == [4 * 64] * 5
    assert record(Loop(), (4, 8), training=True, loss=torch.sum).provenance.execution == "abstract"


def test_a_loop_that_data_ends_is_refused_in_one_line() -> None:
    with torch.device("meta"):
        model = Branches(lambda x: x.sum() < 5)
        model.forward = lambda x: while_loop(model._condition, lambda x: (model.small(x),), (x,))  # type: ignore[method-assign]
    with pytest.raises(NeedsValuesError, match="needs values that depend on the data"):
        record(model, (4, 8))


def _scanned(model: Calls, x: Tensor) -> Any:
    def combine(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        both = model.get_submodule("layer")(carried) + row
        return both, both.clone()

    return scan(combine, torch.zeros(8), x)[1]


@pytest.mark.parametrize(
    "function",
    [_scanned, lambda model, x: mapped(lambda row: model.get_submodule("layer")(row), x)],
    ids=["scan", "map"],
)
def test_a_loop_over_rows_runs_for_each_row(function: Callable[..., Any]) -> None:
    """On data, the result is that of torch."""
    results: list[Tensor] = []
    keeps_results = False

    def forward(model: Calls, x: Tensor) -> Any:
        result = function(model, x)
        if keeps_results:
            results.append(result.detach())
        return result

    model = Calls(forward)
    model.add_module("layer", nn.Linear(8, 8))
    x = torch.rand(4, 8)
    operators = Counter(op.signature.operator for op in record(model, args=(x,)).ops)
    assert (operators["aten.linear"], operators["aten.select"], operators["aten.stack"]) == (
        4,
        4,
        1,
    )

    keeps_results = True
    record(model, args=(x,), execute="real")
    with torch.no_grad():
        model(x)
    recorded, own = results
    torch.testing.assert_close(recorded, own)
