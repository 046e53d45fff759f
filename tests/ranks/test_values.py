"""What has values in a plan, and what has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from torchscan import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Routed(nn.Module):
    """Goes on by what its router has picked, which nobody knows."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        picked = self.router(x).argmax(-1)
        for expert, is_used in zip(self.experts, self.used(picked, x), strict=False):
            x = expert(x) if is_used else x
        return x

    def used(self, picked: Tensor, x: Tensor) -> list[Any]:
        if self.way == "counted":
            return list(
                torch.zeros(4, dtype=torch.long)
                .scatter_add_(0, picked, torch.ones(8, dtype=torch.long))
                .tolist()
            )
        if self.way == "marked":
            marks = torch.zeros(4, dtype=torch.bool)
            marks[picked] = True
            return [bool(each) for each in marks]
        marks = torch.zeros(8, dtype=torch.bool)
        marks[:] = x.sum(-1) > 0
        return [bool(marks.any())]


class Known(nn.Module):
    """Goes on by numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(torch.full((2, 2), True).tril().sum())):
            x = self.layer(x)
        return x.masked_fill(torch.zeros(8, 64, dtype=torch.bool).copy_(x > 0), 0.0)


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("way", ["counted", "marked", "any"])
def test_what_nobody_knows_is_not_taken_for_zero(way: str) -> None:
    with pytest.raises(InputError, match="a plan has none"):
        torchscan.parallel.plan(
            lambda: Routed(way), (64,), mesh={"dp": 4}, apply=shard, batch_size=8
        )


def test_masks_and_integers_of_its_own_have_values() -> None:
    assert (
        torchscan.parallel.plan(Known, (64,), mesh={"dp": 4}, apply=shard, batch_size=8).macs
        == 3 * 8 * 64 * 64
    )


def test_a_part_that_apply_returns_is_not_the_model() -> None:
    from torch.distributed.fsdp import fully_shard

    def first(model: Any, mesh: Any) -> nn.Module:
        return fully_shard(model[0], mesh=mesh)

    with pytest.raises(InputError, match=r"2 of 4 parameters .* are not sharded"):
        torchscan.parallel.plan(
            lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
            (8,),
            mesh={"dp": 4},
            apply=first,
            training=True,
        )


def test_frozen_parameters_may_be_left_whole() -> None:
    from torch.distributed.fsdp import fully_shard

    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model[1].requires_grad_(False)
        return model

    def trained(model: Any, mesh: Any) -> None:
        fully_shard(model, mesh=mesh, ignored_params=set(model[1].parameters()))

    plan = torchscan.parallel.plan(build, (8,), mesh={"dp": 4}, apply=trained, training=True)
    assert plan.local_params == 2 * 8 + 2 + 8 * 8 + 8


def test_a_model_may_be_built_on_meta() -> None:
    plan = torchscan.parallel.plan(
        lambda: nn.Linear(8, 8, device="meta"), (8,), mesh={"dp": 4}, apply=shard
    )
    assert (plan.params, plan.local_params) == (72, 18)
