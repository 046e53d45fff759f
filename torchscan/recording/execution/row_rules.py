"""Shapes of what operators make of tensors that fill their memory row by row, as most do.

A rule returns None for any other layout, and for whatever torch would refuse: then torch is asked, in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def is_row_by_row(tensor: Tensor) -> bool:
    """Whether it fills its memory row by row, with the strides that a new tensor of this shape has."""
    if not tensor.is_contiguous() or tensor.numel() == 0:
        return False
    return 1 not in tensor.shape or tensor.stride() == _steps_of_rows(tensor.shape)


def _steps_of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))


def new(shape: Sequence[int], like: Tensor) -> Tensor:
    """A meta tensor of this shape, and of the type of another."""
    return torch.empty(shape, dtype=like.dtype, device="meta")


def same_rows(source: Tensor, *_args: Any, **_kwargs: Any) -> Tensor | None:
    """One result per element, by a function of which torch makes something else in each other layout."""
    return new(source.shape, source) if source.is_floating_point() and is_row_by_row(source) else None


def rows_of_type(
    source: Tensor, *, dtype: torch.dtype | None = None, memory_format: torch.memory_format | None = None, **_elsewhere: Any
) -> Tensor | None:
    """Another tensor of this shape, of the same type or of another."""
    fits = is_row_by_row(source) and memory_format in (None, torch.preserve_format, torch.contiguous_format)
    return torch.empty(source.shape, dtype=dtype or source.dtype, device="meta") if fits else None


def summed(source: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, **options: Any) -> Tensor | None:
    """Over some dimensions, or all of them."""
    rank = source.dim()
    over = {dim % rank for dim in dims} if dims and rank and all(-rank <= dim < rank for dim in dims) else set(range(rank))
    fits = source.is_floating_point() and is_row_by_row(source) and options.get("dtype") is None
    if not fits or len(over) != (len(dims) if dims else rank):
        return None
    sizes = [1 if dim in over else size for dim, size in enumerate(source.shape) if keepdim or dim not in over]
    return new(sizes, source)


def filled(source: Tensor, mask: Tensor, *_value: Any) -> Tensor | None:
    """Where a mask is true that has the shape of the source, or stretches to it."""
    missing = source.dim() - mask.dim()
    stretches = missing >= 0 and all(one in (1, full) for one, full in zip(mask.shape, source.shape[missing:], strict=True))
    return same_rows(source) if stretches else None


def catenated(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Of one rank and type, and of equal sizes along all other dimensions."""
    first, *others = tensors
    rank = first.dim()
    dim = dim % rank if rank and -rank <= dim < rank else rank
    alike = all(each.dim() == rank and each.dtype is first.dtype for each in others) and all(map(is_row_by_row, tensors))
    if dim == rank or not alike:
        return None
    before, after = first.shape[:dim], first.shape[dim + 1 :]
    if any(each.shape[:dim] != before or each.shape[dim + 1 :] != after for each in others):
        return None
    return new((*before, sum([each.shape[dim] for each in tensors]), *after), first)


def pooled_to_size(source: Tensor, size: list[int]) -> Tensor | None:
    """Images, with so many places along each axis."""
    fits = source.is_floating_point() and source.dim() == 4 and len(size) == 2 and min(size) > 0 and is_row_by_row(source)
    return new((*source.shape[:2], *size), source) if fits else None


def convolution(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor | None:
    """Of images, ``(size + 2·padding − dilation·(kernel − 1) − 1) div stride + 1`` places along each axis."""
    axes = source.dim() - 2
    filters = weight.shape[0]
    fits = axes > 0 and weight.dim() == source.dim() and groups > 0 and filters % groups == 0
    fits = fits and source.shape[1] == weight.shape[1] * groups and (bias is None or bias.shape == weight.shape[:1])
    if not (fits and is_row_by_row(source) and is_row_by_row(weight)):
        return None
    steps = [list(each) * axes if len(each) == 1 else list(each) for each in (stride, padding, dilation)]
    if any(len(each) != axes for each in steps) or min(steps[0]) < 1 or min(steps[1]) < 0 or min(steps[2]) < 1:
        return None
    places = zip(source.shape[2:], weight.shape[2:], *steps, strict=True)
    sizes = [(size + 2 * pad - wide * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, wide in places]
    return new((source.shape[0], filters, *sizes), source) if min(sizes) > 0 else None


def broadcast(left: Tensor, right: Tensor) -> Tensor | None:
    """Two tensors; of single places anywhere but in front, torch's strides are a matter of which comes first."""
    if not (left.is_floating_point() and is_row_by_row(left) and is_row_by_row(right)):
        return None
    wide, narrow = (left, right) if left.dim() >= right.dim() else (right, left)
    missing = wide.dim() - narrow.dim()
    sizes = list(zip(wide.shape[missing:], narrow.shape, strict=True))
    if any(one != other and 1 not in (one, other) for one, other in sizes):
        return None
    shape = (*wide.shape[:missing], *(max(pair) for pair in sizes))
    return new(shape, left) if 1 not in shape[shape.count(1) :] else None
