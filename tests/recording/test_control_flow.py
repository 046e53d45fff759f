"""Conditions of torch are recorded by branch, with the modules in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import crawl_module, estimate_memory
from torchscan.torch_versions import control_flow

pytestmark = pytest.mark.skipif(
    not control_flow(), reason="this version of torch compiles the functions in another way"
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


class Chosen(Branches):
    """A lookup of integers, of which a condition chooses the branch."""

    def __init__(self, condition: Callable[[Tensor], Any]) -> None:
        super().__init__(condition)
        self.table = nn.Embedding(4, 8)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the result of a branch on the rows that were looked up."""
        chosen: Tensor = torch.cond(
            self._condition(ids), self.small.forward, self.large.forward, (self.table(ids),)
        )
        return chosen


@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize("limit", [-1, 1])
def test_a_condition_on_generated_integers_has_the_branch_with_the_most_flops(
    execute: Any, limit: int
) -> None:
    """Generated integers are zero, which says nothing about those of a training set."""
    model = Chosen(lambda ids: ids.sum() + 0 > limit)
    info = crawl_module(model, (5,), torch.int64, execute=execute)
    assert info["overall"]["macs"] == 5 * 256
    assert info["provenance"]["assumptions"] == [
        {"code": "costliest-branch", "values": {"branch": "false"}}
    ]


def test_a_condition_on_given_integers_has_the_branch_that_they_take() -> None:
    model = Chosen(lambda ids: ids.sum() + 0 > 1)
    for ids, macs in ((torch.ones(1, 5, dtype=torch.int64), 64), (torch.zeros(1, 5).long(), 256)):
        info = crawl_module(model, args=(ids,), execute="abstract")
        assert info["overall"]["macs"] == 5 * macs
        assert info["provenance"]["assumptions"] == []


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
