"""Memory layouts of the results of element-wise operators, and tensors without data in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: gives the results of an operator for its operands, or None where it does not fit
Rule = Callable[..., Tensor | tuple[Tensor | None, ...] | None]
#: types that every operator supports
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def is_row_by_row(tensor: Tensor) -> bool:
    """Return whether a tensor fills its memory row by row, with the strides of a new tensor."""
    if not tensor.is_contiguous() or tensor.numel() == 0:
        return False
    if 1 not in tensor.shape:
        return True
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= size
    return True


def meta_empty(shape: Sequence[int], of_type: Tensor) -> Tensor:
    """Return a meta tensor of this shape, row by row, and of the type of another."""
    return torch.empty(shape, dtype=of_type.dtype, device="meta")


def meta_like(source: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return a meta tensor laid out as this one.

    Where the source does not fill its memory, its dimensions are in the same order.
    ``torch.empty_like`` tells that in Python, and imports a computer algebra system for it.
    """
    dtype = dtype or source.dtype
    if is_row_by_row(source):
        return torch.empty(source.shape, dtype=dtype, device="meta")
    strides: Sequence[int] = source.stride()
    if not _fills_memory(source):
        strides = _steps(source.shape, _order(source.shape, [strides]))
    return torch.empty_strided(source.shape, strides, dtype=dtype, device="meta")


def like_input(source: Tensor, *_args: Any, **_kwargs: Any) -> Tensor | None:
    """Return one result per element, laid out as the input is."""
    if source.dtype not in FLOATS:
        return None
    if is_row_by_row(source):
        return torch.empty(source.shape, dtype=source.dtype, device="meta")
    return meta_like(source)


def _fills_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has each place once, in some order and without gaps."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def layout_of(*tensors: Tensor) -> torch.memory_format:
    """Return the layout with channels last if the strides of any images say so, else row by row.

    torch decides this in C++, which Python cannot query.
    """
    for tensor in tensors:
        shape, strides = tensor.shape, tensor.stride()
        rank = len(shape)
        if rank not in _CHANNELS_LAST or strides[1] == 0 or 0 in shape:
            continue
        least = 0
        for dim in (1, *range(rank - 1, 1, -1)):
            if strides[dim] < least:
                break
            least = strides[dim] * shape[dim]
        else:
            if strides[0] >= least and least != strides[1]:  # ambiguous: row by row
                return _CHANNELS_LAST[rank]
    return torch.contiguous_format


def strides_of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor of this shape."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))


def broadcast(left: Tensor, right: Tensor) -> Tensor | None:
    """Return the result for two tensors of one type and of equal sizes, where both have a size.

    Dimensions may be missing, or have one place.
    """
    shape = left.shape if left.shape == right.shape else _common_shape(left.shape, right.shape)
    if shape is None or 0 in shape or left.dtype not in FLOATS:
        return None
    is_dense = 1 not in shape and left.is_contiguous() and right.is_contiguous()
    if is_dense or len(shape) < 2:
        return meta_empty(shape, left)
    strides = _strides(shape, (left, right))
    return torch.empty_strided(shape, strides, dtype=left.dtype, device="meta")


def _common_shape(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    wide, narrow = (one, other) if len(one) >= len(other) else (other, one)
    if 0 in wide or 0 in narrow:
        # A size of 1 is not stretched to 0, but shrunk: torch's own function knows how.
        return None
    missing = len(wide) - len(narrow)
    pairs = list(zip(wide[missing:], narrow, strict=True))
    if any(first != second and 1 not in (first, second) for first, second in pairs):
        return None
    return *wide[:missing], *(max(pair) for pair in pairs)


def _strides(shape: Sequence[int], operands: Sequence[Tensor]) -> Sequence[int]:
    """Return the strides of an element-wise result, which follow the first operand most."""
    if all(each.shape == shape for each in operands):
        if all(each.is_contiguous() for each in operands):
            return strides_of_rows(shape)
        layout = torch.channels_last
        if len(shape) == 4 and all(each.is_contiguous(memory_format=layout) for each in operands):
            return _steps(shape, (1, 3, 2, 0))
    stretched = [_stretch_strides(each, shape) for each in operands]
    return _steps(shape, _order(shape, stretched))


def _stretch_strides(operand: Tensor, shape: Sequence[int]) -> list[int]:
    """Return the strides of an operand, 0 where it is stretched."""
    missing = len(shape) - operand.dim()
    strides = [0] * missing
    for size, stride, full in zip(operand.shape, operand.stride(), shape[missing:], strict=True):
        strides.append(0 if size == 1 != full else stride)
    return strides


def _order(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """Return the dimensions, the innermost first.

    They are sorted by insertion: a dimension that no operand tells from another stays behind it.
    """
    order = list(reversed(range(len(shape))))
    for position in range(1, len(order)):
        at = position
        for before in range(position - 1, -1, -1):
            further_out = _compare(order[before], order[at], shape, strides)
            if further_out < 0:
                break
            if further_out:
                order[before], order[at] = order[at], order[before]
                at = before
    return order


def _compare(one: int, other: int, shape: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """Return a number above zero if ``one`` is further out, and zero if no operand tells."""
    for each in strides:
        if each[one] and each[other]:
            if each[one] != each[other]:
                return 1 if each[one] > each[other] else -1
            if shape[one] > shape[other]:
                return 1
    return 0


def _steps(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim], step = step, step * shape[dim]
    return strides
