"""All-gathers of FSDP2 in 8 bits for weights of linear layers, as with torchao's tensors.

Each rank casts its shard with the scale of the complete weight. The scales of all weights are
computed before the forward pass, with one all-reduce of their largest absolute values; torchao does
it after the optimizer's step, by ``precompute_float8_dynamic_scale_for_fsdp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.training.float8 import Float8Linear
from torchscan.recording.training.float8_casts import Quantized, cast_scaled, scale_of
from torchscan.torch_versions import (
    ShardOfFSDP,
    aten,
    is_sharded_type,
    local_part,
    sharded_from,
    shards_of_fsdp,
)

_DTYPE = torch.float8_e4m3fn


def gather_in_8_bits(model: nn.Module) -> None:
    """Make FSDP2 gather the weights of 8-bit layers in 8 bits, in a model that it shards."""
    gathers = []
    for shard in shards_of_fsdp(model):
        layer = shard.module
        if isinstance(layer, Float8Linear) and layer.is_gathered and shard.name == "weight":
            gathers.append(_WeightGather(layer, shard))
    if not gathers:
        return

    def compute_scales(*_: object) -> None:
        _compute_scales(gathers)

    # a hook that is prepended runs before those of FSDP
    model.register_forward_pre_hook(compute_scales, prepend=True)


def layers_gathered_in_8_bits(model: nn.Module) -> list[Float8Linear]:
    """Return the layers whose weights FSDP2 all-gathers in 8 bits."""
    layers = (each for each in model.modules() if isinstance(each, Float8Linear))
    return [each for each in layers if each.is_gathered]


@torch.no_grad()
def hold_in_8_bits(model: nn.Module) -> None:
    """Give layers the weights that FSDP2 would have all-gathered in 8 bits."""
    for layer in layers_gathered_in_8_bits(model):
        weight: Any = layer.weight
        part = local_part(weight)
        values = part.new_empty(part.shape, dtype=_DTYPE)
        scale = part.new_empty((), dtype=torch.float32)
        layer.gathered = Quantized(values, scale)
        if is_sharded_type(type(weight)):
            layer.gathered = _place(layer.gathered, weight.device_mesh, weight.placements)


def _place(gathered: Quantized, mesh: Any, placements: Sequence[Any]) -> Quantized:
    """Return values and scale as DTensors; the values are placed as by tensor parallelism."""
    from torch.distributed.tensor import Replicate

    alone = [Replicate()] * mesh.ndim
    return Quantized(
        sharded_from(gathered.values, mesh, placements), sharded_from(gathered.scale, mesh, alone)
    )


@torch.no_grad()
def _compute_scales(gathers: list[_WeightGather]) -> None:
    """Compute the scales of complete weights, of which each rank has a shard."""
    import torch.distributed as distributed

    parts = [each.shard.part for each in gathers]
    largest = torch.stack(aten._foreach_norm(parts, math.inf))
    for group in gathers[0].shard.groups:
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX, group=group)
    scales = scale_of(largest, _DTYPE)
    for each, scale in zip(gathers, scales.unbind(), strict=True):
        each.scale = scale


class _WeightGather:
    """The all-gather of one weight, in the two functions that FSDP2 calls."""

    def __init__(self, layer: Float8Linear, shard: ShardOfFSDP) -> None:
        self._layer = layer
        self.shard = shard
        self.scale: Tensor | None = None
        shard.extend_all_gather(self.before, self.after)

    def before(self, _mesh: object) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the tensors to all-gather, and the metadata to keep."""
        scale, part = self.scale, self.shard.part
        if scale is None:  # the layer is called without the model
            scale = scale_of(torch.max(torch.abs(part)), _DTYPE)
        return (cast_scaled(part, scale, _DTYPE),), (scale,)

    def after(
        self,
        outputs: tuple[Tensor, ...],
        metadata: tuple[Tensor, ...],
        _dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Give the layer its all-gathered weight in 8 bits."""
        (values,), (scale,) = outputs, metadata
        gathered = Quantized(values[: self.shard.rows], scale)
        placement = self.shard.placement
        if placement is not None:  # tensor parallelism has divided it before
            gathered = _place(gathered, *placement)
        self._layer.gathered = gathered
        return (values, outputs) if out is None else None
