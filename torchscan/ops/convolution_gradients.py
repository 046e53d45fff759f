"""Gradients of convolutions: each takes as many products as the forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.convolution import multiply_kernel
from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import Output
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of(aten.convolution_backward, aten.convolution_backward_overrideable)
def convolution_backward(
    grad_output: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    *args: object,
    output_mask: Sequence[bool] = (True, True, True),
    transposed: bool = False,
    out: tuple[TensorSpec, ...],
    **_kwargs: object,
) -> Work:
    """MACs = P · (input wanted + weight wanted), P those of the forward pass.

    FLOPs + numel(grad) − C_out for the sums of the bias. Each gradient takes as many products, and
    reads P elements, besides the other tensors.
    """
    products = multiply_kernel(input if transposed else grad_output, weight)
    macs = products * (3 if weight.dtype.is_complex else 1)
    for_input, for_weight, for_bias = output_mask
    wanted = flops = read = 0
    if for_input:
        wanted += 1
        read += products + weight.numel
    if for_weight:
        wanted += 1
        read += products + grad_output.numel
    if for_bias:
        channels = grad_output.shape[1 if len(grad_output.shape) > 2 else 0]
        flops += grad_output.numel - channels
        read += grad_output.numel
    return Work(macs=wanted * macs, other_flops=flops, elements_read=read)


@cost_of(aten._slow_conv2d_backward)
def slow_convolution_backward(
    grad_output: TensorSpec,
    self: TensorSpec,
    weight: TensorSpec,
    *args: object,
    output_mask: Sequence[bool] = (True, True, True),
    out: Output,
    **_kwargs: object,
) -> Work:
    """Return the cost of ``convolution_backward``.

    Each of the two gradients takes the MACs of the forward pass, the bias takes sums.
    """
    results = out if isinstance(out, tuple) else (out,)
    return convolution_backward(grad_output, self, weight, output_mask=output_mask, out=results)


@cost_of(aten.conv_tbc_backward)
def time_batch_channel_backward(
    self: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec,
    pad: int,
    *,
    out: tuple[TensorSpec, ...],
) -> Work:
    """Return twice the MACs of the forward pass, and the sum for the bias."""
    products = self.numel * math.prod(weight.shape[:2])
    flops = self.numel - bias.numel
    elements_read = 2 * products + 2 * self.numel
    return Work(macs=2 * products, other_flops=flops, elements_read=elements_read)


@cost_of(aten._convolution_double_backward)
def convolution_double_backward(
    ggI: TensorSpec | None,
    ggW: TensorSpec | None,
    ggb: TensorSpec | None,
    gO: TensorSpec,
    weight: TensorSpec,
    *_: object,
    out: Output,
) -> Work:
    """Return the cost of four convolutions.

    One is of ggI with the weight, one of the input with ggW, and one is for each of their two
    gradients.
    """
    given = (ggI is not None) + (ggW is not None)
    macs = 2 * given * multiply_kernel(gO, weight)
    return Work(macs=macs)
