"""Plot of operators under the rooflines of a device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan import units
from torchscan.analyses.roofline import Limiter, OperatorLoad, Roofline
from torchscan.errors import InputError
from torchscan.report.pictures.labels import Spot, label
from torchscan.report.pictures.style import (
    Size,
    drawing,
    import_pyplot,
    inks_of,
    place_legend_below,
)
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LIMITERS: Sequence[Limiter] = ("compute", "memory", "cache", "launch", "links")
#: square points: of a point that took all the time, and of any point at least
_MAX_AREA, _MIN_AREA = 2500.0, 10.0
#: layers that are named if there is room
_MAX_NAMES = 6


#: what equal calls have in common
_EQUAL = attrgetter("operator", "precision", "flops", "bytes_read", "bytes_written", "limiter")


class _Point(NamedTuple):
    """All equal calls of an operator."""

    load: OperatorLoad
    time: float
    calls: int

    @property
    def rate(self) -> float:
        """FLOPs per second."""
        return self.load.flops / self.load.time_estimate


@explain_wrong_types
def draw_roofline(roofline: Roofline, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw what operators attain over their arithmetic intensity, under the roofs of the device.

    A point is all equal calls of an operator, as large as its share of the time; its color is the
    limit that it runs into. Those that take the most time are named by their layers. Both axes are
    logarithmic.

    Args:
        roofline: of ``analyze_roofline``.
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    points = points_of(roofline)
    if not points:
        raise InputError("there is nothing to draw: no operator does arithmetic")
    intensities = [point.load.intensity or 1.0 for point in points]
    ridges = [peak / roofline.bandwidth for peak in roofline.peak_flops.values()]
    left, right = min(intensities) / 2.5, 3 * max([*intensities, *ridges])
    low, high = min(point.rate for point in points) / 3, 2.5 * _highest(roofline, right)
    with drawing(ax, size) as ax:
        ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
        ax.set(xlabel="FLOPs per byte", ylabel="FLOPs per second")
        ax.yaxis.set_major_formatter(lambda value, _: units.count(value, digits=0))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.minorticks_off()
        _draw_roofs(roofline, ax, left, right)
        _draw_points(roofline, ax, points)
        labels = _layer_labels(roofline, points)
        if ridges:
            ridge, peak = ridges[0], next(iter(roofline.peak_flops.values()))
            labels.insert(0, (Spot(ridge, peak, 1.0), f"ridge: {ridge:,.0f} FLOPs per byte"))
        spots = [_spot(roofline, point) for point in points]
        spots += _spots_of_roof(roofline, left, right)
        label(ax, labels, spots, size="x-small")
        place_legend_below(ax, 2)
    return ax


def _highest(roofline: Roofline, right: float) -> float:
    return max(roofline.peak_flops.values(), default=roofline.bandwidth * right)


def points_of(roofline: Roofline) -> list[_Point]:
    """Return a point for each set of equal calls with arithmetic, the longest first."""
    members: dict[tuple[object, ...], list[OperatorLoad]] = defaultdict(list)
    for load in roofline.operators:
        if load.flops and load.intensity and load.time_estimate:
            members[_EQUAL(load)].append(load)
    points = []
    for loads in members.values():
        time = math.fsum(load.time_estimate for load in loads)
        points.append(_Point(loads[0], time, len(loads)))
    points.sort(key=attrgetter("time"), reverse=True)
    return points


def _area(roofline: Roofline, point: _Point) -> float:
    """Return the area of a point, which is also in proportion to the size of text."""
    share = point.time / roofline.time_estimate
    scale = import_pyplot().rcParams["font.size"] / 10
    return float(max(_MIN_AREA, _MAX_AREA * share) * scale**2)


def _spot(roofline: Roofline, point: _Point) -> Spot:
    radius = math.sqrt(_area(roofline, point) / math.pi)
    return Spot(point.load.intensity or 0.0, point.rate, radius)


def _layer_labels(roofline: Roofline, points: Sequence[_Point]) -> list[tuple[Spot, str]]:
    """Return a label for each layer, beside its longest point; the longest of each limit first."""
    longest = {point.load.limiter: point for point in reversed(points)}
    first = sorted(longest.values(), key=attrgetter("time"), reverse=True)
    labels: dict[str, tuple[Spot, str]] = {}
    for point in [*first, *points]:
        layer = point.load.layer or point.load.operator.removeprefix("aten.")
        text = layer
        if point.calls > 1:
            text += f" and {point.calls - 1} like it"
        labels.setdefault(layer, (_spot(roofline, point), text))
    return list(labels.values())[:_MAX_NAMES]


def _spots_of_roof(roofline: Roofline, left: float, right: float) -> list[Spot]:
    """Return spots all along the roofs, which labels must not cross."""
    highest = _highest(roofline, right)
    spots = []
    for number in range(121):
        x = left * (right / left) ** (number / 120)
        y = min(x * roofline.bandwidth, highest)
        spots.append(Spot(x, y, 0.5))
    return spots


def _draw_roofs(roofline: Roofline, ax: Axes, left: float, right: float) -> None:
    inks, bandwidth = inks_of(ax), roofline.bandwidth
    line: Any = {"color": inks.ink, "linewidth": 1.2, "zorder": 1}
    text: Any = {"textcoords": "offset points", "fontsize": "x-small", "color": inks.soft}

    end = min(_highest(roofline, right) / bandwidth, right)
    ax.plot([left, end], [bandwidth * left, bandwidth * end], **line)
    middle = math.sqrt(left * end)
    name = units.count(bandwidth, "B/s", 1)
    ax.annotate(name, (middle, bandwidth * middle), (-4, 4), ha="right", va="bottom", **text)

    forms: dict[float, list[str]] = defaultdict(list)
    for form, peak in roofline.peak_flops.items():
        forms[peak].append(form)
    for peak, names in forms.items():
        start = max(peak / bandwidth, left)
        ax.plot([start, right], [peak, peak], **line)
        name = f"{units.count(peak, 'FLOP/s', 0)} {', '.join(names)}"
        ax.annotate(name, (right, peak), (-2, 3), ha="right", **text)


def _draw_points(roofline: Roofline, ax: Axes, points: Sequence[_Point]) -> None:
    for limiter in _LIMITERS:
        limited = [point for point in points if point.load.limiter == limiter]
        if not limited:
            continue
        color, edge = inks_of(ax).colours[limiter], ax.get_facecolor()
        xs = [point.load.intensity or 0.0 for point in limited]
        ys = [point.rate for point in limited]
        areas = [_area(roofline, point) for point in limited]
        style: Any = {"alpha": 0.65, "edgecolors": edge, "linewidths": 0.6, "zorder": 2}
        ax.scatter(xs, ys, areas, color=color, **style)
        share = units.share(roofline.time_by_limiter[limiter] / roofline.time_estimate)
        ax.scatter([], [], 30, marker="s", color=color, label=f"{limiter} {share} of the time")
