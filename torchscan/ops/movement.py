"""Views, copies, allocations: no arithmetic. A view costs nothing; what is moved counts as traffic."""

from __future__ import annotations

import torch

from torchscan.ops.elementwise import per_input
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
