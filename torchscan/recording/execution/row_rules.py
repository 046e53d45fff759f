"""Shapes of what operators make of tensors that fill their memory row by row, as most do, or in another order.

A rule returns None for layouts that it does not know, and for whatever torch would refuse: then torch is asked, in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import is_row_by_row, layout_of, new


def same_rows(source: Tensor, *_args: Any, **_kwargs: Any) -> Tensor | None:
    """One result per element, by a function of which torch makes something else in each other layout."""
    return new(source.shape, source) if source.is_floating_point() and is_row_by_row(source) else None


def powers(source: Tensor, exponent: float | complex) -> Tensor | None:
    """Of real numbers."""
    return None if isinstance(exponent, complex) else same_rows(source)


def softmax(source: Tensor, _dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    """Of the type of the source."""
    return same_rows(source) if dtype is None else None


def compared(source: Tensor, _number: complex) -> Tensor | None:
    """With a number: true or false for each element."""
    return torch.empty(source.shape, dtype=torch.bool, device="meta") if is_row_by_row(source) else None


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


def picked(source: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Rows at known places."""
    places = indices[0] if len(indices) == 1 else None
    if places is None or places.dtype is not torch.long or not (source.dim() and is_row_by_row(source)):
        return None
    return new((*places.shape, *source.shape[1:]), source) if is_row_by_row(places) else None


def catenated(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Of one rank and type, and of equal sizes along all other dimensions; empty lists may stand among them."""
    tensors = [each for each in tensors if each.shape != (0,)] or tensors
    first, *others = tensors
    rank = first.dim()
    dim = dim % rank if rank and -rank <= dim < rank else rank
    alike = all(each.dim() == rank and each.dtype is first.dtype for each in others) and all(each.numel() for each in tensors)
    if dim == rank or not alike or all(layout_of(each) is not torch.contiguous_format for each in tensors):
        return None
    before, after = first.shape[:dim], first.shape[dim + 1 :]
    if any(each.shape[:dim] != before or each.shape[dim + 1 :] != after for each in others):
        return None
    return new((*before, sum([each.shape[dim] for each in tensors]), *after), first)


def pooled_to_size(source: Tensor, size: list[int]) -> Tensor | None:
    """Images, with so many places along each axis."""
    fits = source.is_floating_point() and source.dim() == 4 and len(size) == 2 and min(size) > 0
    if fits and is_row_by_row(source):
        return new((*source.shape[:2], *size), source)
    if not fits or list(size) != [1, 1] or layout_of(source) is not torch.channels_last:
        return None
    batch, channels = source.shape[:2]
    return torch.empty_strided((batch, channels, 1, 1), (channels, 1, channels, channels), dtype=source.dtype, device="meta")


def highest(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor | None:
    """The highest of each window of images."""
    return None if ceil_mode else _pooled(source, kernel, stride or kernel, padding, dilation)


def averaged(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *_counts: Any,
) -> Tensor | None:
    """The average of each window of images."""
    return None if ceil_mode or _counts[1:] else _pooled(source, kernel, stride or kernel, padding, (1,))


def _pooled(source: Tensor, kernel: Sequence[int], *steps: Sequence[int]) -> Tensor | None:
    images = source.dim() == 4 and source.is_floating_point() and is_row_by_row(source)
    kernel, padding = _along_axes(kernel, 2), _along_axes(steps[1], 2)
    sizes = windows_along(source.shape[2:], kernel, *steps) if images else None
    if sizes is None or any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        return None
    return new((*source.shape[:2], *sizes), source)


def convolution(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor | None:
    """Of images: channels last where they are in the source or in the weight."""
    filters = weight.shape[0]
    fits = source.dim() > 2 and weight.dim() == source.dim() and groups > 0 and filters % groups == 0
    fits = fits and 0 != source.shape[1] == weight.shape[1] * groups and (bias is None or bias.shape == weight.shape[:1])
    sizes = windows_along(source.shape[2:], weight.shape[2:], stride, padding, dilation) if fits else None
    if sizes is None:
        return None
    shape = (source.shape[0], filters, *sizes)
    layouts = {layout_of(each) for each in (source, weight)} - {torch.contiguous_format}
    return torch.empty(shape, dtype=source.dtype, device="meta", memory_format=next(iter(layouts), torch.contiguous_format))


def windows_along(sizes: Sequence[int], kernel: Sequence[int], *steps: Sequence[int]) -> list[int] | None:
    """``(size + 2·padding − dilation·(kernel − 1) − 1) div stride + 1`` places along each axis, if there are any."""
    stride, padding, dilation = (_along_axes(each, len(sizes)) for each in steps)
    if any(len(each) != len(sizes) for each in (kernel, stride, padding, dilation)):
        return None
    if min(stride) < 1 or min(padding) < 0 or min(dilation) < 1:
        return None
    places = zip(sizes, kernel, stride, padding, dilation, strict=True)
    found = [(size + 2 * pad - wide * (window - 1) - 1) // step + 1 for size, window, step, pad, wide in places]
    return found if min(found) > 0 else None


def _along_axes(each: Sequence[int], count: int) -> list[int]:
    return list(each) * count if len(each) == 1 else list(each)
