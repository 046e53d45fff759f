"""Views: other shapes, orders and parts of the same memory.

They cost nothing; some copy if a view is impossible.
"""

from __future__ import annotations

from torchscan.ops.registry import declare_costless

declare_costless(
    "aten::view",
    "aten::reshape",
    "aten::reshape_as",
    "aten::view_as",
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::unsafe_chunk",
)
declare_costless(
    "aten::flatten",
    "aten::unflatten",
    "aten::squeeze",
    "aten::unsqueeze",
    "aten::expand",
    "aten::expand_as",
    "aten::ravel",
)
declare_costless(
    "aten::permute",
    "aten::transpose",
    "aten::t",
    "aten::mT",
    "aten::mH",
    "aten::adjoint",
    "aten::numpy_T",
    "aten::swapaxes",
    "aten::swapdims",
)
declare_costless(
    "aten::movedim",
    "aten::moveaxis",
    "aten::select",
    "aten::slice",
    "aten::narrow",
    "aten::diagonal",
    "aten::unfold",
    "aten::as_strided",
)
declare_costless(
    "aten::split",
    "aten::split_with_sizes",
    "aten::chunk",
    "aten::tensor_split",
    "aten::unbind",
    "aten::unsafe_split",
)
declare_costless("aten::hsplit", "aten::vsplit", "aten::dsplit", "aten::unsafe_split_with_sizes")
declare_costless(
    "aten::_conj", "aten::conj", "aten::resolve_conj", "aten::resolve_neg", "aten::_neg_view"
)
declare_costless(
    "aten::detach",
    "aten::alias",
    "aten::lift_fresh",
    "aten::lift",
    "aten::lift_fresh_copy",
    "aten::positive",
    "aten::data",
)

# Operators that copy instead.
declare_costless(
    "aten::view_copy",
    "aten::expand_copy",
    "aten::permute_copy",
    "aten::transpose_copy",
    "aten::slice_copy",
    "aten::select_copy",
)
declare_costless(
    "aten::squeeze_copy",
    "aten::unsqueeze_copy",
    "aten::t_copy",
    "aten::unfold_copy",
    "aten::as_strided_copy",
    "aten::detach_copy",
)
declare_costless(
    "aten::alias_copy",
    "aten::diagonal_copy",
    "aten::split_copy",
    "aten::split_with_sizes_copy",
    "aten::unbind_copy",
)
declare_costless(
    "aten::view_as_real_copy",
    "aten::view_as_complex_copy",
    "aten::_reshape_copy",
    "aten::narrow_copy",
    "aten::_neg_view_copy",
)
