"""Windows of pixel and channel shuffles, and of patches as columns (``im2col``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torchscan.ops.registry import window_of
from torchscan.ops.taps import transposed_taps
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
    per_axis,
    permuted,
    same_dims,
    shifted,
    way,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Sizes = Sequence[int] | int


@window_of(aten.pixel_shuffle)
def pixel_shuffle_window(self: TensorSpec, upscale_factor: int, *, out: TensorSpec) -> Looks:
    """Read pixels (h, y) and (w, x) from channels (c, y, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = upscale_factor, len(batch)
    num_channels = channels // factor**2
    split = (*batch, num_channels, factor, factor, height, width)
    channel, y, x, row, column = range(rank, rank + 5)
    order = [*range(rank), channel, row, y, column, x]
    return _rearrange(split, order, out)


@window_of(aten.pixel_unshuffle)
def pixel_unshuffle_window(self: TensorSpec, downscale_factor: int, *, out: TensorSpec) -> Looks:
    """Read channels (c, y, x) from pixels (h, y) and (w, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = downscale_factor, len(batch)
    split = (*batch, channels, height // factor, factor, width // factor, factor)
    channel, row, y, column, x = range(rank, rank + 5)
    order = [*range(rank), channel, y, x, row, column]
    return _rearrange(split, order, out)


@window_of(aten.channel_shuffle, aten.native_channel_shuffle)
def channel_shuffle_window(self: TensorSpec, groups: int, *, out: TensorSpec) -> Looks:
    """Read channels (c, group) from channels (group, c)."""
    batch, channels, *rest = self.shape
    split = (batch, groups, channels // groups, *rest)
    order = [0, 2, 1, *range(3, len(split))]
    return _rearrange(split, order, out)


def _rearrange(split: Sequence[int], order: Sequence[int], out: TensorSpec) -> Looks:
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
    """Read the windows of both axes, as channels: (c, ky, kx), (y, x)."""
    *batch, height, width = self.shape
    outer = len(batch)
    kernel, spacing = per_axis(kernel_size, 2), per_axis(dilation, 2)
    pads, steps = per_axis(padding, 2), per_axis(stride, 2)
    dims = same_dims(outer)
    steps_to_result: list[Step] = []
    sizes, counts = [], []
    axes = zip((height, width), pads, kernel, spacing, steps, strict=True)
    for dim, (size, pad, taps, space, step) in enumerate(axes, outer):
        padded = size + 2 * pad
        dims.append(Along(dim, shifted(-pad)))
        steps_to_result.append(Unfold(dim, taps, step, space))
        sizes.append(padded)
        counts.append(_count_windows(padded, taps, space, step))
    unfolded = (*batch, *counts, *kernel)
    row, column, y, x = range(outer, outer + 4)
    order = [*range(outer), y, x, row, column]
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
    *batch, _, _ = self.shape
    outer = len(batch)
    counts = []
    for size, pad, taps, space, step in zip(output_size, pads, kernel, spacing, steps, strict=True):
        padded = size + 2 * pad
        counts.append(_count_windows(padded, taps, space, step))
    channels = out.shape[outer]
    split = Reshape((*batch, channels, *kernel, *counts))

    ways = []
    for tap in itertools.product(*map(range, kernel)):
        dims: list[Dim] = [*same_dims(outer + 1), *map(At, tap)]
        axes = zip(tap, pads, spacing, steps, strict=True)
        for dim, (index, pad, space, step) in enumerate(axes, outer + 1):
            offset = pad - space * index
            dims.append(Along(dim, transposed_taps(1, step, offset, 1)))
        at_tap = Look(tuple(dims), out.shape)
        ways.append(Way((split, at_tap)))
    return (tuple(ways),)
