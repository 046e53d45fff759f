"""Views, copies, allocations, indexing: no arithmetic. A view costs nothing; what is moved counts as traffic."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchscan.ops.registry import Work, free, traffic_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten

# Views; some of them copy where a view cannot be had.
free(aten.view, aten.reshape, aten.reshape_as, aten.view_as, aten._unsafe_view, aten._reshape_alias, aten.unsafe_chunk)
free(aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze, aten.expand, aten.expand_as, aten.ravel)
free(aten.permute, aten.transpose, aten.t, aten.mT, aten.mH, aten.adjoint, aten.numpy_T, aten.swapaxes, aten.swapdims)
free(aten.movedim, aten.moveaxis, aten.select, aten.slice, aten.narrow, aten.diagonal, aten.unfold, aten.as_strided)
free(aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split, aten.unbind, aten.unsafe_split)
free(aten.hsplit, aten.vsplit, aten.dsplit, aten.unsafe_split_with_sizes)
free(aten.view_as_real, aten.view_as_complex, aten._conj, aten.conj, aten.resolve_conj, aten.resolve_neg, aten.real, aten.imag)
free(aten.detach, aten.alias, aten.lift_fresh, aten.lift, aten.lift_fresh_copy, aten.positive, aten.data)

# Copies, casts, joins.
free(aten.contiguous, aten.clone, aten.to, aten._to_copy, aten.type_as, aten.cat, aten.concat, aten.concatenate, aten.stack)
free(aten.hstack, aten.vstack, aten.dstack, aten.column_stack, aten.repeat, aten.tile, aten.repeat_interleave)
free(aten.roll, aten.flip, aten.fliplr, aten.flipud, aten.rot90, aten.tril, aten.triu)
free(aten.pad, aten.constant_pad_nd, aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
free(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d, aten._pad_circular)
free(aten.im2col, aten.pixel_shuffle, aten.pixel_unshuffle, aten.channel_shuffle, aten.native_channel_shuffle)
free(aten.bernoulli, aten.meshgrid, aten.complex, aten.diag_embed, aten.broadcast_tensors)
free(aten.item, aten.is_nonzero)
free(aten._pack_padded_sequence, aten._pad_packed_sequence)


@traffic_of(aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided)
def allocation(*, out: TensorSpec) -> Work:
    """Nothing is read; writing is left to whoever fills it."""
    return Work(elements_read=0, bytes_read=0, writes=False)


@traffic_of(aten.zeros, aten.ones, aten.full, aten.arange, aten.linspace, aten.logspace, aten.eye, aten.scalar_tensor)
@traffic_of(aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full)
@traffic_of(aten.rand, aten.randn, aten.randint, aten.randperm, aten.rand_like, aten.randn_like, aten.randint_like)
@traffic_of(aten.fill, aten.zero, aten.uniform, aten.normal_, aten.random)
@traffic_of(aten.tril_indices, aten.triu_indices)
def filling(*, out: TensorSpec) -> Work:
    """Written, from no operand's values."""
    return Work(elements_read=0, bytes_read=0)


@traffic_of(aten.copy)
def copy(self: TensorSpec, src: TensorSpec, *, out: TensorSpec) -> Work:
    """Reads the source only; the target is written."""
    return Work(elements_read=self.numel, bytes_read=src.stored_bytes)


@traffic_of(aten.embedding)
def embedding(weight: TensorSpec, indices: TensorSpec, *, out: TensorSpec) -> Work:
    """Reads the indices and one row for each, at most the whole table."""
    rows = min(out.numel, weight.numel) * weight.dtype.itemsize
    return Work(elements_read=indices.numel + out.numel, bytes_read=rows + indices.stored_bytes)


@traffic_of(aten.take_along_dim)
def take_along_dim(self: TensorSpec, indices: TensorSpec, *, out: TensorSpec) -> Work:
    """Reads the indices and one element for each output."""
    return _picked(self, [indices], out)


@traffic_of(aten.gather, aten.index_select)
def gather(self: TensorSpec, dim: int, index: TensorSpec, *, out: TensorSpec) -> Work:
    """Reads the indices and one element for each output."""
    return _picked(self, [index], out)


@traffic_of(aten.index)
def index(self: TensorSpec, indices: Sequence[TensorSpec | None], *, out: TensorSpec) -> Work:
    """Reads the indices and one element for each output."""
    return _picked(self, [each for each in indices if each is not None], out)


def _picked(source: TensorSpec, indices: Sequence[TensorSpec], out: TensorSpec) -> Work:
    return Work(
        elements_read=out.numel + sum(each.numel for each in indices),
        bytes_read=min(out.numel, source.numel) * source.dtype.itemsize + sum(each.stored_bytes for each in indices),
    )
