"""Plot of operators under the rooflines of a device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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
#: square points that a point which took all the time would have; and how many layers are named, if there is room
_LARGEST, _SMALLEST, _NAMED = 2500.0, 10.0, 6


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
    """Draw what operators attain over their arithmetic intensity, on logarithmic axes, under the roofs of the device.

    A point is all equal calls of an operator, as large as its share of the time; its colour is the limit that it runs into.
    Those that take the most time are named by their layers.

    Args:
        roofline: of ``analyze_roofline``.
        ax: where to draw; by default in a new figure.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    points = points_of(roofline)
    if not points:
        raise InputError("there is nothing to draw: no operator does arithmetic")
    with drawing(ax, size) as ax:
        left, right, ridges = _reach(roofline, points)
        low, high = min(point.rate for point in points) / 3, 2.5 * _highest(roofline, right)
        ax.set(
            xscale="log",
            yscale="log",
            xlim=(left, right),
            ylim=(low, high),
            xlabel="FLOPs per byte",
            ylabel="FLOPs per second",
        )
        ax.yaxis.set_major_formatter(lambda value, _: units.count(value, digits=0))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.minorticks_off()
        _draw_roofs(roofline, ax, left, right)
        _draw_points(roofline, ax, points)
        spots = [_spot(roofline, point) for point in points]
        label(
            ax,
            [*_ridge(roofline, ridges), *_named(roofline, points)],
            [*spots, *_along(roofline, left, right)],
            size="x-small",
        )
        place_legend_below(ax, 2)
    return ax


def _reach(roofline: Roofline, points: Sequence[_Point]) -> tuple[float, float, list[float]]:
    intensities = [point.load.intensity or 1.0 for point in points]
    ridges = [peak / roofline.bandwidth for peak in roofline.peak_flops.values()]
    return min(intensities) / 2.5, 3 * max([*intensities, *ridges]), ridges


def _highest(roofline: Roofline, right: float) -> float:
    return max(roofline.peak_flops.values(), default=roofline.bandwidth * right)


def points_of(roofline: Roofline) -> list[_Point]:
    """One for each set of equal calls, the longest first. Calls without arithmetic cannot be placed."""
    members: dict[tuple[object, ...], list[OperatorLoad]] = defaultdict(list)
    for each in roofline.operators:
        if each.flops and each.intensity and each.time_estimate:
            key = (
                each.operator,
                each.precision,
                each.flops,
                each.bytes_read,
                each.bytes_written,
                each.limiter,
            )
            members[key].append(each)
    found = [
        _Point(loads[0], math.fsum(each.time_estimate for each in loads), len(loads))
        for loads in members.values()
    ]
    return sorted(found, key=lambda point: -point.time)


def _area(roofline: Roofline, point: _Point) -> float:
    """In proportion to the type, too."""
    share = point.time / roofline.time_estimate
    return float(
        max(_SMALLEST, _LARGEST * share) * (import_pyplot().rcParams["font.size"] / 10) ** 2
    )


def _spot(roofline: Roofline, point: _Point) -> Spot:
    return Spot(
        point.load.intensity or 0.0, point.rate, math.sqrt(_area(roofline, point) / math.pi)
    )


def _named(roofline: Roofline, points: Sequence[_Point]) -> list[tuple[Spot, str]]:
    """Each layer once, by what takes it the most time; first the longest of each limit."""
    longest = {point.load.limiter: point for point in reversed(points)}
    found: dict[str, tuple[Spot, str]] = {}
    for point in [*sorted(longest.values(), key=lambda point: -point.time), *points]:
        layer = point.load.layer or point.load.operator.removeprefix("aten.")
        times = f" and {point.calls - 1} like it" if point.calls > 1 else ""
        found.setdefault(layer, (_spot(roofline, point), f"{layer}{times}"))
    return list(found.values())[:_NAMED]


def _ridge(roofline: Roofline, ridges: Sequence[float]) -> list[tuple[Spot, str]]:
    """Return the ridge point, beyond which more arithmetic per byte brings no more speed."""
    peaks = roofline.peak_flops.values()
    return [
        (Spot(ridge, peak, 1.0), f"ridge: {ridge:,.0f} FLOPs per byte")
        for ridge, peak in zip(ridges, peaks, strict=True)
    ][:1]


def _along(roofline: Roofline, left: float, right: float) -> list[Spot]:
    """Spots all along the roofs, which words are not to cross."""
    places = [left * (right / left) ** (number / 120) for number in range(121)]
    highest = _highest(roofline, right)
    return [Spot(place, min(place * roofline.bandwidth, highest), 0.5) for place in places]


def _draw_roofs(roofline: Roofline, ax: Axes, left: float, right: float) -> None:
    inks = inks_of(ax)
    highest = _highest(roofline, right)
    slope = [left, min(highest / roofline.bandwidth, right)]
    ax.plot(
        slope,
        [roofline.bandwidth * each for each in slope],
        color=inks.ink,
        linewidth=1.2,
        zorder=1,
    )
    middle = math.sqrt(slope[0] * slope[1])
    ax.annotate(
        units.count(roofline.bandwidth, "B/s", 1),
        (middle, roofline.bandwidth * middle),
        (-4, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize="x-small",
        color=inks.soft,
    )
    forms: dict[float, list[str]] = defaultdict(list)
    for form, peak in roofline.peak_flops.items():
        forms[peak].append(form)
    for peak, names in forms.items():
        ax.plot(
            [max(peak / roofline.bandwidth, left), right],
            [peak, peak],
            color=inks.ink,
            linewidth=1.2,
            zorder=1,
        )
        said = f"{units.count(peak, 'FLOP/s', 0)} {', '.join(names)}"
        ax.annotate(
            said,
            (right, peak),
            (-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize="x-small",
            color=inks.soft,
        )


def _draw_points(roofline: Roofline, ax: Axes, points: Sequence[_Point]) -> None:
    inks = inks_of(ax)
    for limiter in _LIMITERS:
        found = [point for point in points if point.load.limiter == limiter]
        if found:
            ax.scatter(
                [point.load.intensity or 0.0 for point in found],
                [point.rate for point in found],
                [_area(roofline, point) for point in found],
                color=inks.colours[limiter],
                alpha=0.65,
                edgecolors=ax.get_facecolor(),
                linewidths=0.6,
                zorder=2,
            )
            ax.scatter(
                [], [], 30, marker="s", color=inks.colours[limiter], label=_share(roofline, limiter)
            )


def _share(roofline: Roofline, limiter: Limiter) -> str:
    return f"{limiter} {units.share(roofline.time_by_limiter[limiter] / roofline.time_estimate)} of the time"
