"""A small model on a small mesh."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import torchscan


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh)


def sharded_linear(**asked: Any) -> torchscan.types.Plan:
    return torchscan.parallel.plan(
        build,
        (64,),
        mesh={"dp": 8},
        apply=shard,
        training=True,
        optimizer="AdamW",
        device="NVIDIA H200",
        batch_size=4,
        **asked,
    )


def divide(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Tokens(nn.Module):
    """A language model without attention, that tells its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)])

    def forward(self, input_ids: Tensor, labels: Tensor, use_cache: bool) -> dict[str, Tensor]:
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        scores = hidden @ self.embed.weight.T
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())}


def searched_tokens() -> torchscan.types.MeshSearch:
    return torchscan.parallel.search(
        Tokens(),
        num_gpus=8,
        device="NVIDIA H200",
        length=16,
        meshes=[{"dp": 8}, {"replicate": 2, "dp": 4}],
        checkpoint=False,
    )
