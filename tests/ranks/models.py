"""A small model on a small mesh."""

from __future__ import annotations

from typing import Any

from torch import nn

import torchscan


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh)


def sharded_linear(**asked: Any) -> torchscan.Plan:
    return torchscan.plan(
        build, (64,), mesh={"dp": 8}, apply=shard, training=True, optimizer="AdamW", device="NVIDIA H200", batch_size=4, **asked
    )


def divide(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
