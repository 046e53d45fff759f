"""Windows of copies, joins, padding and allocations."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from torchscan.ops.elementwise import Output
from torchscan.ops.registry import pointwise, window_of
from torchscan.ops.taps import drawn_out, repeated, spread
from torchscan.ops.windows import (
    NOT_READ,
    Along,
    At,
    Dim,
    EachOutput,
    Look,
    Looks,
    Note,
    Piece,
    Reshape,
    Step,
    Taps,
    Unfold,
    Way,
    Ways,
    broadcast,
    here,
    look,
    moved,
    per_axis,
    permuted,
    shifted,
    way,
    wrapped,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Sizes = Sequence[int] | int

pointwise(
    aten.contiguous,
    aten.clone,
    aten.to,
    aten._to_copy,
    aten.detach,
    aten.alias,
    aten.lift_fresh,
    aten.lift,
)
pointwise(
    aten.lift_fresh_copy,
    aten.positive,
    aten.data,
    aten._conj,
    aten.conj,
    aten.resolve_conj,
    aten.resolve_neg,
)
pointwise(
    aten._neg_view,
    aten.tril,
    aten.triu,
    aten.bernoulli,
    "aten::detach_copy",
    "aten::alias_copy",
    aten.to_dense,
)
pointwise(aten._lazy_clone, aten.pin_memory, aten._pin_memory)


@window_of(
    aten.empty_like,
    aten.new_empty,
    aten.new_empty_strided,
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
)
@window_of(
    aten.new_zeros,
    aten.new_ones,
    aten.rand_like,
    aten.randn_like,
    aten.randint_like,
    aten.zero,
    aten.uniform,
)
@window_of(
    aten.normal_,
    aten.random,
    aten.exponential,
    aten.cauchy,
    aten.geometric,
    aten.log_normal,
    aten.fill.Scalar,
)
@window_of(
    aten._has_same_storage_numel, aten._new_zeros_with_same_feature_meta, aten.bernoulli_.float
)
def nothing_is_read(*, inputs: tuple[TensorSpec, ...], out: Output) -> Looks:
    """Takes the shape of an operand, and no values."""
    return (NOT_READ,) * len(inputs)


@window_of(aten.fill.Tensor, aten.copy, aten.new_full, aten.full)
def overwritten_window(*, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks:
    """Nothing of the overwritten operand remains; what is written is the last operand."""
    if len(inputs) < 2:
        return (NOT_READ,) * len(inputs)
    *overwritten, written = inputs
    return (*[NOT_READ] * len(overwritten), broadcast(written, out))


@window_of(aten.meshgrid)
def meshgrid_window(
    tensors: Sequence[TensorSpec], *, indexing: str = "ij", out: Output
) -> EachOutput:
    """Each result follows one operand along one dimension; "xy" swaps the first two."""
    results = out if isinstance(out, tuple) else (out,)
    dims = list(range(len(tensors)))
    if indexing == "xy":
        dims[:2] = dims[:2][::-1]
    looks = []
    for at, each in enumerate(results):
        rank = len(tensors[at].shape)
        looks.append(look(each, *map(here, dims[at : at + rank])))
    return _one_operand_each(looks, len(tensors))


@window_of(aten.broadcast_tensors)
def broadcast_window(tensors: Sequence[TensorSpec], *, out: Output) -> EachOutput:
    """Each result is one operand, broadcast."""
    results = out if isinstance(out, tuple) else (out,)
    pairs = zip(tensors, results, strict=True)
    looks = [broadcast(spec, each) for spec, each in pairs]
    return _one_operand_each(looks, len(tensors))


def _one_operand_each(looks: Iterable[Ways], num_operands: int) -> EachOutput:
    """Return the windows of results that each read the operand at their position only."""
    windows = []
    for position, each in enumerate(looks):
        row: list[Ways] = [NOT_READ] * num_operands
        row[position] = each
        windows.append(tuple(row))
    return EachOutput(tuple(windows))


@window_of(aten.rot90)
def rotation_window(
    self: TensorSpec, k: int = 1, dims: Sequence[int] = (0, 1), *, out: TensorSpec
) -> Looks:
    """Return the window of quarter turns, which swap two dimensions or read them backwards."""
    rank = len(self.shape)
    first, second = (wrapped(dim, rank) for dim in dims)
    first_back, second_back = _backwards(self.shape[first]), _backwards(self.shape[second])
    read: list[Dim] = [here(dim) for dim in range(rank)]
    turns = k % 4
    if turns == 1:
        read[first], read[second] = here(second), Along(first, second_back)
    elif turns == 2:
        read[first], read[second] = Along(first, first_back), Along(second, second_back)
    elif turns == 3:
        read[first], read[second] = Along(second, first_back), here(first)
    return (look(out, *read),)


def _backwards(size: int) -> Taps:
    return Taps(((size - 1,),), -1)


@window_of(aten.roll)
def roll_window(self: TensorSpec, shifts: Sizes, dims: Sizes = (), *, out: TensorSpec) -> Looks:
    """Shifted in the shorter direction; what leaves on one side enters on the other."""
    at = [dims] if isinstance(dims, int) else dims
    by = [shifts] if isinstance(shifts, int) else shifts
    if not at:
        return (None,)
    rank = len(self.shape)
    total: Counter[int] = Counter()
    for dim, shift in zip(at, by, strict=True):
        total[wrapped(dim, rank)] += shift
    taps = {}
    for dim, shift in total.items():
        size = self.shape[dim]
        shift %= max(size, 1)
        taps[dim] = shifted(-shift if 2 * shift <= size else size - shift)
    return (moved(self, taps, out, "wraps"),)


@window_of(aten.flip, aten.fliplr, aten.flipud)
def flip_window(self: TensorSpec, dims: Sequence[int] = (), *, out: TensorSpec) -> Looks | None:
    """From last place to first."""
    rank = len(self.shape)
    named = {wrapped(dim, rank) for dim in dims}
    if not named:
        return None
    taps = {dim: _backwards(self.shape[dim]) for dim in named}
    return (moved(self, taps, out),)


@window_of(aten.constant_pad_nd)
def constant_pad_window(self: TensorSpec, pad: Sequence[int], *_: object, out: TensorSpec) -> Looks:
    """Shifted by the padding in front."""
    return (_padded(self, pad, out, None),)


@window_of(aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
@window_of(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d)
def mirrored_pad_window(self: TensorSpec, padding: Sequence[int], *, out: TensorSpec) -> Looks:
    """Shifted by the padding in front, which is made from the border."""
    return (_padded(self, padding, out, "padded"),)


@window_of(aten._pad_circular)
def circular_pad_window(self: TensorSpec, pad: Sequence[int], *, out: TensorSpec) -> Looks:
    """Shifted by the padding in front, which is made from the opposite side."""
    return (_padded(self, pad, out, "wraps"),)


@window_of(aten.pad)
def pad_window(
    self: TensorSpec, pad: Sequence[int], mode: str = "constant", *_: object, out: TensorSpec
) -> Looks:
    """One of the three above."""
    notes: dict[str, Note | None] = {"constant": None, "circular": "wraps"}
    return (_padded(self, pad, out, notes.get(mode, "padded")),)


def _padded(self: TensorSpec, pad: Sequence[int], out: TensorSpec, note: Note | None) -> Ways:
    """``pad`` starts with the last dimension: before, behind."""
    last = len(self.shape) - 1
    taps = {last - at: shifted(-before) for at, before in enumerate(pad[::2])}
    return moved(self, taps, out, note)


@window_of(aten.cat, aten.concat, aten.concatenate, "quantized::cat")
def cat_window(
    tensors: Sequence[TensorSpec], dim: int = 0, *_: object, out: TensorSpec, **_kwargs: object
) -> Looks:
    """One operand after another; an empty vector adds nothing."""
    at = wrapped(dim, len(out.shape))
    looks: list[Ways] = []
    start = 0
    for each in tensors:
        if len(each.shape) == len(out.shape):
            stop = start + each.shape[at]
            looks.append(way(Piece(at, start, stop)))
            start = stop
        else:
            looks.append(NOT_READ)
    return tuple(looks)


@window_of(aten.stack)
def stack_window(tensors: Sequence[TensorSpec], dim: int = 0, *, out: TensorSpec) -> Looks:
    """Each operand at one place of a new dimension."""
    at = wrapped(dim, len(out.shape))
    shape = (*out.shape[:at], 1, *out.shape[at + 1 :])
    places = [*range(at), *range(at + 1, len(shape))]
    added = Look(tuple(map(here, places)), shape)
    return tuple(way(added, Piece(at, index, index + 1)) for index in range(len(tensors)))


@window_of(aten.hstack, aten.vstack)
def joined_window(
    tensors: Sequence[TensorSpec], *, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks | None:
    """Along the only dimension that grows, if operands and result have equally many dimensions."""
    ranks = {len(each.shape) for each in tensors}
    if ranks != {len(out.shape)}:
        return None
    sizes = zip(out.shape, tensors[0].shape, strict=True)
    grown = [dim for dim, (size, before) in enumerate(sizes) if size != before]
    if len(grown) != 1:
        return None
    return cat_window(tensors, *grown, out=out)


@window_of(aten.repeat, aten.tile)
def repeat_window(self: TensorSpec, *_: object, out: TensorSpec) -> Looks:
    """All places, repeatedly."""
    missing = len(out.shape) - len(self.shape)
    sizes = zip(self.shape, out.shape[missing:], strict=True)
    dims: list[Dim] = []
    for dim, (size, full) in enumerate(sizes, missing):
        if size == full:
            dims.append(here(dim))
        elif size == 1:
            dims.append(At(0))
        else:
            dims.append(Along(dim, repeated(size)))
    return (look(out, *dims),)


@window_of(aten.repeat_interleave.self_int)
def repeat_interleave_window(
    self: TensorSpec, repeats: int, dim: int | None = None, *, out: TensorSpec
) -> Looks:
    """Each place, repeatedly."""
    taps = drawn_out(repeats)
    if dim is None:
        repeat = Look((Along(0, taps),), out.shape)
        return (way(Reshape((self.numel,)), repeat),)
    at = wrapped(dim, len(self.shape))
    return (moved(self, {at: taps}, out),)


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
