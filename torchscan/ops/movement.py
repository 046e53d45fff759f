"""Views, copies, allocations: no arithmetic. A view costs nothing; what is moved counts as traffic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from torchscan.ops.elementwise import Output, per_input
from torchscan.ops.registry import Work, free, pointwise, traffic_of, window_of
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
    drawn_out,
    here,
    look,
    per_axis,
    permuted,
    repeated,
    shifted,
    spread,
    way,
    wrapped,
)
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten

# Views; some of them copy where a view cannot be had.
free(aten.view, aten.reshape, aten.reshape_as, aten.view_as, aten._unsafe_view, aten._reshape_alias, aten.unsafe_chunk)
free(aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze, aten.expand, aten.expand_as, aten.ravel)
free(aten.permute, aten.transpose, aten.t, aten.mT, aten.mH, aten.adjoint, aten.numpy_T, aten.swapaxes, aten.swapdims)
free(aten.movedim, aten.moveaxis, aten.select, aten.slice, aten.narrow, aten.diagonal, aten.unfold, aten.as_strided)
free(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unbind, aten.unsafe_split)
free(aten.hsplit, aten.vsplit, aten.dsplit, aten.unsafe_split_with_sizes)
free(aten._conj, aten.conj, aten.resolve_conj, aten.resolve_neg, aten._neg_view)
free(aten.detach, aten.alias, aten.lift_fresh, aten.lift, aten.lift_fresh_copy, aten.positive, aten.data)

# Copies, casts, joins.
free(aten.contiguous, aten.clone, aten.to, aten._to_copy, aten.type_as, aten.cat, aten.concat, aten.concatenate, aten.stack)
free(aten.hstack, aten.vstack, aten.dstack, aten.column_stack, aten.repeat, aten.tile, aten.repeat_interleave)
free(aten.roll, aten.flip, aten.fliplr, aten.flipud, aten.rot90, aten.tril, aten.triu)
free(aten.pad, aten.constant_pad_nd, aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
free(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d, aten._pad_circular)
free(aten.im2col, aten.pixel_shuffle, aten.pixel_unshuffle, aten.channel_shuffle, aten.native_channel_shuffle)
free(aten.bernoulli, aten.meshgrid, aten.diag_embed, aten.broadcast_tensors)
free(
    aten.item, aten.is_nonzero, aten._local_scalar_dense, aten._assert_async, aten._assert_tensor_metadata, aten._assert_scalar
)
free(aten._pack_padded_sequence, aten._pad_packed_sequence, aten._pack_padded_sequence_backward, aten._reshape_from_tensor)
free(aten.masked_select, aten.to_dense, aten._to_dense, aten._to_sparse, aten.to_sparse, aten.coalesce, aten._coalesce)
free(
    aten._to_sparse_csr,
    aten._to_sparse_csc,
    aten._to_sparse_bsr,
    aten._to_sparse_bsc,
    aten.to_mkldnn,
    aten.mkldnn_reorder_conv2d_weight,
)
free(
    aten.values,
    aten._values,
    aten.indices,
    aten._indices,
    aten.crow_indices,
    aten.col_indices,
    aten.sparse_mask,
    aten.is_coalesced,
)
free(aten.slice_scatter, aten.select_scatter, aten.diagonal_scatter, aten.as_strided_scatter, aten.block_diag, aten._chunk_cat)
free(aten._nested_tensor_from_tensor_list, aten._nested_tensor_from_mask, aten._nested_from_padded_tensor)
free(aten._nested_view_from_buffer, aten._nested_tensor_size, aten._nested_tensor_strides, aten._nested_tensor_storage_offsets)
free(aten.nested_to_padded_tensor, aten._jagged_to_padded_dense_forward, aten._padded_dense_to_jagged_forward)
free(aten._nested_view_from_jagged, aten._nested_get_values, aten._nested_from_padded, aten.to_padded_tensor)
free(
    aten._pin_memory,
    aten.pin_memory,
    aten.record_stream,
    aten.is_pinned,
    aten.set_,
    aten.resize_,
    aten.resize_as_,
    aten.is_same_size,
)
free(aten._resize_output, aten._lazy_clone, aten._fused_sdp_choice)
free(
    "aten::view_copy",
    "aten::expand_copy",
    "aten::permute_copy",
    "aten::transpose_copy",
    "aten::slice_copy",
    "aten::select_copy",
)
free(
    "aten::squeeze_copy",
    "aten::unsqueeze_copy",
    "aten::t_copy",
    "aten::unfold_copy",
    "aten::as_strided_copy",
    "aten::detach_copy",
)
free("aten::alias_copy", "aten::diagonal_copy", "aten::split_copy", "aten::split_with_sizes_copy", "aten::unbind_copy")
free(
    "aten::view_as_real_copy", "aten::view_as_complex_copy", "aten::_reshape_copy", "aten::narrow_copy", "aten::_neg_view_copy"
)

# Gradients of views: what was not looked at is zero. Of padding the copies are added up.
free(aten.select_backward, aten.slice_backward, aten.diagonal_backward, aten.index_select_backward)
free(aten.masked_scatter_backward, aten.trace_backward, aten.masked_select_backward)
per_input(1, aten.unfold_backward, aten.reflection_pad1d_backward, aten.reflection_pad2d_backward)
per_input(1, aten.reflection_pad3d_backward, aten.replication_pad1d_backward, aten.replication_pad2d_backward)
per_input(1, aten.replication_pad3d_backward, aten.col2im)


free(aten._has_same_storage_numel, aten._new_zeros_with_same_feature_meta)


@traffic_of(aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided, aten.empty_permuted)
def allocation(*, out: TensorSpec) -> Work:
    """Nothing is read; writing is left to whoever fills it."""
    return Work(elements_read=0, bytes_read=0, elements_written=0, bytes_written=0)


@traffic_of(aten.zeros, aten.ones, aten.full, aten.arange, aten.linspace, aten.logspace, aten.eye, aten.scalar_tensor)
@traffic_of(aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full)
@traffic_of(aten.rand, aten.randn, aten.randint, aten.randperm, aten.rand_like, aten.randn_like, aten.randint_like)
@traffic_of(aten.fill, aten.zero, aten.uniform, aten.normal, aten.random, aten.normal_functional, aten.log_normal)
@traffic_of(aten.exponential, aten.cauchy, aten.geometric, aten.poisson, aten.binomial, aten._standard_gamma)
@traffic_of(aten._sample_dirichlet, aten.tril_indices, aten.triu_indices, aten._efficientzerotensor, aten.range)
@traffic_of(aten.hann_window, aten.hamming_window, aten.bartlett_window, aten.blackman_window, aten.kaiser_window)
@traffic_of(aten.fill_diagonal_, aten.fft_fftfreq, aten.fft_rfftfreq, aten._philox_normal, aten._philox_uniform)
def filling(*, out: TensorSpec) -> Work:
    """Written, from no operand's values; random numbers count as made, not computed."""
    return Work(elements_read=0, bytes_read=0)


@traffic_of(aten.copy)
def copy(self: TensorSpec, src: TensorSpec, *, out: TensorSpec) -> Work:
    """Reads the source only; the target is written."""
    return Work(elements_read=self.numel, bytes_read=src.stored_bytes)


# -- where they look -----------------------------------------------------------------------------------------------------

Sizes = Sequence[int] | int

pointwise(aten.contiguous, aten.clone, aten.to, aten._to_copy, aten.detach, aten.alias, aten.lift_fresh, aten.lift)
pointwise(aten.lift_fresh_copy, aten.positive, aten.data, aten._conj, aten.conj, aten.resolve_conj, aten.resolve_neg)
pointwise(aten._neg_view, aten.tril, aten.triu, aten.bernoulli, "aten::detach_copy", "aten::alias_copy", aten.to_dense)
pointwise(aten._lazy_clone, aten.pin_memory, aten._pin_memory, "quantized::relu")


@window_of(aten.empty_like, aten.new_empty, aten.new_empty_strided, aten.zeros_like, aten.ones_like, aten.full_like)
@window_of(aten.new_zeros, aten.new_ones, aten.rand_like, aten.randn_like, aten.randint_like, aten.zero, aten.uniform)
@window_of(aten.normal_, aten.random, aten.exponential, aten.cauchy, aten.geometric, aten.log_normal, aten.fill.Scalar)
@window_of(aten._has_same_storage_numel, aten._new_zeros_with_same_feature_meta, aten.bernoulli_.float)
def nothing_is_read(*, inputs: tuple[TensorSpec, ...], out: Output) -> Looks:
    """A shape is taken over, and nothing else."""
    return (NOT_READ,) * len(inputs)


@window_of(aten.fill.Tensor, aten.copy, aten.new_full, aten.full)
def overwritten_window(*, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks:
    """Of what is written to nothing is left; what is written is the last operand."""
    return (*[NOT_READ] * (len(inputs) - 1), broadcast(inputs[-1], out)) if len(inputs) > 1 else (NOT_READ,) * len(inputs)


@window_of(aten.view, aten.reshape, aten._unsafe_view, aten._reshape_alias, aten.flatten, aten.unflatten, aten.ravel)
@window_of(aten.reshape_as, aten.view_as, aten.squeeze, aten.unsqueeze, "aten::view_copy", "aten::squeeze_copy")
@window_of("aten::unsqueeze_copy", "aten::_reshape_copy")
def reshape_window(self: TensorSpec, *others: object, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks | None:
    """The same elements in the same order; seen as another type of another size they are not."""
    return (way(Reshape(out.shape)), *[NOT_READ] * (len(inputs) - 1)) if self.numel == out.numel else None


@window_of(aten.expand, aten.expand_as, aten.type_as, "aten::expand_copy")
def expand_window(self: TensorSpec, *, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks:
    """What has one place along a dimension is read there."""
    return (broadcast(self, out), *[NOT_READ] * (len(inputs) - 1))


@window_of(aten.permute, "aten::permute_copy")
def permute_window(self: TensorSpec, dims: Sequence[int], *, out: TensorSpec) -> Looks:
    """The dimensions in another order."""
    return (way(permuted(self, dims)),)


@window_of(aten.transpose.int, aten.swapaxes, aten.swapdims, "aten::transpose_copy")
def transpose_window(self: TensorSpec, dim0: int, dim1: int, *, out: TensorSpec) -> Looks:
    """Two dimensions change places."""
    rank = len(self.shape)
    order = list(range(rank))
    one, other = wrapped(dim0, rank), wrapped(dim1, rank)
    if rank:
        order[one], order[other] = other, one
    return (way(permuted(self, order)),)


@window_of(aten.t, aten.mT, aten.mH, aten.adjoint, "aten::t_copy")
def matrix_transpose_window(self: TensorSpec, *, out: TensorSpec) -> Looks:
    """The last two dimensions change places."""
    return transpose_window(self, -1, -2, out=out) if len(self.shape) > 1 else (way(permuted(self, range(len(self.shape)))),)


@window_of(aten.numpy_T)
def reverse_dims_window(self: TensorSpec, *, out: TensorSpec) -> Looks:
    """The dimensions the other way round."""
    return (way(permuted(self, range(len(self.shape))[::-1])),)


@window_of(aten.movedim.intlist, aten.moveaxis.intlist)
def movedim_window(self: TensorSpec, source: Sequence[int], destination: Sequence[int], *, out: TensorSpec) -> Looks:
    """Some dimensions go to other places; the others keep their order."""
    rank = len(self.shape)
    moved = {wrapped(to, rank): wrapped(of, rank) for of, to in zip(source, destination, strict=True)}
    others = (dim for dim in range(rank) if dim not in moved.values())
    return (way(permuted(self, [moved[at] if at in moved else next(others) for at in range(rank)])),)


@window_of(aten.select.int, "aten::select_copy")
def select_window(self: TensorSpec, dim: int, index: int, *, out: TensorSpec) -> Looks:
    """One place of a dimension."""
    return (_selected(self, wrapped(dim, len(self.shape)), index, out),)


@window_of(aten.unbind.int, "aten::unbind_copy")
def unbind_window(self: TensorSpec, dim: int = 0, *, out: Output) -> EachOutput:
    """Each place of a dimension."""
    results = out if isinstance(out, tuple) else (out,)
    at = wrapped(dim, len(self.shape))
    return EachOutput(tuple((_selected(self, at, index, each),) for index, each in enumerate(results)))


def _selected(self: TensorSpec, dim: int, index: int, out: TensorSpec) -> Ways:
    place = At(index % self.shape[dim] if self.shape[dim] else 0)
    return look(out, *(place if at == dim else here(at - (at > dim)) for at in range(len(self.shape))))


@window_of(aten.slice.Tensor, "aten::slice_copy")
def slice_window(
    self: TensorSpec, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1, *, out: TensorSpec
) -> Looks:
    """From a place on, in steps."""
    at = wrapped(dim, len(self.shape))
    first_place, _, _ = slice(start, end).indices(self.shape[at])
    return (_moved(self, {at: shifted(first_place, step)}, out),)


@window_of(aten.narrow, "aten::narrow_copy")
def narrow_window(self: TensorSpec, dim: int, start: int, length: int, *, out: TensorSpec) -> Looks:
    """From a place on."""
    return slice_window(self, dim, start, None, out=out)


@window_of(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unsafe_split, aten.unsafe_chunk)
@window_of(aten.unsafe_split_with_sizes, "aten::split_copy", "aten::split_with_sizes_copy")
def split_window(self: TensorSpec, *_: object, dim: int = 0, out: Output) -> EachOutput:
    """Each piece from where the one before it ends."""
    results = out if isinstance(out, tuple) else (out,)
    at = wrapped(dim, len(self.shape))
    starts = itertools.accumulate((each.shape[at] for each in results[:-1]), initial=0)
    return EachOutput(tuple((_moved(self, {at: shifted(start)}, each),) for start, each in zip(starts, results, strict=True)))


@window_of(aten.diagonal, "aten::diagonal_copy")
def diagonal_window(self: TensorSpec, offset: int = 0, dim1: int = 0, dim2: int = 1, *, out: TensorSpec) -> Looks:
    """The same place of two dimensions, one of them shifted."""
    rank = len(self.shape)
    last = len(out.shape) - 1
    starts = {wrapped(dim1, rank): max(-offset, 0), wrapped(dim2, rank): max(offset, 0)}
    others = iter(range(last))
    dims = (Along(last, shifted(starts[dim])) if dim in starts else here(next(others)) for dim in range(rank))
    return (look(out, *dims),)


@window_of(aten.unfold, "aten::unfold_copy")
def unfold_window(self: TensorSpec, dimension: int, size: int, step: int, *, out: TensorSpec) -> Looks:
    """The windows of a dimension, which come last."""
    return (way(Unfold(wrapped(dimension, len(self.shape)), size, step)),) if self.shape else (None,)


@window_of(aten.hsplit, aten.vsplit, aten.dsplit)
def split_along_window(self: TensorSpec, *_: object, out: Output) -> EachOutput:
    """The same along the dimension in which the pieces are not as large as the whole."""
    pieces = out if isinstance(out, tuple) else (out,)
    dims = (dim for dim, size in enumerate(self.shape) if any(each.shape[dim] != size for each in pieces))
    return split_window(self, dim=next(dims, 0), out=out)


@window_of(aten.meshgrid.default)
def meshgrid_window(tensors: Sequence[TensorSpec], *, out: Output) -> EachOutput:
    """Each result follows one operand along one dimension."""
    results = out if isinstance(out, tuple) else (out,)
    others: list[Ways] = [NOT_READ] * len(tensors)
    looks = (look(each, *([here(dim)] if tensors[dim].shape else [])) for dim, each in enumerate(results))
    return EachOutput(tuple((*others[:at], each, *others[at + 1 :]) for at, each in enumerate(looks)))


@window_of(aten.broadcast_tensors)
def broadcast_window(tensors: Sequence[TensorSpec], *, out: Output) -> EachOutput:
    """Each result is its operand."""
    results = out if isinstance(out, tuple) else (out,)
    others: list[Ways] = [NOT_READ] * len(tensors)
    looks = (broadcast(spec, each) for spec, each in zip(tensors, results, strict=True))
    return EachOutput(tuple((*others[:at], each, *others[at + 1 :]) for at, each in enumerate(looks)))


@window_of(aten.rot90)
def rotation_window(self: TensorSpec, k: int = 1, dims: Sequence[int] = (0, 1), *, out: TensorSpec) -> Looks:
    """By quarter turns: the two dimensions change places, or are read backwards, or both."""
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


def _moved(self: TensorSpec, taps: dict[int, Taps], out: TensorSpec, note: Note | None = None) -> Ways:
    dims = tuple(Along(dim, taps[dim]) if dim in taps else here(dim) for dim in range(len(self.shape)))
    return way(Look(dims, out.shape), note=note)


@window_of(aten.roll)
def roll_window(self: TensorSpec, shifts: Sizes, dims: Sizes = (), *, out: TensorSpec) -> Looks:
    """Shifted, what leaves at one side coming in at the other: by the shorter way."""
    at = [dims] if isinstance(dims, int) else dims
    by = [shifts] if isinstance(shifts, int) else shifts
    if not at:
        return (None,)
    rank = len(self.shape)
    taps = {wrapped(dim, rank): shifted(-_shorter_way(shift, self.shape[dim])) for dim, shift in zip(at, by, strict=True)}
    return (_moved(self, taps, out, "wraps"),)


def _shorter_way(shift: int, size: int) -> int:
    shift %= max(size, 1)
    return shift if 2 * shift <= size else shift - size


@window_of(aten.flip, aten.fliplr, aten.flipud)
def flip_window(self: TensorSpec, dims: Sequence[int] = (), *, out: TensorSpec) -> Looks | None:
    """From the last place to the first."""
    rank = len(self.shape)
    named = {wrapped(dim, rank) for dim in dims}
    return (_moved(self, {dim: Taps(((self.shape[dim] - 1,),), -1) for dim in named}, out),) if named else None


@window_of(aten.constant_pad_nd)
def constant_pad_window(self: TensorSpec, pad: Sequence[int], *_: object, out: TensorSpec) -> Looks:
    """Shifted by what is put before it."""
    return (_padded(self, pad, out, None),)


@window_of(aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
@window_of(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d)
def mirrored_pad_window(self: TensorSpec, padding: Sequence[int], *, out: TensorSpec) -> Looks:
    """Shifted likewise; the border itself is put around it."""
    return (_padded(self, padding, out, "padded"),)


@window_of(aten._pad_circular)
def circular_pad_window(self: TensorSpec, pad: Sequence[int], *, out: TensorSpec) -> Looks:
    """Shifted likewise; the far side is put around it."""
    return (_padded(self, pad, out, "wraps"),)


@window_of(aten.pad)
def pad_window(self: TensorSpec, pad: Sequence[int], mode: str = "constant", *_: object, out: TensorSpec) -> Looks:
    """One of the three."""
    notes: dict[str, Note | None] = {"constant": None, "circular": "wraps"}
    return (_padded(self, pad, out, notes.get(mode, "padded")),)


def _padded(self: TensorSpec, pad: Sequence[int], out: TensorSpec, note: Note | None) -> Ways:
    """The numbers are for the last dimension first: before, behind."""
    last = len(self.shape) - 1
    return _moved(self, {last - at: shifted(-before) for at, before in enumerate(pad[::2])}, out, note)


@window_of(aten.cat, aten.concat, aten.concatenate, "quantized::cat")
def cat_window(tensors: Sequence[TensorSpec], dim: int = 0, *_: object, out: TensorSpec, **_kwargs: object) -> Looks:
    """One piece after the other; an empty vector is none."""
    at = wrapped(dim, len(out.shape))
    joined = [len(each.shape) == len(out.shape) for each in tensors]
    sizes = (each.shape[at] if is_joined else 0 for each, is_joined in zip(tensors, joined, strict=True))
    ends = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return tuple(
        way(Piece(at, start, stop)) if is_joined else NOT_READ for (start, stop), is_joined in zip(ends, joined, strict=True)
    )


@window_of(aten.stack)
def stack_window(tensors: Sequence[TensorSpec], dim: int = 0, *, out: TensorSpec) -> Looks:
    """A place each in a new dimension."""
    at = wrapped(dim, len(out.shape))
    shape = tuple(1 if place == at else size for place, size in enumerate(out.shape))
    added = Look(tuple(here(place + (place >= at)) for place in range(len(shape) - 1)), shape)
    return tuple(way(added, Piece(at, index, index + 1)) for index in range(len(tensors)))


@window_of(aten.hstack, aten.vstack)
def joined_window(tensors: Sequence[TensorSpec], *, inputs: tuple[TensorSpec, ...], out: TensorSpec) -> Looks | None:
    """Along the one dimension that grows, if they have as many."""
    ranks = {len(each.shape) for each in tensors}
    grown = [at for at, size in enumerate(out.shape) if ranks == {len(out.shape)} and size != tensors[0].shape[at]]
    return cat_window(tensors, grown[0], out=out) if len(grown) == 1 else None


@window_of(aten.repeat, aten.tile)
def repeat_window(self: TensorSpec, *_: object, out: TensorSpec) -> Looks:
    """The same places over and over again."""
    missing = len(out.shape) - len(self.shape)
    sizes = zip(self.shape, out.shape[missing:], strict=True)
    return (look(out, *(_repeated(at + missing, size, full) for at, (size, full) in enumerate(sizes))),)


def _repeated(dim: int, size: int, full: int) -> Dim:
    return here(dim) if size == full else At(0) if size == 1 else Along(dim, repeated(size))


@window_of(aten.repeat_interleave.self_int)
def repeat_interleave_window(self: TensorSpec, repeats: int, dim: int | None = None, *, out: TensorSpec) -> Looks:
    """Each place several times."""
    if dim is None:
        return (way(Reshape((self.numel,)), Look((Along(0, drawn_out(repeats)),), out.shape)),)
    return (_moved(self, {wrapped(dim, len(self.shape)): drawn_out(repeats)}, out),)


@window_of(aten.pixel_shuffle)
def pixel_shuffle_window(self: TensorSpec, upscale_factor: int, *, out: TensorSpec) -> Looks:
    """Channels (c, y, x) become pixels (h, y) and (w, x)."""
    *batch, channels, height, width = self.shape
    factor, rank = upscale_factor, len(batch)
    split = TensorSpec((*batch, channels // factor**2, factor, factor, height, width), self.dtype, ())
    order = [*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2]
    return (way(Reshape(split.shape), permuted(split, order), Reshape(out.shape)),)


@window_of(aten.pixel_unshuffle)
def pixel_unshuffle_window(self: TensorSpec, downscale_factor: int, *, out: TensorSpec) -> Looks:
    """The same the other way round."""
    *batch, channels, height, width = self.shape
    factor, rank = downscale_factor, len(batch)
    split = TensorSpec((*batch, channels, height // factor, factor, width // factor, factor), self.dtype, ())
    order = [*range(rank + 1), rank + 2, rank + 4, rank + 1, rank + 3]
    return (way(Reshape(split.shape), permuted(split, order), Reshape(out.shape)),)


@window_of(aten.channel_shuffle, aten.native_channel_shuffle)
def channel_shuffle_window(self: TensorSpec, groups: int, *, out: TensorSpec) -> Looks:
    """Channels (group, c) become (c, group)."""
    batch, channels, *rest = self.shape
    split = TensorSpec((batch, groups, channels // groups, *rest), self.dtype, ())
    return (way(Reshape(split.shape), permuted(split, [0, 2, 1, *range(3, 3 + len(rest))]), Reshape(out.shape)),)


@window_of(aten.im2col)
def im2col_window(
    self: TensorSpec, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes, *, out: TensorSpec
) -> Looks:
    """The windows of both axes, as channels: (c, ky, kx), (y, x)."""
    outer = len(self.shape) - 2
    kernel, spacing, pads, steps = (per_axis(value, 2) for value in (kernel_size, dilation, padding, stride))
    dims = (*map(here, range(outer)), *(Along(outer + axis, shifted(-pad)) for axis, pad in enumerate(pads)))
    padded = (*self.shape[:outer], *(size + 2 * pad for size, pad in zip(self.shape[outer:], pads, strict=True)))
    windows: list[Step] = [Unfold(outer + axis, kernel[axis], steps[axis], spacing[axis]) for axis in range(2)]
    counts = (
        (size - each * (taps - 1) - 1) // step + 1
        for size, taps, each, step in zip(padded[outer:], kernel, spacing, steps, strict=True)
    )
    unfolded = TensorSpec((*self.shape[:outer], *counts, *kernel), self.dtype, ())
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
    """Each tap of the kernel by itself: place y looks at the window ``(y + p − d·k) / s``, where that is a whole number."""
    kernel, spacing, pads, steps = (per_axis(value, 2) for value in (kernel_size, dilation, padding, stride))
    batch, outer = self.shape[:-2], len(self.shape) - 2
    counts = [
        (size + 2 * pad - each * (taps - 1) - 1) // step + 1
        for size, pad, each, taps, step in zip(output_size, pads, spacing, kernel, steps, strict=True)
    ]
    split = Reshape((*batch, out.shape[outer], *kernel, *counts))
    ways = []
    for tap in itertools.product(*map(range, kernel)):
        places = (
            Along(outer + 1 + axis, spread(1, steps[axis], pads[axis] - spacing[axis] * tap[axis], 1)) for axis in range(2)
        )
        ways.append(Way((split, Look((*map(here, range(outer + 1)), *map(At, tap), *places), out.shape))))
    return (tuple(ways),)
