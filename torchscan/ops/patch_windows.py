"""Windows of pixel and channel shuffles, and of patches as columns (``im2col``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torchscan.ops.registry import window_of
from torchscan.ops.taps import spread
from torchscan.ops.windows import (
    Along,
    At,
    Dim,
    Look,
    Looks,
    Reshape,
    Step,
    Unfold,
    Way,
    here,
    per_axis,
    permuted,
    shifted,
    way,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Sizes = Sequence[int] | int


@window_of(aten.pixel_shuffle)
def pixel_shuffle_window(self: TensorSpec, upscale_factor: int, *, out: TensorSpec) -> Looks:
    """Channels (c, y, x) become pixels (h, y) and (w, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = upscale_factor, len(batch)
    split = (*batch, channels // factor**2, factor, factor, height, width)
    order = [*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2]
    return _rearranged(split, order, out)


@window_of(aten.pixel_unshuffle)
def pixel_unshuffle_window(self: TensorSpec, downscale_factor: int, *, out: TensorSpec) -> Looks:
    """Pixels (h, y) and (w, x) become channels (c, y, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = downscale_factor, len(batch)
    split = (*batch, channels, height // factor, factor, width // factor, factor)
    order = [*range(rank + 1), rank + 2, rank + 4, rank + 1, rank + 3]
    return _rearranged(split, order, out)


@window_of(aten.channel_shuffle, aten.native_channel_shuffle)
def channel_shuffle_window(self: TensorSpec, groups: int, *, out: TensorSpec) -> Looks:
    """Channels (group, c) become (c, group)."""
    batch, channels, *rest = self.shape
    split = (batch, groups, channels // groups, *rest)
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    return _rearranged(split, order, out)


def _rearranged(split: Sequence[int], order: Sequence[int], out: TensorSpec) -> Looks:
    """Return the window of a permutation of dimensions that are split before and joined after."""
    permutation = permuted(split, order)
    return (way(Reshape(tuple(split)), permutation, Reshape(out.shape)),)


@window_of(aten.im2col)
def im2col_window(
    self: TensorSpec,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
    *,
    out: TensorSpec,
) -> Looks:
    """The windows of both axes, as channels: (c, ky, kx), (y, x)."""
    *batch, height, width = self.shape
    outer = len(batch)
    kernel, spacing = per_axis(kernel_size, 2), per_axis(dilation, 2)
    pads, steps = per_axis(padding, 2), per_axis(stride, 2)
    dims: list[Dim] = [here(dim) for dim in range(outer)]
    steps_to_result: list[Step] = []
    sizes, counts = [], []
    for axis, size in enumerate((height, width)):
        pad, taps, space, step = pads[axis], kernel[axis], spacing[axis], steps[axis]
        padded = size + 2 * pad
        dims.append(Along(outer + axis, shifted(-pad)))
        steps_to_result.append(Unfold(outer + axis, taps, step, space))
        sizes.append(padded)
        counts.append(_count_windows(padded, taps, space, step))
    unfolded = (*batch, *counts, *kernel)
    order = [*range(outer), outer + 2, outer + 3, outer, outer + 1]
    pad_first = Look(tuple(dims), (*batch, *sizes))
    permutation = permuted(unfolded, order)
    return (way(pad_first, *steps_to_result, permutation, Reshape(out.shape)),)


def _count_windows(padded: int, taps: int, spacing: int, step: int) -> int:
    extent = spacing * (taps - 1) + 1
    return (padded - extent) // step + 1


@window_of(aten.col2im)
def col2im_window(
    self: TensorSpec,
    output_size: Sequence[int],
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
    *,
    out: TensorSpec,
) -> Looks:
    """Return the window of each tap of the kernel.

    Place y looks at the window ``(y + p − d·k) / s``, where that is a whole number.
    """
    kernel, spacing = per_axis(kernel_size, 2), per_axis(dilation, 2)
    pads, steps = per_axis(padding, 2), per_axis(stride, 2)
    batch, outer = self.shape[:-2], len(self.shape) - 2
    counts = []
    for axis, size in enumerate(output_size):
        padded = size + 2 * pads[axis]
        counts.append(_count_windows(padded, kernel[axis], spacing[axis], steps[axis]))
    split = Reshape((*batch, out.shape[outer], *kernel, *counts))
    ways = []
    for tap in itertools.product(*map(range, kernel)):
        dims: list[Dim] = [*map(here, range(outer + 1)), *map(At, tap)]
        for axis, index in enumerate(tap):
            offset = pads[axis] - spacing[axis] * index
            dims.append(Along(outer + 1 + axis, spread(1, steps[axis], offset, 1)))
        ways.append(Way((split, Look(tuple(dims), out.shape))))
    return (tuple(ways),)
