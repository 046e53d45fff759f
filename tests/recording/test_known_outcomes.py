"""Passes that share outcomes of operators, against passes that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.versions import before
from torchscan.parallel import plan
from torchscan.recording.bookkeeping.known_outcomes import known_outcomes, sharing_outcomes
from torchscan.trace.trace import Trace


class Halves(nn.Module):
    """Layers that split, view, transpose and reshape, and their gradients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(width, width)

    def forward(self, given: Tensor) -> Tensor:
        """Return gated features."""
        gate, value = self.wide(given).chunk(2, dim=-1)
        heads = value.unflatten(-1, (4, -1)).transpose(1, 2)
        first, rest = heads.split([1, 3], dim=1)
        joined = torch.cat([rest, first], dim=1).transpose(1, 2).reshape(value.shape)
        return given + self.narrow(torch.sigmoid(gate) * joined)


def record(mesh: Mapping[str, int]) -> Trace:
    from torch.distributed.fsdp import fully_shard

    def shard(copied: Any, devices: Any) -> None:
        for each in (*copied, copied):
            fully_shard(each, mesh=devices["dp"])

    with torch.device("meta"):
        model = nn.Sequential(Halves(64), Halves(64))
    options: dict[str, Any] = {"device": "H100", "training": True, "optimizer": "AdamW"}
    options |= {"input_shape": (8, 64), "batch_size": 2, "progress": False}
    return plan(model, mesh=mesh, apply=shard, **options).ranks[0].trace


@pytest.mark.slow
@before("2.9", "collectives do not run on shapes")
def test_passes_that_share_outcomes_have_the_same_traces() -> None:
    meshes = [{"dp": 2}, {"dp": 4}, {"dp": 2}]
    alone = [record(mesh) for mesh in meshes]
    with sharing_outcomes():
        shared = [record(mesh) for mesh in meshes]
        assert known_outcomes().plans
    for one, other in zip(alone, shared, strict=True):
        assert one.ops == other.ops
        assert one.tensors == other.tensors
        assert one.storages == other.storages


def test_outcomes_are_shared_in_a_context_only() -> None:
    assert known_outcomes() is not known_outcomes()
    with sharing_outcomes():
        assert known_outcomes() is known_outcomes()
    assert known_outcomes() is not known_outcomes()
