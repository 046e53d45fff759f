"""Copies, joins, padding, allocations: no arithmetic; whatever is moved counts as traffic."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from torchscan.ops.elementwise import Output, per_input
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import declare_costless, pointwise, traffic_of, window_of
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

# Copies, casts, joins.
declare_costless(
    aten.contiguous,
    aten.clone,
    aten.to,
    aten._to_copy,
    aten.type_as,
    aten.cat,
    aten.concat,
    aten.concatenate,
    aten.stack,
)
declare_costless(
    aten.hstack,
    aten.vstack,
    aten.dstack,
    aten.column_stack,
    aten.repeat,
    aten.tile,
    aten.repeat_interleave,
)
declare_costless(
    "fsdp::all_gather_copy_in",
    "fsdp::split_with_sizes_copy",
    "fsdp::chunk_cat",
    "_c10d_functional::_wrap_tensor_autograd",
)
# FSDP2 of torch 2.15 concatenates gradients of several types, and orders the release of its buffers
# after a stream.
declare_costless("fsdp::chunk_cat_mixed_dtype", "fsdp::record_grad_output_stream")
declare_costless(aten.roll, aten.flip, aten.fliplr, aten.flipud, aten.rot90, aten.tril, aten.triu)
declare_costless(
    aten.pad,
    aten.constant_pad_nd,
    aten.reflection_pad1d,
    aten.reflection_pad2d,
    aten.reflection_pad3d,
)
declare_costless(
    aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d, aten._pad_circular
)
declare_costless(
    aten.im2col,
    aten.pixel_shuffle,
    aten.pixel_unshuffle,
    aten.channel_shuffle,
    aten.native_channel_shuffle,
)
declare_costless(aten.bernoulli, aten.meshgrid, aten.diag_embed, aten.broadcast_tensors)
declare_costless(
    aten.item,
    aten.is_nonzero,
    aten._local_scalar_dense,
    aten._assert_async,
    aten._assert_tensor_metadata,
    aten._assert_scalar,
)
declare_costless(
    aten._pack_padded_sequence,
    aten._pad_packed_sequence,
    aten._pack_padded_sequence_backward,
    aten._reshape_from_tensor,
)
declare_costless(
    aten.masked_select,
    aten.to_dense,
    aten._to_dense,
    aten._to_sparse,
    aten.to_sparse,
    aten.coalesce,
    aten._coalesce,
)
declare_costless(
    aten._to_sparse_csr,
    aten._to_sparse_csc,
    aten._to_sparse_bsr,
    aten._to_sparse_bsc,
    aten.to_mkldnn,
    aten.mkldnn_reorder_conv2d_weight,
)
declare_costless(
    aten.values,
    aten._values,
    aten.indices,
    aten._indices,
    aten.crow_indices,
    aten.col_indices,
    aten.sparse_mask,
    aten.is_coalesced,
)
declare_costless(
    aten.slice_scatter,
    aten.select_scatter,
    aten.diagonal_scatter,
    aten.as_strided_scatter,
    aten.block_diag,
    aten._chunk_cat,
)
declare_costless(
    aten._nested_tensor_from_tensor_list,
    aten._nested_tensor_from_mask,
    aten._nested_from_padded_tensor,
)
declare_costless(
    aten._nested_view_from_buffer,
    aten._nested_tensor_size,
    aten._nested_tensor_strides,
    aten._nested_tensor_storage_offsets,
)
declare_costless(
    aten.nested_to_padded_tensor,
    aten._jagged_to_padded_dense_forward,
    aten._padded_dense_to_jagged_forward,
)
declare_costless(
    aten._nested_view_from_jagged,
    aten._nested_get_values,
    aten._nested_from_padded,
    aten.to_padded_tensor,
)
declare_costless(
    aten._pin_memory,
    aten.pin_memory,
    aten.record_stream,
    aten.is_pinned,
    aten.set_,
    aten.resize_,
    aten.resize_as_,
    aten.is_same_size,
)
declare_costless(aten._resize_output, aten._lazy_clone, aten._fused_sdp_choice)

# Gradients of views: elements that were not read get zero. The gradient of padding adds up the
# copies.
declare_costless(
    aten.select_backward, aten.slice_backward, aten.diagonal_backward, aten.index_select_backward
)
declare_costless(aten.masked_scatter_backward, aten.trace_backward, aten.masked_select_backward)
per_input(1, aten.unfold_backward, aten.reflection_pad1d_backward, aten.reflection_pad2d_backward)
per_input(
    1,
    aten.reflection_pad3d_backward,
    aten.replication_pad1d_backward,
    aten.replication_pad2d_backward,
)
per_input(1, aten.replication_pad3d_backward, aten.col2im)


declare_costless(aten._has_same_storage_numel, aten._new_zeros_with_same_feature_meta)


@traffic_of(
    aten.empty,
    aten.empty_like,
    aten.new_empty,
    aten.empty_strided,
    aten.new_empty_strided,
    aten.empty_permuted,
)
def allocation(*, out: TensorSpec) -> Work:
    """Reads and writes nothing; the operator that fills it writes."""
    return Work(elements_read=0, bytes_read=0, elements_written=0, bytes_written=0)


@traffic_of(
    aten.zeros,
    aten.ones,
    aten.full,
    aten.arange,
    aten.linspace,
    aten.logspace,
    aten.eye,
    aten.scalar_tensor,
)
@traffic_of(
    aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full
)
@traffic_of(
    aten.rand,
    aten.randn,
    aten.randint,
    aten.randperm,
    aten.rand_like,
    aten.randn_like,
    aten.randint_like,
)
@traffic_of(
    aten.fill,
    aten.zero,
    aten.uniform,
    aten.normal,
    aten.random,
    aten.normal_functional,
    aten.log_normal,
)
@traffic_of(
    aten.exponential, aten.cauchy, aten.geometric, aten.poisson, aten.binomial, aten._standard_gamma
)
@traffic_of(
    aten._sample_dirichlet,
    aten.tril_indices,
    aten.triu_indices,
    aten._efficientzerotensor,
    aten.range,
)
@traffic_of(
    aten.hann_window,
    aten.hamming_window,
    aten.bartlett_window,
    aten.blackman_window,
    aten.kaiser_window,
)
@traffic_of(
    aten.fill_diagonal_,
    aten.fft_fftfreq,
    aten.fft_rfftfreq,
    aten._philox_normal,
    aten._philox_uniform,
)
def filling(*, out: TensorSpec) -> Work:
    """Reads no operand and writes the result; making random numbers isn't arithmetic."""
    return Work(elements_read=0, bytes_read=0)


@traffic_of(aten.copy)
def copy(self: TensorSpec, src: TensorSpec, *, out: TensorSpec) -> Work:
    """Reads the source only and writes the target."""
    return Work(elements_read=self.numel, bytes_read=src.stored_bytes)


# -- where they look -------------------------------------------------------------------------------

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
    return (
        (*[NOT_READ] * (len(inputs) - 1), broadcast(inputs[-1], out))
        if len(inputs) > 1
        else (NOT_READ,) * len(inputs)
    )


@window_of(aten.meshgrid)
def meshgrid_window(
    tensors: Sequence[TensorSpec], *, indexing: str = "ij", out: Output
) -> EachOutput:
    """Each result follows one operand along one dimension; "xy" swaps the first two."""
    results = out if isinstance(out, tuple) else (out,)
    others: list[Ways] = [NOT_READ] * len(tensors)
    dims = list(range(len(tensors)))
    if indexing == "xy":
        dims[:2] = dims[:2][::-1]
    looks = (
        look(each, *map(here, dims[at : at + len(tensors[at].shape)]))
        for at, each in enumerate(results)
    )
    return EachOutput(
        tuple((*others[:at], each, *others[at + 1 :]) for at, each in enumerate(looks))
    )


@window_of(aten.broadcast_tensors)
def broadcast_window(tensors: Sequence[TensorSpec], *, out: Output) -> EachOutput:
    """Each result is one operand, broadcast."""
    results = out if isinstance(out, tuple) else (out,)
    others: list[Ways] = [NOT_READ] * len(tensors)
    looks = (broadcast(spec, each) for spec, each in zip(tensors, results, strict=True))
    return EachOutput(
        tuple((*others[:at], each, *others[at + 1 :]) for at, each in enumerate(looks))
    )


@window_of(aten.rot90)
def rotation_window(
    self: TensorSpec, k: int = 1, dims: Sequence[int] = (0, 1), *, out: TensorSpec
) -> Looks:
    """Return the window of quarter turns, which swap two dimensions or read them backwards."""
    first_dim, second = (wrapped(dim, len(self.shape)) for dim in dims)
    backwards = [Taps(((self.shape[dim] - 1,),), -1) for dim in (first_dim, second)]
    turns: list[tuple[Dim, Dim]] = [
        (here(first_dim), here(second)),
        (here(second), Along(first_dim, backwards[1])),
        (Along(first_dim, backwards[0]), Along(second, backwards[1])),
        (Along(second, backwards[0]), here(first_dim)),
    ]
    turned = dict(zip((first_dim, second), turns[k % 4], strict=True))
    return (look(out, *(turned.get(dim, here(dim)) for dim in range(len(self.shape)))),)


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
    taps = {dim: shifted(-_shorter_way(shift, self.shape[dim])) for dim, shift in total.items()}
    return (moved(self, taps, out, "wraps"),)


def _shorter_way(shift: int, size: int) -> int:
    shift %= max(size, 1)
    return shift if 2 * shift <= size else shift - size


@window_of(aten.flip, aten.fliplr, aten.flipud)
def flip_window(self: TensorSpec, dims: Sequence[int] = (), *, out: TensorSpec) -> Looks | None:
    """From last place to first."""
    rank = len(self.shape)
    named = {wrapped(dim, rank) for dim in dims}
    if not named:
        return None
    return (moved(self, {dim: Taps(((self.shape[dim] - 1,),), -1) for dim in named}, out),)


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
    return moved(
        self, {last - at: shifted(-before) for at, before in enumerate(pad[::2])}, out, note
    )


@window_of(aten.cat, aten.concat, aten.concatenate, "quantized::cat")
def cat_window(
    tensors: Sequence[TensorSpec], dim: int = 0, *_: object, out: TensorSpec, **_kwargs: object
) -> Looks:
    """One operand after another; an empty vector adds nothing."""
    at = wrapped(dim, len(out.shape))
    looks = []
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
    grown = [
        at
        for at, size in enumerate(out.shape)
        if ranks == {len(out.shape)} and size != tensors[0].shape[at]
    ]
    return cat_window(tensors, grown[0], out=out) if len(grown) == 1 else None


@window_of(aten.repeat, aten.tile)
def repeat_window(self: TensorSpec, *_: object, out: TensorSpec) -> Looks:
    """All places, repeatedly."""
    missing = len(out.shape) - len(self.shape)
    sizes = zip(self.shape, out.shape[missing:], strict=True)
    dims: list[Dim] = []
    for dim, (size, full) in enumerate(sizes, missing):
        if size == full:
            dims.append(here(dim))
        else:
            dims.append(At(0) if size == 1 else Along(dim, repeated(size)))
    return (look(out, *dims),)


@window_of(aten.repeat_interleave.self_int)
def repeat_interleave_window(
    self: TensorSpec, repeats: int, dim: int | None = None, *, out: TensorSpec
) -> Looks:
    """Each place, repeatedly."""
    if dim is None:
        return (way(Reshape((self.numel,)), Look((Along(0, drawn_out(repeats)),), out.shape)),)
    return (moved(self, {wrapped(dim, len(self.shape)): drawn_out(repeats)}, out),)


@window_of(aten.pixel_shuffle)
def pixel_shuffle_window(self: TensorSpec, upscale_factor: int, *, out: TensorSpec) -> Looks:
    """Channels (c, y, x) become pixels (h, y) and (w, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = upscale_factor, len(batch)
    split = (*batch, channels // factor**2, factor, factor, height, width)
    order = [*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2]
    return (way(Reshape(split), permuted(split, order), Reshape(out.shape)),)


@window_of(aten.pixel_unshuffle)
def pixel_unshuffle_window(self: TensorSpec, downscale_factor: int, *, out: TensorSpec) -> Looks:
    """Pixels (h, y) and (w, x) become channels (c, y, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = downscale_factor, len(batch)
    split = (*batch, channels, height // factor, factor, width // factor, factor)
    order = [*range(rank + 1), rank + 2, rank + 4, rank + 1, rank + 3]
    return (way(Reshape(split), permuted(split, order), Reshape(out.shape)),)


@window_of(aten.channel_shuffle, aten.native_channel_shuffle)
def channel_shuffle_window(self: TensorSpec, groups: int, *, out: TensorSpec) -> Looks:
    """Channels (group, c) become (c, group)."""
    batch, channels, *rest = self.shape
    split = (batch, groups, channels // groups, *rest)
    return (
        way(
            Reshape(split), permuted(split, [0, 2, 1, *range(3, 3 + len(rest))]), Reshape(out.shape)
        ),
    )


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
    outer = len(self.shape) - 2
    kernel, spacing, pads, steps = (
        per_axis(value, 2) for value in (kernel_size, dilation, padding, stride)
    )
    dims = (
        *map(here, range(outer)),
        *(Along(outer + axis, shifted(-pad)) for axis, pad in enumerate(pads)),
    )
    padded = (
        *self.shape[:outer],
        *(size + 2 * pad for size, pad in zip(self.shape[outer:], pads, strict=True)),
    )
    windows: list[Step] = [
        Unfold(outer + axis, kernel[axis], steps[axis], spacing[axis]) for axis in range(2)
    ]
    counts = (
        (size - each * (taps - 1) - 1) // step + 1
        for size, taps, each, step in zip(padded[outer:], kernel, spacing, steps, strict=True)
    )
    unfolded = (*self.shape[:outer], *counts, *kernel)
    order = [*range(outer), outer + 2, outer + 3, outer, outer + 1]
    return (way(Look(dims, padded), *windows, permuted(unfolded, order), Reshape(out.shape)),)


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
    kernel, spacing, pads, steps = (
        per_axis(value, 2) for value in (kernel_size, dilation, padding, stride)
    )
    batch, outer = self.shape[:-2], len(self.shape) - 2
    counts = [
        (size + 2 * pad - each * (taps - 1) - 1) // step + 1
        for size, pad, each, taps, step in zip(
            output_size, pads, spacing, kernel, steps, strict=True
        )
    ]
    split = Reshape((*batch, out.shape[outer], *kernel, *counts))
    ways = []
    for tap in itertools.product(*map(range, kernel)):
        places = (
            Along(
                outer + 1 + axis, spread(1, steps[axis], pads[axis] - spacing[axis] * tap[axis], 1)
            )
            for axis in range(2)
        )
        ways.append(
            Way((split, Look((*map(here, range(outer + 1)), *map(At, tap), *places), out.shape)))
        )
    return (tuple(ways),)


# copies between the device and the host: here the device's memory is read or written
declare_costless(
    "torchscan::copy_to_host", "torchscan::copy_to_device", "torchscan::update_from_host"
)
