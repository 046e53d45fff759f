"""Shapes of results of tensors that fill their memory row by row, as most do, or in another order.

A rule returns None for what it does not know, be it a layout or what torch may refuse: then torch
is asked, in Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import (
    FLOATS,
    Rule,
    is_row_by_row,
    layout_of,
    meta_empty,
    meta_like,
)
from torchscan.torch_versions import OpOverload, aten


def same_rows(source: Tensor, *_args: Any, **_kwargs: Any) -> Tensor | None:
    """Return one result per element, row by row.

    What torch makes of other layouts depends on the operator.
    """
    if source.dtype not in FLOATS or not is_row_by_row(source):
        return None
    return meta_empty(source.shape, source)


def powers(source: Tensor, exponent: float | complex) -> Tensor | None:
    """Return the result for real exponents."""
    return None if isinstance(exponent, complex) else same_rows(source)


def rolled(source: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor | None:
    """Return the result of rolling along each of these dimensions, or along all of them as one."""
    if any(not -source.dim() <= dim < source.dim() for dim in dims):
        return None
    return same_rows(source) if len(shifts) == (len(dims) or 1) else None


def softmax(source: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    """Return the result along a dimension, of the type of the source."""
    if dtype is not None or not -source.dim() <= dim < source.dim():
        return None
    return same_rows(source)


def decomposed_softmax(source: Tensor, dim: int, half_to_float: bool) -> Tensor | None:
    """Return the result of the softmax that autograd calls."""
    return None if half_to_float else softmax(source, dim)


def gradient_of_softmax(grad: Tensor, made: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    """Return the gradient of a softmax, in the type of its input."""
    alike = grad.shape == made.shape and grad.dtype is made.dtype is dtype and is_row_by_row(made)
    return softmax(grad, dim) if alike else None


def compared_with_number(source: Tensor, number: Any) -> Tensor | None:
    """Return true or false for each element."""
    if not is_row_by_row(source) or isinstance(number, complex) or source.is_complex():
        return None
    return torch.empty(source.shape, dtype=torch.bool, device="meta")


def have_same_layout(
    source: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    memory_format: torch.memory_format | None = None,
    **_elsewhere: Any,
) -> Tensor | None:
    """Return another tensor of this shape, of the same type or of another."""
    if source.layout is not torch.strided or layout not in (None, torch.strided):
        return None
    if memory_format in (None, torch.preserve_format):
        return meta_like(source, dtype=dtype)
    return torch.empty(
        source.shape, dtype=dtype or source.dtype, device="meta", memory_format=memory_format
    )


def gradient_of_highest(_grad: Tensor, source: Tensor, *_rest: Any) -> Tensor | None:
    """Return a gradient that is laid out as the source."""
    return same_rows(source)


def summed(
    source: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, **options: Any
) -> Tensor | None:
    """Return the result over some dimensions, or over all of them."""
    if source.dtype not in FLOATS or not is_row_by_row(source) or options.get("dtype") is not None:
        return None
    rank = source.dim()
    over = set(range(rank))
    if dims and all(-rank <= dim < rank for dim in dims):
        over = {dim % rank for dim in dims}
    if len(over) != (len(dims) if dims else rank):
        return None

    sizes = list(source.shape)
    for dim in sorted(over, reverse=True):
        if keepdim:
            sizes[dim] = 1
        else:
            del sizes[dim]
    return meta_empty(sizes, source)


def filled(source: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    """Return the result if the mask has the shape of the source or is broadcast to it."""
    missing = source.dim() - mask.dim()
    if source.dtype not in FLOATS or missing < 0:
        return None
    for size, full_size in zip(mask.shape, source.shape[missing:], strict=True):
        if size not in (1, full_size):
            return None
    if mask.dtype is not torch.bool or isinstance(value, complex):
        return None
    if math.isfinite(value) and abs(value) > torch.finfo(source.dtype).max:
        return None
    return same_rows(source)


def put_back(grad: Tensor, sizes: Sequence[int], *_where: Any) -> Tensor:
    """Return the gradient of the tensor from which a slice was taken."""
    return meta_empty(sizes, grad)


def picked(source: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Return rows at known places."""
    if len(indices) != 1:
        return None
    (places,) = indices
    if places is None or places.dtype is not torch.long:
        return None
    if source.dim() == 0 or not is_row_by_row(source) or not is_row_by_row(places):
        return None
    return meta_empty((*places.shape, *source.shape[1:]), source)


def catenated(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Return the concatenation of tensors of one rank and type, with equal other dimensions.

    Empty lists may be among the tensors.
    """
    dtype = tensors[0].dtype
    if any(each.dtype is not dtype for each in tensors):  # those of empty lists count, too
        return None
    tensors = [each for each in tensors if each.shape != (0,)] or tensors
    shape = _catenate_shapes([each.shape for each in tensors], dim)
    if shape is None or torch.contiguous_format not in map(layout_of, tensors):
        return None
    return meta_empty(shape, tensors[0])


def _catenate_shapes(shapes: Sequence[Sequence[int]], dim: int) -> list[int] | None:
    first, *others = shapes
    rank = len(first)
    if not -rank <= dim < rank or any(len(each) != rank for each in others):
        return None
    if any(0 in each for each in shapes):
        return None
    dim %= rank
    before, after = first[:dim], first[dim + 1 :]
    for each in others:
        if each[:dim] != before or each[dim + 1 :] != after:
            return None
    size = sum([each[dim] for each in shapes])
    return [*before, size, *after]


def stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Return tensors of one shape and type, joined along a new dimension."""
    first, *others = tensors
    rank = first.dim() + 1
    if not -rank <= dim < rank:
        return None
    for each in others:
        if each.shape != first.shape or each.dtype is not first.dtype:
            return None
    if not all(map(is_row_by_row, tensors)):
        return None
    shape = list(first.shape)
    shape.insert(dim % rank, len(tensors))
    return meta_empty(shape, first)


def pooled_to_size(source: Tensor, size: list[int]) -> Tensor | None:
    """Return images with a number of places along each axis."""
    if source.dtype not in FLOATS or source.dim() != 4 or len(size) != 2 or min(size) <= 0:
        return None
    batch, channels = source.shape[:2]
    if is_row_by_row(source):
        return meta_empty((batch, channels, *size), source)
    if list(size) != [1, 1] or layout_of(source) is not torch.channels_last:
        return None
    return torch.empty_strided(
        (batch, channels, 1, 1),
        (channels, 1, channels, channels),
        dtype=source.dtype,
        device="meta",
    )


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)
_LIKE = (aten.ones_like.default, aten.zeros_like.default, aten.empty_like.default)

_SOFTMAX_RULES: Mapping[OpOverload, Rule] = {
    aten.softmax.int: softmax,
    aten._safe_softmax.default: softmax,
    aten._softmax.default: decomposed_softmax,
    aten._log_softmax.default: decomposed_softmax,
    aten._softmax_backward_data.default: gradient_of_softmax,
    aten._log_softmax_backward_data.default: gradient_of_softmax,
}

_COMPARISON_RULES: Mapping[OpOverload, Rule] = {
    getattr(aten, name).Scalar: compared_with_number for name in _COMPARISONS
}

ROW_RULES: Mapping[OpOverload, Rule] = {
    aten.stack.default: stacked,
    aten.cat.default: catenated,
    aten.roll.default: rolled,
    aten.masked_fill.Scalar: filled,
    aten.index.Tensor: picked,
    aten.select_backward.default: put_back,
    aten.slice_backward.default: put_back,
    aten.pow.Tensor_Scalar: powers,
    **_SOFTMAX_RULES,
    aten.max_pool2d_with_indices_backward.default: gradient_of_highest,
    aten.adaptive_avg_pool2d.default: pooled_to_size,
    **_COMPARISON_RULES,
    **dict.fromkeys(_SUMS, summed),
    **dict.fromkeys(_LIKE, have_same_layout),
}
