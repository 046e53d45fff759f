"""Sums, means, extremes and norms over dimensions; running sums; sorting."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchscan.ops.registry import Formula, Operator, Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten
Output = TensorSpec | tuple[TensorSpec, ...]


def _reduction(per_input: int, per_output: int) -> Formula:
    def reduce(self: TensorSpec, *_: Any, out: Output, **_kwargs: Any) -> Work:
        """FLOPs = per_input · numel(in) + per_output · numel(out)."""
        results = (out[0] if isinstance(out, tuple) else out).numel
        return Work(other_flops=max(per_input * self.numel + per_output * results, 0))

    return reduce


def _declare(per_input: int, per_output: int, *operators: Operator) -> None:
    cost_of(*operators)(_reduction(per_input, per_output))


# n inputs per output: n − 1 steps
_declare(1, -1, aten.sum, aten.prod, aten.amax, aten.amin, aten.argmax, aten.argmin, aten.all, aten.any, aten.nansum)
# n − 1 additions and a division
_declare(1, 0, aten.mean)
# mean and centring, square, sum
_declare(4, 0, aten.var, aten.var_mean)
_declare(4, 1, aten.std, aten.std_mean)
# square or absolute value, n − 1 additions, a root
_declare(2, 0, aten.linalg_vector_norm, aten.norm, aten.frobenius_norm)
# exponential, n − 1 additions, logarithm; shifted by the largest, which takes n − 1 comparisons, n subtractions, one addition
_declare(4, 0, aten.logsumexp)
# the bin of each: subtract the lower end, divide by the width
_declare(2, 0, aten.histc)


@cost_of(aten.max, aten.min)
def extreme(self: TensorSpec, *others: Any, out: Output) -> Work:
    """Over a dimension or everything: n − 1 comparisons per output; of two tensors: one per element."""
    if others and isinstance(others[0], TensorSpec):
        return Work(other_flops=(out[0] if isinstance(out, tuple) else out).numel)
    return _reduction(1, -1)(self, out=out)


@cost_of(aten.cumsum, aten.cumprod, aten.cummax, aten.cummin)
def scan(self: TensorSpec, dim: int, *_: Any, out: Output, **_kwargs: Any) -> Work:
    """N − 1 steps in each row of n."""
    rows = self.numel // max(self.shape[dim], 1) if self.shape else 1
    return Work(other_flops=max(self.numel - rows, 0))


@cost_of(aten.sort, aten.argsort, aten.msort)
def sort(self: TensorSpec, *args: Any, dim: int = -1, out: Output, **_kwargs: Any) -> Work:
    """⌈log2 n⌉ comparisons per element, in rows of n."""
    along = next((arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)), dim)
    row = self.shape[along] if self.shape else 1
    return Work(other_flops=self.numel * math.ceil(math.log2(max(row, 1))))


@cost_of(aten.topk)
def topk(self: TensorSpec, k: int, *_: Any, out: Output) -> Work:
    """⌈log2(k + 1)⌉ comparisons per element: each may enter a heap of k."""
    return Work(other_flops=self.numel * math.ceil(math.log2(k + 1)))
