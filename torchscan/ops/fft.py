"""Fourier transforms: 5·n·log2(n) for a complex transform of length n, half of that for a real one.

Along several dimensions, one transform follows another. For a real signal, only the last dimension
is transformed as real numbers; it leaves n/2 + 1 complex numbers, which the other dimensions then
transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.windows import Looks, mixed
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of(aten._fft_c2c)
def complex_transform(self: TensorSpec, dim: Sequence[int], *_: object, out: TensorSpec) -> Work:
    """FLOPs = 5 · numel · Σ log2(n) over the dimensions."""
    return Work(other_flops=_transforms(out, dim))


@cost_of(aten._fft_r2c)
def transform_of_real(
    self: TensorSpec, dim: Sequence[int], normalization: int, onesided: bool, *, out: TensorSpec
) -> Work:
    """FLOPs = 2.5 · numel(in) · log2(n) for the last dimension.

    The other dimensions take 5 · numel(half) · Σ log2(n).
    """
    shape = list(self.shape)
    if dim:
        last = dim[-1]
        shape[last] = shape[last] // 2 + 1
    half = TensorSpec(tuple(shape), self.dtype, self.stride)
    flops = _real_transform(self, dim) + _transforms(half, dim[:-1])
    return Work(other_flops=flops)


@cost_of(aten._fft_c2r)
def transform_to_real(self: TensorSpec, dim: Sequence[int], *_: object, out: TensorSpec) -> Work:
    """Return the FLOPs of ``transform_of_real`` with input and output exchanged."""
    flops = _real_transform(out, dim) + _transforms(self, dim[:-1])
    return Work(other_flops=flops)


@window_of(aten._fft_c2c, aten._fft_r2c, aten._fft_c2r)
def transform_window(self: TensorSpec, dim: Sequence[int], *_: object, out: TensorSpec) -> Looks:
    """Read all elements along the transformed dimensions."""
    return (mixed(self, dim, out),)


def _real_transform(signal: TensorSpec, dims: Sequence[int]) -> int:
    if not dims:
        return 0
    length = max(signal.shape[dims[-1]], 1)
    return round(2.5 * signal.numel * math.log2(length))


def _transforms(spec: TensorSpec, dims: Sequence[int]) -> int:
    lengths = (max(spec.shape[dim], 1) for dim in dims)
    return round(5 * spec.numel * sum(map(math.log2, lengths)))
