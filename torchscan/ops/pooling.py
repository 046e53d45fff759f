"""Pooling: the largest or the mean of each window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchscan.ops.registry import Formula, Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten
Sizes = Sequence[int] | int
Output = TensorSpec | tuple[TensorSpec, ...]


def _max_pool(axes: int) -> Formula:
    def max_pool(self: TensorSpec, kernel_size: Sizes, *_: object, out: Output, **_kwargs: object) -> Work:
        """Window − 1 comparisons per output."""
        window = _window(kernel_size, axes)
        pooled = _pooled(out)
        return Work(other_flops=(window - 1) * pooled, elements_read=window * pooled)

    return max_pool


def _avg_pool(axes: int) -> Formula:
    def avg_pool(self: TensorSpec, kernel_size: Sizes, *_: object, out: Output, **_kwargs: object) -> Work:
        """Window − 1 additions and a division per output."""
        window = _window(kernel_size, axes)
        pooled = _pooled(out)
        return Work(other_flops=window * pooled, elements_read=window * pooled)

    return avg_pool


def _adaptive_pool(axes: int, flops_saved: int) -> Formula:
    def adaptive_pool(self: TensorSpec, output_size: Sizes, *_: object, out: Output) -> Work:
        """As above, with windows from ``⌊i·in/out⌋`` to ``⌈(i+1)·in/out⌉``, which are not all of one size."""
        sizes = zip(self.shape[-axes:], _first(out).shape[-axes:], strict=True)
        pooled = _pooled(out)
        positions = max(math.prod(_first(out).shape[-axes:]), 1)
        reads = pooled // positions * math.prod(_total_of_bins(size, bins) for size, bins in sizes)
        return Work(other_flops=reads - flops_saved * pooled, elements_read=reads)

    return adaptive_pool


for _axes in (1, 2, 3):
    cost_of(getattr(aten, f"max_pool{_axes}d"), *([aten.max_pool1d_with_indices] if _axes == 1 else []))(_max_pool(_axes))
    cost_of(getattr(aten, f"avg_pool{_axes}d"))(_avg_pool(_axes))
    cost_of(getattr(aten, f"adaptive_avg_pool{_axes}d"))(_adaptive_pool(_axes, 0))
    cost_of(getattr(aten, f"adaptive_max_pool{_axes}d"))(_adaptive_pool(_axes, 1))
for _axes in (2, 3):
    cost_of(getattr(aten, f"max_pool{_axes}d_with_indices"))(_max_pool(_axes))
    cost_of(getattr(aten, f"_adaptive_avg_pool{_axes}d"))(_adaptive_pool(_axes, 0))


def _total_of_bins(size: int, bins: int) -> int:
    """Sum of the window sizes along one axis."""
    return sum(-(-(index + 1) * size // bins) - index * size // bins for index in range(bins))


def _window(kernel_size: Sizes, axes: int) -> int:
    if isinstance(kernel_size, int):
        return int(kernel_size**axes)
    sizes = kernel_size if len(kernel_size) == axes else [kernel_size[0]] * axes
    return math.prod(sizes)


def _first(out: Output) -> TensorSpec:
    return out[0] if isinstance(out, tuple) else out


def _pooled(out: Output) -> int:
    return _first(out).numel
