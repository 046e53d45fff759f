"""Pooling: the maximum or mean of windows or boxes, and the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.op_costs import Work
from torchscan.ops.operator_names import Operator
from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import Formula, cost_of, declare_costless, window_of
from torchscan.ops.taps import bin_taps
from torchscan.ops.windows import WHOLE, Along, Dim, Looks, along_last, here, look, per_axis, window
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Sizes = Sequence[int] | int


def _max_pool(axes: int) -> Formula:
    def max_pool(
        self: TensorSpec, kernel_size: Sizes, *_: object, out: Output, **_kwargs: object
    ) -> Work:
        """Window − 1 comparisons per output."""
        window = _window(kernel_size, axes)
        pooled = first_output(out).numel
        flops = (window - 1) * pooled
        return Work(other_flops=flops, elements_read=window * pooled)

    return max_pool


def _avg_pool(axes: int) -> Formula:
    def avg_pool(
        self: TensorSpec, kernel_size: Sizes, *_: object, out: Output, **_kwargs: object
    ) -> Work:
        """Window − 1 additions and a division per output."""
        window = _window(kernel_size, axes)
        pooled = first_output(out).numel
        return Work(other_flops=window * pooled, elements_read=window * pooled)

    return avg_pool


def _adaptive_pool(axes: int, flops_saved: int) -> Formula:
    def adaptive_pool(
        self: TensorSpec, output_size: Sizes, *_: object, out: Output, **_kwargs: object
    ) -> Work:
        """Count the elements of windows from ``⌊i·in/out⌋`` to ``⌈(i+1)·in/out⌉``."""
        reads = _total_of_windows(self, first_output(out), axes)
        flops = reads - flops_saved * first_output(out).numel
        return Work(other_flops=flops, elements_read=reads)

    return adaptive_pool


def _avg_pool_backward(axes: int) -> Formula:
    def avg_pool_backward(
        grad_output: TensorSpec,
        self: TensorSpec,
        kernel_size: Sizes,
        *_: object,
        out: Output,
        **_kwargs: object,
    ) -> Work:
        """Each gradient is divided by the window and added to each element of it."""
        flops = (1 + _window(kernel_size, axes)) * grad_output.numel
        return Work(other_flops=flops)

    return avg_pool_backward


def _adaptive_avg_pool_backward(axes: int) -> Formula:
    def adaptive_avg_pool_backward(
        grad_output: TensorSpec, self: TensorSpec, *_: object, out: Output, **_kwargs: object
    ) -> Work:
        """Each gradient is divided by its window and added to each element of it."""
        return Work(other_flops=grad_output.numel + _total_of_windows(self, grad_output, axes))

    return adaptive_avg_pool_backward


for _axes in (1, 2, 3):
    cost_of(f"aten::max_pool{_axes}d", f"aten::quantized_max_pool{_axes}d")(_max_pool(_axes))
    cost_of(f"aten::avg_pool{_axes}d")(_avg_pool(_axes))
    cost_of(f"aten::adaptive_avg_pool{_axes}d")(_adaptive_pool(_axes, 0))
    cost_of(f"aten::adaptive_max_pool{_axes}d")(_adaptive_pool(_axes, 1))
for _axes in (2, 3):
    cost_of(f"aten::max_pool{_axes}d_with_indices")(_max_pool(_axes))
    cost_of(f"aten::mkldnn_max_pool{_axes}d")(_max_pool(_axes))
    cost_of(f"aten::fractional_max_pool{_axes}d")(_max_pool(_axes))
    cost_of(f"aten::_adaptive_avg_pool{_axes}d")(_adaptive_pool(_axes, 0))
    cost_of(f"aten::avg_pool{_axes}d_backward")(_avg_pool_backward(_axes))
    cost_of(f"aten::_adaptive_avg_pool{_axes}d_backward")(_adaptive_avg_pool_backward(_axes))
cost_of("aten::max_pool1d_with_indices")(_max_pool(1))
cost_of("aten::adaptive_avg_pool3d_backward")(_adaptive_avg_pool_backward(3))


def _declare_windows(axes: int, *operators: Operator) -> None:
    @window_of(*operators)
    def pool_window(
        self: TensorSpec,
        kernel_size: Sizes,
        *_: object,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        out: Output,
        **_kwargs: object,
    ) -> Looks:
        """Look from place j at ``s·j − p + d·t`` for the taps t.

        The default stride is the window's size.
        """
        steps = stride if isinstance(stride, int) or stride else kernel_size
        options = (per_axis(value, axes) for value in (kernel_size, steps, padding, dilation))
        each = zip(*options, strict=True)
        return (along_last(self, [window(*numbers) for numbers in each], first_output(out)),)


def _declare_bins(axes: int, *operators: Operator) -> None:
    @window_of(*operators)
    def adaptive_pool_window(self: TensorSpec, *_: object, out: Output) -> Looks:
        """Read the bin of place j; a single bin holds everything."""
        result, outer = first_output(out), len(self.shape) - axes
        sizes = zip(self.shape[outer:], result.shape[outer:], strict=True)
        dims: list[Dim] = []
        for at, (size, count) in enumerate(sizes, outer):
            dims.append(WHOLE if count == 1 else Along(at, bin_taps(size, count)))
        return (look(result, *map(here, range(outer)), *dims),)


for _axes in (1, 2, 3):
    _declare_windows(
        _axes,
        f"aten::max_pool{_axes}d",
        f"aten::avg_pool{_axes}d",
        f"aten::quantized_max_pool{_axes}d",
    )
    _declare_bins(_axes, f"aten::adaptive_avg_pool{_axes}d", f"aten::adaptive_max_pool{_axes}d")
_declare_windows(1, "aten::max_pool1d_with_indices")
for _axes in (2, 3):
    _declare_windows(
        _axes, f"aten::max_pool{_axes}d_with_indices", f"aten::mkldnn_max_pool{_axes}d"
    )
    _declare_bins(_axes, f"aten::_adaptive_avg_pool{_axes}d")


@cost_of(aten.max_pool2d_with_indices_backward, aten.max_pool3d_with_indices_backward)
@cost_of(aten.adaptive_max_pool2d_backward, aten.adaptive_max_pool3d_backward)
@cost_of(aten.fractional_max_pool2d_backward, aten.fractional_max_pool3d_backward)
def max_pool_backward(grad_output: TensorSpec, *_: object, out: Output, **_kwargs: object) -> Work:
    """Return the FLOPs of adding each gradient at the place of the maximum."""
    return Work(other_flops=grad_output.numel)


declare_costless(aten.max_unpool2d, aten.max_unpool3d)  # each element is copied to where it was


def _total_of_windows(full: TensorSpec, pooled: TensorSpec, axes: int) -> int:
    """Return the sum of the window sizes of all outputs."""
    sizes = zip(full.shape[-axes:], pooled.shape[-axes:], strict=True)
    positions = max(math.prod(pooled.shape[-axes:]), 1)
    total = pooled.numel // positions  # images
    for size, count in sizes:
        along_axis = 0
        for index in range(count):
            start = index * size // count
            stop = -(-(index + 1) * size // count)
            along_axis += stop - start
        total *= along_axis
    return total


def _window(kernel_size: Sizes, axes: int) -> int:
    """Return the number of elements of a window."""
    return math.prod(per_axis(kernel_size, axes))
