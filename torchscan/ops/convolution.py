"""Convolutions of any dimension, grouped, dilated, transposed.

Each output element of a convolution is a sum over its window: ``k = kernel elements · C_in / groups`` products. In a transposed
convolution it is each *input* element that meets ``kernel elements · C_out / groups`` weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchscan.ops.registry import Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten
Padding = Sequence[int] | str


@cost_of(aten.conv1d, aten.conv2d, aten.conv3d)
def convolution(
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: Sequence[int] = (1,),
    padding: Padding = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
    *,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k; as many elements read, besides weights and bias. ``weight`` is (C_out, C_in/groups, *kernel)."""
    window = math.prod(weight.shape[1:])
    return _windowed(out.numel * window, weight, bias)


@cost_of(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
def transposed_convolution(
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
    *,
    out: TensorSpec,
) -> Work:
    """MACs = numel(input) · kernel · C_out/groups, and as many elements read. ``weight`` is (C_in, C_out/groups, *kernel)."""
    window = math.prod(weight.shape[1:])
    return _windowed(input.numel * window, weight, bias)


@cost_of(aten.convolution, aten._convolution)
def general_convolution(
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    *_: object,
    out: TensorSpec,
) -> Work:
    """One of the two above, as ``transposed`` says."""
    products = (input if transposed else out).numel * math.prod(weight.shape[1:])
    return _windowed(products, weight, bias)


@cost_of(aten.conv_tbc)
def time_batch_channel_convolution(
    self: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec,
    pad: int = 0,
    *,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · kernel · C_in. ``weight`` is (kernel, C_in, C_out)."""
    return _windowed(out.numel * math.prod(weight.shape[:2]), weight, bias)


def _windowed(products: int, weight: TensorSpec, bias: TensorSpec | None) -> Work:
    return Work(macs=products, elements_read=products + weight.numel + (bias.numel if bias is not None else 0))
