"""Arithmetic element by element: one operation for each add, multiply, compare, root, exponential."""

from __future__ import annotations

import torch

from torchscan.ops.elementwise import per_element
from torchscan.ops.registry import Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten

per_element(1, aten.mul, aten.multiply, aten.div, aten.divide, aten.true_divide, aten.floor_divide)
per_element(1, aten.neg, aten.negative, aten.abs, aten.absolute, aten.sign, aten.sgn, aten.reciprocal, aten.square)
per_element(1, aten.maximum, aten.minimum, aten.fmax, aten.fmin, aten.remainder, aten.fmod)
per_element(1, aten.clamp_min, aten.clamp_max)
per_element(2, aten.clamp, aten.clip)
per_element(1, aten.floor, aten.ceil, aten.round, aten.trunc, aten.fix)
per_element(2, aten.frac)
per_element(1, aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isnan, aten.isinf, aten.isfinite)
per_element(1, aten.logical_not, aten.logical_and, aten.logical_or, aten.logical_xor)
per_element(1, aten.where, aten.masked_fill)
per_element(1, aten.exp, aten.exp2, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p)
per_element(1, aten.sqrt, aten.rsqrt, aten.pow, aten.erf, aten.erfc, aten.erfinv)
per_element(1, aten.sin, aten.cos, aten.tan, aten.asin, aten.acos, aten.atan, aten.atan2, aten.sinh, aten.cosh)
per_element(3, aten.lerp)  # start + weight · (end - start)
per_element(3, aten.logit)  # log(x / (1 - x))


@cost_of(aten.addcmul, aten.addcdiv)
def addcmul(self: TensorSpec, *, value: float = 1, out: TensorSpec) -> Work:
    """``self + value · t1 · t2`` (or t1 / t2): 2 per element, 3 if value ≠ 1."""
    return Work(other_flops=(3 if value != 1 else 2) * out.numel)


@cost_of(aten.add, aten.sub, aten.subtract, aten.rsub)
def add(self: TensorSpec, other: object, *, alpha: float = 1, out: TensorSpec) -> Work:
    """``self ± alpha · other``: FLOPs = numel(out), and once more numel(other) if alpha ≠ 1."""
    scaled = other.numel if isinstance(other, TensorSpec) else 1
    return Work(other_flops=out.numel + (scaled if alpha != 1 else 0))
