"""Convolutions of any dimension, which may be grouped, dilated, transposed or quantized.

Each output element of a convolution is a sum over its window: ``k = kernel elements · C_in /
groups`` products. In a transposed convolution, each *input* element is multiplied by ``kernel
elements · C_out / groups`` weights. A complex convolution is computed as three real ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.op_costs import Work, elements
from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of(aten.conv1d, aten.conv2d, aten.conv3d)
@cost_of(
    aten._convolution_mode, aten.cudnn_convolution, aten._conv_depthwise2d, aten.conv_depthwise3d
)
@cost_of(
    aten.mkldnn_convolution,
    aten.miopen_convolution,
    aten.miopen_depthwise_convolution,
    aten.thnn_conv2d,
)
@cost_of(
    aten._slow_conv2d_forward, aten.slow_conv3d, aten.slow_conv3d_forward, aten.slow_conv_dilated2d
)
@cost_of(aten.slow_conv_dilated3d, aten._nnpack_spatial_convolution)
def convolution(
    input: TensorSpec, weight: TensorSpec, *_: object, out: Output, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; as many elements read, besides weights and bias.

    ``weight`` is (C_out, C_in/groups, *kernel).
    """
    products = multiply_kernel(first_output(out), weight)
    return _window_work(products, weight, *_find_biases(_))


@cost_of(aten.cudnn_convolution_relu, aten.miopen_convolution_relu)
def convolution_and_relu(
    input: TensorSpec, weight: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the cost of a convolution, and of a comparison per output."""
    products = multiply_kernel(out, weight)
    return _window_work(products, weight, *_find_biases(_), other_flops=out.numel)


@cost_of(aten.cudnn_convolution_add_relu, aten.miopen_convolution_add_relu)
def convolution_addition_and_relu(
    self: TensorSpec,
    weight: TensorSpec,
    z: TensorSpec,
    alpha: float | None = None,
    *_: object,
    out: TensorSpec,
) -> Work:
    """A convolution, a sum and a comparison per output, and a product if ``alpha`` ≠ 1."""
    per_output = 2 + (alpha not in (None, 1))
    products = multiply_kernel(out, weight)
    return _window_work(products, weight, *_find_biases(_), z, other_flops=per_output * out.numel)


@cost_of(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
@cost_of(aten.cudnn_convolution_transpose, aten.miopen_convolution_transpose)
@cost_of(aten.slow_conv_transpose2d, aten.slow_conv_transpose3d)
def transposed_convolution(
    input: TensorSpec, weight: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(input) · kernel · C_out/groups, and as many elements read.

    ``weight`` is (C_in, C_out/groups, *kernel).
    """
    products = multiply_kernel(input, weight)
    return _window_work(products, weight, *_find_biases(_))


@cost_of(aten.convolution, aten._convolution, aten.convolution_overrideable)
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
    """Return the cost of a convolution, or of a transposed one if ``transposed``."""
    if transposed:
        return transposed_convolution(input, weight, bias, out=out)
    return convolution(input, weight, bias, out=out)


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
    return _window_work(out.numel * math.prod(weight.shape[:2]), weight, bias)


@cost_of("quantized::conv1d", "quantized::conv2d", "quantized::conv3d")
@cost_of("quantized::conv1d_relu", "quantized::conv2d_relu", "quantized::conv3d_relu")
@cost_of("quantized::conv1d_dynamic", "quantized::conv2d_dynamic", "quantized::conv3d_dynamic")
def packed_convolution(
    qx: TensorSpec, packed: object, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; each output is rescaled: 2.

    A packed weight counts as the tensors in it, the weight first.
    """
    weight, *biases = _specs_of_packed(packed)
    products = multiply_kernel(out, weight)
    return _window_work(products, weight, *biases, other_flops=2 * out.numel)


@cost_of(
    "quantized::conv_transpose1d", "quantized::conv_transpose2d", "quantized::conv_transpose3d"
)
@cost_of(
    "quantized::conv_transpose1d_dynamic",
    "quantized::conv_transpose2d_dynamic",
    "quantized::conv_transpose3d_dynamic",
)
def packed_transposed_convolution(
    qx: TensorSpec, packed: object, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(input) · kernel · C_out/groups; each output is rescaled: 2."""
    weight, *biases = _specs_of_packed(packed)
    products = multiply_kernel(qx, weight)
    return _window_work(products, weight, *biases, other_flops=2 * out.numel)


def multiply_kernel(spec: TensorSpec, weight: TensorSpec) -> int:
    """Return the products of each element with a kernel, of which the first dimension has some."""
    return spec.numel * math.prod(weight.shape[1:])


def _specs_of_packed(packed: object) -> list[TensorSpec]:
    specs = packed if isinstance(packed, tuple) else (packed,)
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def _find_biases(rest: Sequence[object]) -> list[TensorSpec]:
    """Return the bias: the only vector among the other arguments, which differ between kernels."""
    return [each for each in rest if isinstance(each, TensorSpec) and len(each.shape) == 1]


def _window_work(
    products: int, weight: TensorSpec, *added: TensorSpec, other_flops: int = 0
) -> Work:
    macs = products * (3 if weight.dtype.is_complex else 1)
    elements_read = products + weight.numel + elements(added)
    return Work(macs=macs, other_flops=other_flops, elements_read=elements_read)
