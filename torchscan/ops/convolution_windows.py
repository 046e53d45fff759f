"""Windows of convolutions: taps along each axis, and the channels of a group."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import window_of
from torchscan.ops.taps import group_taps, transposed_taps
from torchscan.ops.windows import WHOLE, Along, Dim, Looks, Taps, along_last, per_axis, window
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

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
    """Read ``s·j − p + d·t`` at place j for the taps t, of the channels of its group."""
    kernel = weight.shape[2:]
    steps, spacing = (per_axis(value, len(kernel)) for value in (stride, dilation))
    if padding == "same":  # the larger half of an odd number goes behind
        padding = [d * (k - 1) // 2 for k, d in zip(kernel, spacing, strict=True)]
    elif isinstance(padding, str):
        padding = 0
    pads = per_axis(padding, len(kernel))
    axes = zip(kernel, steps, pads, spacing, strict=True)
    taps = [window(*numbers) for numbers in axes]
    num_channels = input.shape[-len(kernel) - 1]
    num_groups = num_channels // max(weight.shape[1], 1)
    return _along_channels(input, taps, num_groups, first_output(out))


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
    """Read the whole numbers among ``(j + p − d·t) / s`` at place j."""
    kernel = weight.shape[2:]
    options = (per_axis(value, len(kernel)) for value in (stride, padding, dilation))
    axes = zip(kernel, *options, strict=True)
    taps = [transposed_taps(*numbers) for numbers in axes]
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
    """Read as a convolution, or as a transposed one if ``transposed``."""
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
        channels = Along(at, group_taps(input.shape[at], out.shape[at], count))
    return (along_last(input, taps, out, channels),)
