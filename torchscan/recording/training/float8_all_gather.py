"""All-gathers of FSDP2 in 8 bits for weights of linear layers, as with torchao's tensors.

Each rank casts its shard with the scale of the complete weight. The scales of all weights are
computed before the forward pass, with one all-reduce of their largest absolute values; torchao does
it after the optimizer's step, by ``precompute_float8_dynamic_scale_for_fsdp``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.training.float8 import Float8Linear, Quantized, cast_scaled, scale_of
from torchscan.torch_versions import aten, extend_all_gather, sharded_from, shards_of_fsdp

_DTYPE = torch.float8_e4m3fn


def gather_in_8_bits(model: nn.Module) -> None:
    """Make FSDP2 gather the weights of 8-bit layers in 8 bits, in a model that it shards."""
    gathers = [
        _WeightGather(module, shard)
        for shard in shards_of_fsdp(model)
        for module in [shard._module_info.module]
        if isinstance(module, Float8Linear) and module.is_gathered
        if shard._module_info.param_name == "weight"
    ]
    if not gathers:
        return

    def compute_scales(*_: object) -> None:
        _compute_scales(gathers)

    # a hook that is prepended runs before those of FSDP
    model.register_forward_pre_hook(compute_scales, prepend=True)


@torch.no_grad()
def _compute_scales(gathers: list[_WeightGather]) -> None:
    """Compute the scales of complete weights, of which each rank has a shard."""
    import torch.distributed as distributed

    shards = [each.shard for each in gathers]
    largest = torch.stack(aten._foreach_norm(shards, math.inf))
    for group in gathers[0].groups:
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX, group=group)
    scales = scale_of(largest, _DTYPE)
    for each, scale in zip(gathers, scales.unbind(), strict=True):
        each.scale = scale


class _WeightGather:
    """The all-gather of one weight, in the two functions that FSDP2 calls."""

    def __init__(self, layer: Float8Linear, parameter: Any) -> None:
        self._layer = layer
        self._parameter = parameter
        self.scale: Tensor | None = None
        extend_all_gather(parameter, self.before, self.after)

    @property
    def shard(self) -> Tensor:
        """This rank's part of the weight, padded as that of the first rank."""
        size = self._parameter.padded_sharded_param_size
        shard: Tensor = self._parameter._sharded_param_data.view(size)
        return shard

    @property
    def groups(self) -> list[Any]:
        """The process groups of the mesh dimensions along which the weight is sharded."""
        spec = self._parameter._sharding_spec
        placed = zip(range(spec.mesh.ndim), spec.placements, strict=True)
        return [spec.mesh.get_group(dim) for dim, each in placed if not each.is_replicate()]

    def before(self, _mesh: object) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the tensors to all-gather, and the metadata to keep."""
        scale = self.scale
        if scale is None:  # the layer is called without the model
            scale = scale_of(torch.max(torch.abs(self.shard)), _DTYPE)
        return (cast_scaled(self.shard, scale, _DTYPE),), (scale,)

    def after(
        self,
        outputs: tuple[Tensor, ...],
        metadata: tuple[Tensor, ...],
        _dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """Give the layer its all-gathered weight in 8 bits."""
        from torch.distributed.tensor import Replicate

        (values,), (scale,) = outputs, metadata
        rows = self._parameter._orig_size[0]  # without the padding of the last rank
        gathered = Quantized(values[:rows], scale)
        spec = self._parameter._unsharded_dtensor_spec
        if spec is not None:  # tensor parallelism has divided it before
            alone = [Replicate()] * spec.mesh.ndim
            gathered = Quantized(
                sharded_from(gathered.values, spec.mesh, spec.placements),
                sharded_from(scale, spec.mesh, alone),
            )
        self._layer.gathered = gathered
        return (values, outputs) if out is None else None
