"""Shapes of pooling and convolution: a window that moves along the axes of images."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import (
    FLOATS,
    Rule,
    is_row_by_row,
    layout_of,
    meta_empty,
)
from torchscan.torch_versions import OpOverload, aten


def highest(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor | None:
    """Return the highest value of each window of images."""
    return None if ceil_mode else _pooled(source, kernel, stride or kernel, padding, dilation)


def highest_and_where(source: Tensor, *arguments: Any) -> tuple[Tensor, Tensor] | None:
    """Return the highest value of each window, and its place."""
    values = highest(source, *arguments)
    if values is None:
        return None
    return values, torch.empty(values.shape, dtype=torch.long, device="meta")


def averaged(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *_counts: Any,
) -> Tensor | None:
    """Return the average of each window of images."""
    has_divisor = len(_counts) > 1
    if ceil_mode or has_divisor:
        return None
    return _pooled(source, kernel, stride or kernel, padding, (1,))


def _pooled(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor | None:
    if source.dim() != 4 or source.dtype not in FLOATS or not is_row_by_row(source):
        return None
    sizes = windows_along(source.shape[2:], kernel, stride, padding, dilation)
    if sizes is None:
        return None
    axes = zip(sizes, cycle(kernel), cycle(padding), strict=False)
    if any(2 * pad > width for _, width, pad in axes):
        return None
    return meta_empty((*source.shape[:2], *sizes), source)


def convolve(
    ranks: Collection[int],
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor | None:
    """Return the result for images of one of these numbers of dimensions.

    It has channels last where they are in the source or in the weight.
    """
    filters = weight.shape[0]
    if source.dim() not in ranks or weight.dim() != source.dim():
        return None
    if source.dtype not in FLOATS:
        return None
    if min(groups, filters) <= 0 or filters % groups != 0:
        return None
    if not 0 != source.shape[1] == weight.shape[1] * groups:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    sizes = windows_along(source.shape[2:], weight.shape[2:], stride, padding, dilation)
    if sizes is None:
        return None
    shape = (source.shape[0], filters, *sizes)
    layout = layout_of(source, weight)
    return torch.empty(shape, dtype=source.dtype, device="meta", memory_format=layout)


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
    """Return the result along one to three axes of a convolution that is not transposed."""
    if transposed:
        return None
    return convolve((3, 4, 5), source, weight, bias, stride, padding, dilation, groups)


def convolution_backward(
    grad: Tensor, source: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *rest: Any
) -> tuple[Tensor | None, ...] | None:
    """Return the gradients that are asked for."""
    of_source, of_weight, of_bias = rest[-1]
    if grad.dtype not in FLOATS or (of_bias and bias_sizes is None):
        return None
    layout = layout_of(source, weight)
    gradients: list[Tensor | None] = []
    for operand, is_wanted in ((source, of_source), (weight, of_weight)):
        gradient = None
        if is_wanted:
            gradient = torch.empty(
                operand.shape, dtype=grad.dtype, device="meta", memory_format=layout
            )
        gradients.append(gradient)
    return *gradients, meta_empty(bias_sizes or (), grad) if of_bias else None


def _in_layout_of_operands(op: OpOverload) -> Rule:
    """Return a rule for convolutions, which work channels-last where input or weight does.

    So are the results; torch takes no notice.
    """

    def rule(*args: Any, **kwargs: Any) -> Any:
        source, weight = args[:2]
        layout = layout_of(source, weight)
        if layout is torch.contiguous_format:
            return None

        def to_layout(result: Any) -> Any:
            if not isinstance(result, Tensor) or result.dim() < 2:
                return result
            return torch.empty_like(result, memory_format=layout)

        results = op(*args, **kwargs)
        if isinstance(results, tuple):
            return tuple(map(to_layout, results))
        return to_layout(results)

    return rule


def _first_that_fits(*rules: Rule) -> Rule:
    """Return a rule that gives the first result of several rules."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        for each in rules:
            result = each(*args, **kwargs)
            if result is not None:
                return result
        return None

    return rule


def windows_along(
    sizes: Sequence[int], kernel: Sequence[int], *steps: Sequence[int]
) -> list[int] | None:
    """Return the number of places along each axis, or None if there are none along one.

    An option with one value has it along all axes. The number is
    ``(size + 2·padding − dilation·(kernel − 1) − 1) div stride + 1``.
    """
    if any(len(each) not in (1, len(sizes)) for each in (kernel, *steps)):
        return None
    counts = []
    axes = zip(sizes, cycle(kernel), *map(cycle, steps), strict=False)
    for size, width, step, pad, gap in axes:
        if min(width, step, gap) < 1 or pad < 0:
            return None
        margin = size + 2 * pad - gap * (width - 1) - 1
        counts.append(margin // step + 1)
    return counts if min(counts) > 0 else None


WINDOW_RULES: Mapping[OpOverload, Rule] = {
    aten.conv_transpose2d.input: _in_layout_of_operands(aten.conv_transpose2d.input),
    aten.conv_transpose3d.input: _in_layout_of_operands(aten.conv_transpose3d.input),
    aten.conv2d.default: partial(convolve, (4,)),
    aten.conv3d.default: partial(convolve, (5,)),
    aten.convolution.default: _first_that_fits(
        convolution, _in_layout_of_operands(aten.convolution.default)
    ),
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d.default: highest,
    aten.max_pool2d_with_indices.default: highest_and_where,
    aten.avg_pool2d.default: averaged,
}
