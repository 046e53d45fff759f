"""Resizing and sampling: each output element is a weighted sum of its neighbors in the input.

Along one axis: two products and a sum (linear). The axes follow one another, so one, two and three
axes take 3, 7 and 15. Cubic in two axes takes 31. The nearest neighbor is copied. A gradient takes
the same way back: a product is added to each neighbor (with several axes, the weights are
multiplied first).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchscan.ops.op_costs import Work
from torchscan.ops.operator_names import Operator
from torchscan.ops.per_element import per_element, per_input
from torchscan.ops.registry import Formula, cost_of, declare_costless, window_of
from torchscan.ops.taps import interpolation_taps, nearest_taps
from torchscan.ops.windows import Looks, along_last
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

#: a factor for one axis, or for each
Factors = float | None | Sequence[float]

declare_costless(aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d)
declare_costless(
    aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d
)
per_element(3, aten.upsample_linear1d, mixes=True)
per_element(7, aten.upsample_bilinear2d, mixes=True)
per_element(15, aten.upsample_trilinear3d, mixes=True)
per_element(31, aten.upsample_bicubic2d, mixes=True)

# per gradient: a sum each (nearest); 2 neighbors · 2; 4 · 2; 8 · 2; 16 · 3
per_input(
    1,
    aten.upsample_nearest1d_backward,
    aten.upsample_nearest2d_backward,
    aten.upsample_nearest3d_backward,
)
per_input(1, aten._upsample_nearest_exact1d_backward, aten._upsample_nearest_exact2d_backward)
per_input(1, aten._upsample_nearest_exact3d_backward)
per_input(4, aten.upsample_linear1d_backward)
per_input(8, aten.upsample_bilinear2d_backward)
per_input(16, aten.upsample_trilinear3d_backward)
per_input(48, aten.upsample_bicubic2d_backward)


def _antialiased(reach: int) -> Formula:
    def antialiased_resize(self: TensorSpec, *_: object, out: TensorSpec) -> Work:
        """Return the cost of one axis after another, the last first.

        A result with t neighbors in reach takes t products and t − 1 sums.
        """
        height, width = out.shape[-2:]
        num_rows = self.numel // max(self.shape[-1], 1)
        num_columns = out.numel // max(height, 1)
        across = _taps(self.shape[-1], width, reach)
        down = _taps(self.shape[-2], height, reach)
        flops = num_rows * (2 * across - width)
        flops += num_columns * (2 * down - height)
        return Work(other_flops=flops)

    return antialiased_resize


def _antialiased_backward(reach: int) -> Formula:
    def antialiased_backward(grad_output: TensorSpec, *_: object, out: TensorSpec) -> Work:
        """3 for each gradient and neighbor in reach.

        The gradient is added to the neighbor, times the product of two weights.
        """
        height, width = grad_output.shape[-2:]
        images = grad_output.numel // max(height * width, 1)
        across = _taps(out.shape[-1], width, reach)
        down = _taps(out.shape[-2], height, reach)
        return Work(other_flops=3 * images * across * down)

    return antialiased_backward


for _name, _reach in (("bilinear", 1), ("bicubic", 2), ("lanczos", 3)):
    cost_of(f"aten::_upsample_{_name}2d_aa")(_antialiased(_reach))
    cost_of(f"aten::_upsample_{_name}2d_aa_backward")(_antialiased_backward(_reach))


def _taps(size: int, resized: int, reach: int) -> int:
    """Count neighbors along one axis.

    For i, they are those up to ``reach·max(s, 1)`` away from ``s·(i + ½)``, s = in / out.
    """
    scale = size / max(resized, 1)
    support = reach * max(scale, 1.0)
    number = 0
    for index in range(resized):
        center = scale * (index + 0.5)
        first = int(center - support + 0.5)
        end = int(center + support + 0.5)
        number += min(end, size) - max(first, 0)
    return number


def _declare_nearest(axes: int, center: float, *operators: Operator) -> None:
    @window_of(*operators)
    def nearest_window(
        self: TensorSpec, output_size: object, *scales: Factors, out: TensorSpec
    ) -> Looks:
        """Read the nearest place: ``⌊j·s⌋``, or ``⌊(j + ½)·s⌋`` where it is exact."""
        sizes = _resized_axes(self, out, _factors(scales, axes))
        taps = [nearest_taps(*each, center) for each in sizes]
        return (along_last(self, taps, out),)


def _declare_interpolation(axes: int, kernel: str, antialias: bool, *operators: Operator) -> None:
    @window_of(*operators)
    def interpolation_window(
        self: TensorSpec,
        output_size: object,
        align_corners: bool,
        *scales: Factors,
        out: TensorSpec,
    ) -> Looks:
        """Look at the neighbors of ``(j + ½)·s − ½`` that have a weight.

        With aligned corners, they are those of ``j·s``.
        """
        sizes = _resized_axes(self, out, _factors(scales, axes))
        taps = [
            interpolation_taps(*each, kernel, aligned=align_corners, antialias=antialias)
            for each in sizes
        ]
        return (along_last(self, taps, out),)


def _resized_axes(
    self: TensorSpec, out: TensorSpec, factors: Sequence[float | None]
) -> Iterable[tuple[int, int, float | None]]:
    """Return the size before, the size after and the factor of each of the last axes."""
    num_axes = len(factors)
    return zip(self.shape[-num_axes:], out.shape[-num_axes:], factors, strict=True)


def _factors(scales: Sequence[Factors], axes: int) -> Sequence[float | None]:
    """Return the factors, which are given as a list, one by one, or not at all."""
    if scales and isinstance(scales[0], Sequence):
        return scales[0]
    given = [each for each in scales if not isinstance(each, Sequence)]
    return given if len(given) == axes else [None] * axes


for _axes, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _declare_nearest(_axes, 0, f"aten::upsample_nearest{_axes}d")
    _declare_nearest(_axes, 0.5, f"aten::_upsample_nearest_exact{_axes}d")
    _declare_interpolation(_axes, "linear", False, f"aten::upsample_{_linear}{_axes}d")
_declare_interpolation(2, "cubic", False, "aten::upsample_bicubic2d")
_declare_interpolation(2, "linear", True, "aten::_upsample_bilinear2d_aa")
_declare_interpolation(2, "cubic", True, "aten::_upsample_bicubic2d_aa")
_declare_interpolation(2, "lanczos", True, "aten::_upsample_lanczos2d_aa")


# -- sampling at given places ----------------------------------------------------------------------

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2  # torch's numbers for them


def _grid_sampler(axes: int) -> Formula:
    linear = {2: 7, 3: 15}[axes]
    neighbors = 2**axes

    def grid_sampler(
        input: TensorSpec, grid: TensorSpec, interpolation_mode: int, *_: object, out: TensorSpec
    ) -> Work:
        """Each output as in a resize.

        Each place takes 3 per axis to convert to pixels, and its neighbors' weights.

        Linear: the distance to each side, 2 per axis, and a product per neighbor and additional
        axis. Nearest: 1 per axis to round. Bicubic: 16 per axis.
        """
        places = grid.numel // axes
        weights = 2 * axes + neighbors * (axes - 1)
        per_output = {_BILINEAR: linear, _NEAREST: 0, _BICUBIC: 31}[interpolation_mode]
        by_mode = {_BILINEAR: weights, _NEAREST: axes, _BICUBIC: 16 * axes}
        per_place = 3 * axes + by_mode[interpolation_mode]
        taps = {_BILINEAR: neighbors, _NEAREST: 1, _BICUBIC: 16}[interpolation_mode]
        flops = per_output * out.numel + per_place * places
        elements_read = taps * out.numel + grid.numel
        return Work(other_flops=flops, elements_read=elements_read)

    return grid_sampler


def _grid_sampler_backward(axes: int) -> Formula:
    neighbors = 2**axes

    def grid_sampler_backward(
        grad_output: TensorSpec,
        input: TensorSpec,
        grid: TensorSpec,
        interpolation_mode: int,
        *_: object,
        out: object,
    ) -> Work:
        """Per gradient and neighbor: a product and a sum for the input, 3 per axis for the place.

        Nearest: only a sum.
        """
        places = grid.numel // axes
        taps = {_BILINEAR: neighbors, _NEAREST: 1, _BICUBIC: 16}[interpolation_mode]
        per_gradient = 1 if interpolation_mode == _NEAREST else taps * (2 + 3 * axes)
        flops = per_gradient * grad_output.numel + 5 * axes * places
        return Work(other_flops=flops)

    return grid_sampler_backward


for _axes in (2, 3):
    cost_of(getattr(aten, f"grid_sampler_{_axes}d"))(_grid_sampler(_axes))
    cost_of(getattr(aten, f"grid_sampler_{_axes}d_backward"))(_grid_sampler_backward(_axes))
cost_of("aten::_grid_sampler_2d_cpu_fallback")(_grid_sampler(2))


@cost_of(aten.cudnn_grid_sampler)
def cudnn_grid_sampler(self: TensorSpec, grid: TensorSpec, *, out: TensorSpec) -> Work | None:
    """Return the cost of bilinear sampling in two dimensions."""
    return _grid_sampler(2)(self, grid, _BILINEAR, out=out)


@cost_of(aten.affine_grid_generator, aten.cudnn_affine_grid_generator)
def affine_grid(theta: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """Each place (x, y, 1) times a matrix: MACs = numel(out) · 3, in three dimensions · 4."""
    return Work(macs=out.numel * theta.shape[-1])


@cost_of(aten.affine_grid_generator_backward)
def affine_grid_backward(grad: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """Return the MACs of ``affine_grid``."""
    return Work(macs=grad.numel * out.shape[-1])
