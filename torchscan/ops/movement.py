"""Copies, joins, padding, allocations: no arithmetic; whatever is moved counts as traffic."""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import per_input
from torchscan.ops.registry import declare_costless, traffic_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

# Copies, casts, joins.
declare_costless(
    "aten::contiguous",
    "aten::clone",
    "aten::to",
    "aten::_to_copy",
    "aten::type_as",
    "aten::cat",
    "aten::concat",
    "aten::concatenate",
    "aten::stack",
)
declare_costless(
    "aten::hstack",
    "aten::vstack",
    "aten::dstack",
    "aten::column_stack",
    "aten::repeat",
    "aten::tile",
    "aten::repeat_interleave",
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
declare_costless(
    "aten::roll",
    "aten::flip",
    "aten::fliplr",
    "aten::flipud",
    "aten::rot90",
    "aten::tril",
    "aten::triu",
)
declare_costless(
    "aten::pad",
    "aten::constant_pad_nd",
    "aten::reflection_pad1d",
    "aten::reflection_pad2d",
    "aten::reflection_pad3d",
)
declare_costless(
    "aten::replication_pad1d",
    "aten::replication_pad2d",
    "aten::replication_pad3d",
    "aten::_pad_circular",
)
declare_costless(
    "aten::im2col",
    "aten::pixel_shuffle",
    "aten::pixel_unshuffle",
    "aten::channel_shuffle",
    "aten::native_channel_shuffle",
)
declare_costless("aten::bernoulli", "aten::meshgrid", "aten::diag_embed", "aten::broadcast_tensors")
declare_costless(
    "aten::item",
    "aten::is_nonzero",
    "aten::_local_scalar_dense",
    "aten::_assert_async",
    "aten::_assert_tensor_metadata",
    "aten::_assert_scalar",
)
declare_costless(
    "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence",
    "aten::_pack_padded_sequence_backward",
    "aten::_reshape_from_tensor",
)
declare_costless(
    "aten::masked_select",
    "aten::to_dense",
    "aten::_to_dense",
    "aten::_to_sparse",
    "aten::to_sparse",
    "aten::coalesce",
    "aten::_coalesce",
)
declare_costless(
    "aten::_to_sparse_csr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc",
    "aten::to_mkldnn",
    "aten::mkldnn_reorder_conv2d_weight",
)
declare_costless(
    "aten::values",
    "aten::_values",
    "aten::indices",
    "aten::_indices",
    "aten::crow_indices",
    "aten::col_indices",
    "aten::sparse_mask",
    "aten::is_coalesced",
)
declare_costless(
    "aten::slice_scatter",
    "aten::select_scatter",
    "aten::diagonal_scatter",
    "aten::as_strided_scatter",
    "aten::block_diag",
    "aten::_chunk_cat",
)
declare_costless(
    "aten::_nested_tensor_from_tensor_list",
    "aten::_nested_tensor_from_mask",
    "aten::_nested_from_padded_tensor",
)
declare_costless(
    "aten::_nested_view_from_buffer",
    "aten::_nested_tensor_size",
    "aten::_nested_tensor_strides",
    "aten::_nested_tensor_storage_offsets",
)
declare_costless(
    "aten::nested_to_padded_tensor",
    "aten::_jagged_to_padded_dense_forward",
    "aten::_padded_dense_to_jagged_forward",
)
declare_costless(
    "aten::_nested_view_from_jagged",
    "aten::_nested_get_values",
    "aten::_nested_from_padded",
    "aten::to_padded_tensor",
)
declare_costless(
    "aten::_pin_memory",
    "aten::pin_memory",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::set_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::is_same_size",
)
declare_costless("aten::_resize_output", "aten::_lazy_clone", "aten::_fused_sdp_choice")

# Gradients of views: elements that were not read get zero. The gradient of padding adds up the
# copies.
declare_costless(
    "aten::select_backward",
    "aten::slice_backward",
    "aten::diagonal_backward",
    "aten::index_select_backward",
)
declare_costless(
    "aten::masked_scatter_backward", "aten::trace_backward", "aten::masked_select_backward"
)
per_input(
    1, "aten::unfold_backward", "aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward"
)
per_input(
    1,
    "aten::reflection_pad3d_backward",
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
)
per_input(1, "aten::replication_pad3d_backward", "aten::col2im")


declare_costless("aten::_has_same_storage_numel", "aten::_new_zeros_with_same_feature_meta")


@traffic_of(
    aten.empty,
    aten.empty_like,
    aten.new_empty,
    aten.empty_strided,
    aten.new_empty_strided,
    aten.empty_permuted,
)
def allocation(*, out: TensorSpec) -> Work:
    """Return no traffic: the operator that fills the memory writes."""
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
    """Return the traffic of writing the result; making random numbers is not arithmetic."""
    return Work(elements_read=0, bytes_read=0)


@traffic_of(aten.copy)
def copy(self: TensorSpec, src: TensorSpec, *, out: TensorSpec) -> Work:
    """Return the traffic of reading the source only and writing the target."""
    return Work(elements_read=self.numel, bytes_read=src.stored_bytes)


# copies between the device and the host: here the device's memory is read or written
declare_costless(
    "torchscan::copy_to_host", "torchscan::copy_to_device", "torchscan::update_from_host"
)
