"""Shapes of what operators make of tensors that fill their memory row by row, as most do, or in another order.

A rule returns None for what it does not know, be it a layout or what torch may refuse: then torch is asked, in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import (
    has_floats,
    is_row_by_row,
    layout_of,
    meta_empty,
    meta_like,
)


def same_rows(source: Tensor, *_args: Any, **_kwargs: Any) -> Tensor | None:
    """One result per element, row by row; what torch makes of other layouts depends on the operator."""
    return (
        meta_empty(source.shape, source) if has_floats(source) and is_row_by_row(source) else None
    )


def powers(source: Tensor, exponent: float | complex) -> Tensor | None:
    """Return the result for real exponents."""
    return None if isinstance(exponent, complex) else same_rows(source)


def rolled(source: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor | None:
    """Return the result of rolling along each of these dimensions, or along all of them as one."""
    fits = all(-source.dim() <= dim < source.dim() for dim in dims) and len(shifts) == (
        len(dims) or 1
    )
    return same_rows(source) if fits else None


def softmax(source: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    """Along a dimension, of the type of the source."""
    return same_rows(source) if dtype is None and -source.dim() <= dim < source.dim() else None


def decomposed_softmax(source: Tensor, dim: int, half_to_float: bool) -> Tensor | None:
    """Return the result of the softmax that autograd calls."""
    return None if half_to_float else softmax(source, dim)


def gradient_of_softmax(grad: Tensor, made: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    """Return the gradient of a softmax, in the type of its input."""
    alike = grad.shape == made.shape and grad.dtype is made.dtype is dtype and is_row_by_row(made)
    return softmax(grad, dim) if alike else None


def compared_with_number(source: Tensor, number: Any) -> Tensor | None:
    """True or false for each element."""
    fits = is_row_by_row(source) and not isinstance(number, complex) and not source.is_complex()
    return torch.empty(source.shape, dtype=torch.bool, device="meta") if fits else None


def have_same_layout(
    source: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    memory_format: torch.memory_format | None = None,
    **_elsewhere: Any,
) -> Tensor | None:
    """Another tensor of this shape, of the same type or of another."""
    if source.layout is not torch.strided or layout not in (None, torch.strided):
        return None
    if memory_format in (None, torch.preserve_format):
        return meta_like(source, dtype=dtype)
    return torch.empty(
        source.shape, dtype=dtype or source.dtype, device="meta", memory_format=memory_format
    )


def gradient_of_highest(_grad: Tensor, source: Tensor, *_rest: Any) -> Tensor | None:
    """Laid out as the source."""
    return same_rows(source)


def summed(
    source: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, **options: Any
) -> Tensor | None:
    """Over some dimensions, or all of them."""
    rank = source.dim()
    over = (
        {dim % rank for dim in dims}
        if dims and rank and all(-rank <= dim < rank for dim in dims)
        else set(range(rank))
    )
    fits = has_floats(source) and is_row_by_row(source) and options.get("dtype") is None
    if not fits or len(over) != (len(dims) if dims else rank):
        return None
    sizes = [
        1 if dim in over else size
        for dim, size in enumerate(source.shape)
        if keepdim or dim not in over
    ]
    return meta_empty(sizes, source)


def filled(source: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    """Return the result if the mask has the shape of the source or is broadcast to it."""
    missing = source.dim() - mask.dim()
    stretches = missing >= 0 and all(
        one in (1, full) for one, full in zip(mask.shape, source.shape[missing:], strict=True)
    )
    return (
        same_rows(source)
        if stretches and mask.dtype is torch.bool and _holds(source.dtype, value)
        else None
    )


def _holds(dtype: torch.dtype, value: Any) -> bool:
    """Return whether a real number is infinite or in the range of this type."""
    return not isinstance(value, complex) and (
        not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    )


def put_back(grad: Tensor, sizes: Sequence[int], *_where: Any) -> Tensor:
    """The gradient of what a slice was taken of."""
    return meta_empty(sizes, grad)


def picked(source: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Rows at known places."""
    places = indices[0] if len(indices) == 1 else None
    if (
        places is None
        or places.dtype is not torch.long
        or not (source.dim() and is_row_by_row(source))
    ):
        return None
    return meta_empty((*places.shape, *source.shape[1:]), source) if is_row_by_row(places) else None


def catenated(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Return the concatenation of tensors of one rank and type, with equal other dimensions.

    Empty lists may be among the tensors.
    """
    alike = all(
        each.dtype is tensors[0].dtype for each in tensors
    )  # those of empty lists count, too
    tensors = [each for each in tensors if each.shape != (0,)] or tensors
    first, *others = tensors
    rank = first.dim()
    dim = dim % rank if rank and -rank <= dim < rank else rank
    alike = (
        alike
        and all(each.dim() == rank for each in others)
        and all(each.numel() for each in tensors)
    )
    if (
        dim == rank
        or not alike
        or all(layout_of(each) is not torch.contiguous_format for each in tensors)
    ):
        return None
    before, after = first.shape[:dim], first.shape[dim + 1 :]
    if any(each.shape[:dim] != before or each.shape[dim + 1 :] != after for each in others):
        return None
    return meta_empty((*before, sum([each.shape[dim] for each in tensors]), *after), first)


def stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Tensors of one shape and type, along a dimension of their own."""
    first, *others = tensors
    rank = first.dim() + 1
    alike = all(each.shape == first.shape and each.dtype is first.dtype for each in others)
    if not alike or not -rank <= dim < rank or not all(map(is_row_by_row, tensors)):
        return None
    shape = list(first.shape)
    shape.insert(dim % rank, len(tensors))
    return meta_empty(shape, first)


def pooled_to_size(source: Tensor, size: list[int]) -> Tensor | None:
    """Images, with so many places along each axis."""
    fits = has_floats(source) and source.dim() == 4 and len(size) == 2 and min(size) > 0
    if fits and is_row_by_row(source):
        return meta_empty((*source.shape[:2], *size), source)
    if not fits or list(size) != [1, 1] or layout_of(source) is not torch.channels_last:
        return None
    batch, channels = source.shape[:2]
    return torch.empty_strided(
        (batch, channels, 1, 1),
        (channels, 1, channels, channels),
        dtype=source.dtype,
        device="meta",
    )


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


def highest_and_where(source: Tensor, *arguments: Any) -> tuple[Tensor, Tensor] | None:
    """And the place of each."""
    made = highest(source, *arguments)
    return (
        None if made is None else (made, torch.empty(made.shape, dtype=torch.long, device="meta"))
    )


def averaged(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *_counts: Any,
) -> Tensor | None:
    """The average of each window of images."""
    return (
        None
        if ceil_mode or _counts[1:]
        else _pooled(source, kernel, stride or kernel, padding, (1,))
    )


def _pooled(source: Tensor, kernel: Sequence[int], *steps: Sequence[int]) -> Tensor | None:
    images = source.dim() == 4 and has_floats(source) and is_row_by_row(source)
    kernel, padding = _along_axes(kernel, 2), _along_axes(steps[1], 2)
    sizes = windows_along(source.shape[2:], kernel, *steps) if images else None
    if sizes is None or any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        return None
    return meta_empty((*source.shape[:2], *sizes), source)


def convolution(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
) -> Tensor | None:
    """Along one to three axes: channels last where they are in the source or in the weight."""
    filters = weight.shape[0]
    fits = (
        not transposed
        and source.dim() in (3, 4, 5)
        and weight.dim() == source.dim()
        and has_floats(source)
    )
    fits = (
        fits
        and groups > 0
        and filters > 0
        and filters % groups == 0
        and 0 != source.shape[1] == weight.shape[1] * groups
    )
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    sizes = (
        windows_along(source.shape[2:], weight.shape[2:], stride, padding, dilation)
        if fits
        else None
    )
    if sizes is None:
        return None
    shape, layout = (source.shape[0], filters, *sizes), layout_of_both(source, weight)
    return torch.empty(shape, dtype=source.dtype, device="meta", memory_format=layout)


def convolution_of(axes: int) -> Callable[..., Tensor | None]:
    """Along so many axes, as it is called from Python."""

    def rule(
        source: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Tensor | None:
        if source.dim() != axes + 2:
            return None
        return convolution(source, weight, bias, stride, padding, dilation, False, (), groups)

    return rule


def convolution_backward(
    grad: Tensor, source: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *rest: Any
) -> tuple[Tensor | None, ...] | None:
    """The gradients that are asked for."""
    of_source, of_weight, of_bias = rest[-1]
    if not has_floats(grad) or (of_bias and bias_sizes is None):
        return None
    layout = layout_of_both(source, weight)
    made = [
        torch.empty(each.shape, dtype=grad.dtype, device="meta", memory_format=layout)
        if asked
        else None
        for each, asked in ((source, of_source), (weight, of_weight))
    ]
    return *made, meta_empty(bias_sizes or (), grad) if of_bias else None


def layout_of_both(source: Tensor, weight: Tensor) -> torch.memory_format:
    """With channels last, if either has them there."""
    found = layout_of(source)
    return layout_of(weight) if found is torch.contiguous_format else found


def windows_along(
    sizes: Sequence[int], kernel: Sequence[int], *steps: Sequence[int]
) -> list[int] | None:
    """``(size + 2·padding − dilation·(kernel − 1) − 1) div stride + 1`` places along each axis, if there are any."""
    stride, padding, dilation = (_along_axes(each, len(sizes)) for each in steps)
    if any(len(each) != len(sizes) for each in (kernel, stride, padding, dilation)):
        return None
    if min(kernel) < 1 or min(stride) < 1 or min(padding) < 0 or min(dilation) < 1:
        return None
    places = zip(sizes, kernel, stride, padding, dilation, strict=True)
    found = [
        (size + 2 * pad - wide * (window - 1) - 1) // step + 1
        for size, window, step, pad, wide in places
    ]
    return found if min(found) > 0 else None


def _along_axes(each: Sequence[int], count: int) -> list[int]:
    return list(each) * count if len(each) == 1 else list(each)
