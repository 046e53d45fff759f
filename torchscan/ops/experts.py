"""Products of many matrices at once: the experts of a mixture, each with the tokens routed to it."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.registry import Work, cost_of
from torchscan.trace.events import TensorSpec


@cost_of("aten::_grouped_mm")
def grouped_mm(self: TensorSpec, mat2: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object) -> Work:
    """One product per group: MACs = numel(out) · k; if the groups divide k itself, each product sums over its share."""
    return Work(macs=_grouped(self, mat2, out))


@cost_of("aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def scaled_grouped_mm(self: TensorSpec, mat2: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object) -> Work:
    """As above, in 8 bits; a product with the scales per output."""
    return Work(macs=_grouped(self, mat2, out), other_flops=out.numel)


@cost_of("aten::_foreach_mm")
def foreach_mm(self: Sequence[TensorSpec], *_: object, out: TensorSpec | tuple[TensorSpec, ...]) -> Work:
    """One product for each entry of a list: MACs = Σ numel(out_i) · k_i."""
    results = out if isinstance(out, tuple) else (out,)
    return Work(macs=sum(result.numel * left.shape[-1] for left, result in zip(self, results, strict=True)))


def _grouped(left: TensorSpec, right: TensorSpec, out: TensorSpec) -> int:
    divides_inner = len(left.shape) == 2 and len(right.shape) == 2
    groups = out.shape[0] if divides_inner else 1
    return out.numel * left.shape[-1] // max(groups, 1)
