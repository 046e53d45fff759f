"""Words beside points, none of which covers a point or other words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.report.pictures.style import escape_name, inks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

#: where words are tried, in points from the edge of the point, and in which directions
_DISTANCES = (3.0, 10.0, 20.0, 34.0)
_DIRECTIONS = [
    (math.cos(angle), math.sin(angle))
    for angle in (math.pi / 4 * step for step in (1, 3, 7, 5, 0, 4, 2, 6))
]


class Spot(NamedTuple):
    """A point of the picture, in data, and how far it reaches, in points."""

    x: float
    y: float
    radius: float


def label(
    ax: Axes, wanted: Sequence[tuple[Spot, str]], spots: Sequence[Spot], *, size: str = "small"
) -> None:
    """Write each text beside its spot where there is room, the first ones first; one without room is left out.

    Limits and scales of the axes must stand.
    """
    figure: Any = ax.figure
    figure.draw_without_rendering()  # the layout says where the axes are
    renderer, pixels = figure.canvas.get_renderer(), figure.dpi / 72
    frame = ax.get_window_extent(renderer)
    taken = [_bounding_box(ax, spot, pixels) for spot in spots]
    taken += [text.get_window_extent(renderer).padded(2 * pixels) for text in ax.texts]
    for spot, text in wanted:
        for distance, (across, up) in (
            (distance, way) for distance in _DISTANCES for way in _DIRECTIONS
        ):
            place = (across * (spot.radius + distance), up * (spot.radius + distance))
            written = _write(ax, spot, escape_name(text), place, size)
            box = written.get_window_extent(renderer)
            if _is_within(box, frame) and not any(box.overlaps(other) for other in taken):
                taken.append(box.padded(2 * pixels))
                break
            written.remove()


def _write(ax: Axes, spot: Spot, text: str, place: tuple[float, float], size: str) -> Any:
    across, up = place
    sides = "left" if across > 0.1 else "right" if across < -0.1 else "center"
    ends = "bottom" if up > 0.1 else "top" if up < -0.1 else "center"
    is_far = math.hypot(across, up) > spot.radius + _DISTANCES[1] - 1
    line = (
        {
            "arrowstyle": "-",
            "color": inks_of(ax).hair,
            "linewidth": 0.8,
            "shrinkA": 1,
            "shrinkB": spot.radius,
        }
        if is_far
        else None
    )
    return ax.annotate(
        text,
        (spot.x, spot.y),
        place,
        textcoords="offset points",
        ha=sides,
        va=ends,
        fontsize=size,
        arrowprops=line,
    )


def _bounding_box(ax: Axes, spot: Spot, pixels: float) -> Bbox:
    from matplotlib.transforms import Bbox

    x, y = ax.transData.transform((spot.x, spot.y))
    reach = spot.radius * pixels
    return Bbox.from_extents(x - reach, y - reach, x + reach, y + reach)


def _is_within(box: Bbox, frame: Bbox) -> bool:
    return bool(
        frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    )
