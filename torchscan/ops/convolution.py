"""Convolutions of any dimension, and their gradients.

They may be grouped, dilated, transposed, deformable or quantized.

Each output element of a convolution is a sum over its window: ``k = kernel elements · C_in /
groups`` products. In a transposed convolution, each *input* element is multiplied by ``kernel
elements · C_out / groups`` weights. A complex convolution is computed as three real ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.elementwise import Output, first_output
from torchscan.ops.op_costs import Work, elements
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.taps import groups, spread
from torchscan.ops.windows import WHOLE, Along, Dim, Looks, Taps, along_last, per_axis, window
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
    products = _multiply_kernel(first_output(out), weight)
    return _windowed(products, weight, *_biases(_))


@cost_of(aten.cudnn_convolution_relu, aten.miopen_convolution_relu)
def convolution_and_relu(
    input: TensorSpec, weight: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """A convolution, and a comparison per output."""
    products = _multiply_kernel(out, weight)
    return _windowed(products, weight, *_biases(_), other_flops=out.numel)


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
    products = _multiply_kernel(out, weight)
    return _windowed(products, weight, *_biases(_), z, other_flops=per_output * out.numel)


@cost_of(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
@cost_of(aten.cudnn_convolution_transpose, aten.miopen_convolution_transpose)
@cost_of(aten.slow_conv_transpose2d, aten.slow_conv_transpose3d)
def transposed_convolution(
    input: TensorSpec, weight: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(input) · kernel · C_out/groups, and as many elements read.

    ``weight`` is (C_in, C_out/groups, *kernel).
    """
    products = _multiply_kernel(input, weight)
    return _windowed(products, weight, *_biases(_))


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
    """One of the two above, as ``transposed`` says."""
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
    return _windowed(out.numel * math.prod(weight.shape[:2]), weight, bias)


Sizes = Sequence[int] | int


@window_of(
    aten.conv1d,
    aten.conv2d,
    aten.conv3d,
    aten._convolution_mode,
    aten.cudnn_convolution,
    aten._conv_depthwise2d,
)
@window_of(
    aten.conv_depthwise3d,
    aten.mkldnn_convolution,
    aten.miopen_convolution,
    aten.miopen_depthwise_convolution,
)
@window_of(aten.thnn_conv2d, aten._slow_conv2d_forward, aten.slow_conv3d, aten.slow_conv3d_forward)
@window_of(aten.slow_conv_dilated2d, aten.slow_conv_dilated3d, aten._nnpack_spatial_convolution)
@window_of(aten.cudnn_convolution_relu, aten.miopen_convolution_relu)
def convolution_window(
    input: TensorSpec,
    weight: TensorSpec,
    *,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    out: Output,
) -> Looks:
    """Place j looks at ``s·j − p + d·t`` for the taps t, of the channels of its group."""
    kernel = weight.shape[2:]
    steps, spacing = (per_axis(value, len(kernel)) for value in (stride, dilation))
    if padding == "same":  # the larger half of an odd number goes behind
        padding = [d * (k - 1) // 2 for k, d in zip(kernel, spacing, strict=True)]
    elif isinstance(padding, str):
        padding = 0
    pads = per_axis(padding, len(kernel))
    axes = zip(kernel, steps, pads, spacing, strict=True)
    taps = [window(*numbers) for numbers in axes]
    num_channels, per_group = input.shape[-len(kernel) - 1], max(weight.shape[1], 1)
    return _along_channels(input, taps, num_channels // per_group, first_output(out))


@window_of(
    aten.conv_transpose1d,
    aten.conv_transpose2d,
    aten.conv_transpose3d,
    aten.cudnn_convolution_transpose,
)
@window_of(
    aten.miopen_convolution_transpose, aten.slow_conv_transpose2d, aten.slow_conv_transpose3d
)
def transposed_convolution_window(
    input: TensorSpec,
    weight: TensorSpec,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    out: TensorSpec,
) -> Looks:
    """Place j looks at the whole numbers among ``(j + p − d·t) / s``."""
    kernel = weight.shape[2:]
    options = (per_axis(value, len(kernel)) for value in (stride, padding, dilation))
    axes = zip(kernel, *options, strict=True)
    taps = [spread(*numbers) for numbers in axes]
    return _along_channels(input, taps, groups, out)


@window_of(aten.convolution, aten._convolution, aten.convolution_overrideable)
def general_convolution_window(
    input: TensorSpec,
    weight: TensorSpec,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    groups: int,
    out: TensorSpec,
) -> Looks:
    """One of the two above, as ``transposed`` says."""
    if not transposed:
        return convolution_window(
            input, weight, stride=stride, padding=padding, dilation=dilation, out=out
        )
    return transposed_convolution_window(
        input, weight, stride=stride, padding=padding, dilation=dilation, groups=groups, out=out
    )


def _along_channels(input: TensorSpec, taps: Sequence[Taps], count: int, out: TensorSpec) -> Looks:
    at = len(input.shape) - len(taps) - 1
    channels: Dim = WHOLE
    if count != 1:
        channels = Along(at, groups(input.shape[at], out.shape[at], count))
    return (along_last(input, taps, out, channels),)


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
    products = _multiply_kernel(input if transposed else grad_output, weight)
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
        flops += grad_output.numel - _channels(grad_output)
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
    """Twice the MACs of the forward pass, and the sum for the bias."""
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
    macs = 2 * given * _multiply_kernel(gO, weight)
    return Work(macs=macs)


@cost_of("torchvision::deform_conv2d")
def deformable_convolution(
    input: TensorSpec,
    weight: TensorSpec,
    offset: TensorSpec,
    mask: TensorSpec,
    bias: TensorSpec,
    *_: object,
    use_mask: bool = False,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k.

    Each sample of each input channel is interpolated between four neighbours.

    A position takes 14 (its distances and the neighbours' weights); a sample takes 7, with a mask 1
    more.
    """
    samples = _count_samples(input, weight, out)
    positions = offset.numel // 2
    products = _multiply_kernel(out, weight)
    flops = samples * (7 + bool(use_mask)) + 14 * positions
    elements_read = 4 * samples + products + elements([weight, offset, bias])
    if use_mask:
        elements_read += mask.numel
    return Work(macs=products, other_flops=flops, elements_read=elements_read)


@cost_of("torchvision::_deform_conv2d_backward")
def deformable_convolution_backward(
    grad: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    offset: TensorSpec,
    *_: object,
    out: tuple[TensorSpec, ...],
) -> Work:
    """Return the cost of gradients: twice the MACs of the forward pass.

    Each sample is interpolated again, and spread to four neighbors and its offset.
    """
    samples = _count_samples(input, weight, grad)
    macs = 2 * _multiply_kernel(grad, weight)
    flops = (7 + 8 + 14) * samples + 14 * offset.numel // 2
    return Work(macs=macs, other_flops=flops)


@cost_of("quantized::conv1d", "quantized::conv2d", "quantized::conv3d")
@cost_of("quantized::conv1d_relu", "quantized::conv2d_relu", "quantized::conv3d_relu")
@cost_of("quantized::conv1d_dynamic", "quantized::conv2d_dynamic", "quantized::conv3d_dynamic")
def packed_convolution(
    qx: TensorSpec, packed: object, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; each output is rescaled: 2.

    A packed weight counts as the tensors in it, the weight first.
    """
    weight, *biases = _unpacked(packed)
    products = _multiply_kernel(out, weight)
    return _windowed(products, weight, *biases, other_flops=2 * out.numel)


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
    weight, *biases = _unpacked(packed)
    products = _multiply_kernel(qx, weight)
    return _windowed(products, weight, *biases, other_flops=2 * out.numel)


def _multiply_kernel(spec: TensorSpec, weight: TensorSpec) -> int:
    """Return the products of each element with a kernel, of which the first dimension has some."""
    return spec.numel * math.prod(weight.shape[1:])


def _count_samples(input: TensorSpec, weight: TensorSpec, out: TensorSpec) -> int:
    """Return the number of samples that a deformable convolution interpolates."""
    taps, places = math.prod(weight.shape[2:]), math.prod(out.shape[2:])
    return out.shape[0] * input.shape[1] * taps * places


def _unpacked(packed: object) -> list[TensorSpec]:
    specs = packed if isinstance(packed, tuple) else (packed,)
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def _biases(rest: Sequence[object]) -> list[TensorSpec]:
    """The bias: the only vector among the other arguments, which differ from kernel to kernel."""
    return [each for each in rest if isinstance(each, TensorSpec) and len(each.shape) == 1]


def _windowed(products: int, weight: TensorSpec, *added: TensorSpec, other_flops: int = 0) -> Work:
    macs = products * (3 if weight.dtype.is_complex else 1)
    elements_read = products + weight.numel + elements(added)
    return Work(macs=macs, other_flops=other_flops, elements_read=elements_read)


def _channels(spec: TensorSpec) -> int:
    return spec.shape[1] if len(spec.shape) > 2 else spec.shape[0]
