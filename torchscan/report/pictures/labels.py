"""Words beside points, none of which covers a point or other words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.report.pictures.style import escape_name, inks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: where words are tried, in points from the edge of the point, and in which directions
_DISTANCES = (3.0, 10.0, 20.0, 34.0)
_ANGLES = [math.pi / 4 * step for step in (1, 3, 7, 5, 0, 4, 2, 6)]
_DIRECTIONS = [(math.cos(angle), math.sin(angle)) for angle in _ANGLES]


class Spot(NamedTuple):
    """A point of the picture, in data, and how far it reaches, in points."""

    x: float
    y: float
    radius: float


def label(
    ax: Axes, wanted: Sequence[tuple[Spot, str]], spots: Sequence[Spot], *, size: str = "small"
) -> None:
    """Write each text beside its spot if there is room, the first ones first.

    Limits and scales of the axes must be final.
    """
    from matplotlib.transforms import Bbox

    figure: Any = ax.figure
    figure.draw_without_rendering()  # the layout says where the axes are
    renderer, pixels = figure.canvas.get_renderer(), figure.dpi / 72
    frame = ax.get_window_extent(renderer)
    taken = []
    for spot in spots:
        x, y = ax.transData.transform((spot.x, spot.y))
        reach = spot.radius * pixels
        taken.append(Bbox.from_extents(x - reach, y - reach, x + reach, y + reach))
    taken += [text.get_window_extent(renderer).padded(2 * pixels) for text in ax.texts]
    for spot, text in wanted:
        for distance, (across, up) in product(_DISTANCES, _DIRECTIONS):
            offset = spot.radius + distance
            written = _write(ax, spot, escape_name(text), (across * offset, up * offset), size)
            box = written.get_window_extent(renderer)
            fits_across = frame.x0 <= box.x0 <= box.x1 <= frame.x1
            fits = fits_across and frame.y0 <= box.y0 <= box.y1 <= frame.y1
            if fits and not any(box.overlaps(other) for other in taken):
                taken.append(box.padded(2 * pixels))
                break
            written.remove()


def _write(ax: Axes, spot: Spot, text: str, place: tuple[float, float], size: str) -> Any:
    across, up = place
    line: dict[str, Any] | None = None
    if math.hypot(across, up) > spot.radius + _DISTANCES[1] - 1:
        line = {"arrowstyle": "-", "color": inks_of(ax).hair, "linewidth": 0.8}
        line |= {"shrinkA": 1, "shrinkB": spot.radius}
    options: Any = {"textcoords": "offset points", "fontsize": size, "arrowprops": line}
    options["ha"] = _alignment(across, "left", "right")
    options["va"] = _alignment(up, "bottom", "top")
    return ax.annotate(text, (spot.x, spot.y), place, **options)


def _alignment(offset: float, start: str, end: str) -> Any:
    """Return which side of a text is at its spot."""
    if offset > 0.1:
        return start
    if offset < -0.1:
        return end
    return "center"
