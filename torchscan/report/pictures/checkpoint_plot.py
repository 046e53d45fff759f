"""Plot of the memory and time of all ways to checkpoint a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchscan.analyses.checkpoint_curve import CheckpointChoice, CheckpointCurve
from torchscan.report.checkpoint_table import describe_recomputed
from torchscan.report.pictures.labels import Spot, label
from torchscan.report.pictures.style import Size, drawing, inks_of
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: areas of points: of all ways, and of those on the front
_AREA, _FRONT_AREA = 10.0, 36.0
#: ways that are named by what they recompute, which is short
_MAX_NAME = 24


@explain_wrong_types
def draw_checkpoints(
    curve: CheckpointCurve, *, ax: Axes | None = None, size: Size = "screen"
) -> Axes:
    """Draw the time of a step over the memory that it reserves, with the Pareto front as a line.

    Ways that do not fit are hollow; a vertical line is the limit.

    Args:
        curve: of ``MemoryEstimate.checkpointing()``.
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    with drawing(ax, size) as ax:
        inks = inks_of(ax)
        color = inks.colours["memory"]
        ax.grid(color=inks.hair, linewidth=0.5, alpha=0.6)
        ax.set_axisbelow(True)
        front = list(map(_spot, curve.front))
        xs = [spot.x for spot in front]
        ax.plot(xs, [spot.y for spot in front], color=color, linewidth=1.2, zorder=2)
        _draw_points(ax, curve, color)
        ax.margins(0.15)
        if not all(each.fits for each in curve):
            ax.axvline(curve.limit / 2**30, color=inks.soft, linewidth=0.8, linestyle="--")
        ax.set(xlabel="Reserved, GiB", ylabel="Step, ms")
        ax.set_title(curve.question, loc="left", fontsize="medium")
        names = [(_spot(each), describe_recomputed(each, curve)) for each in curve]
        short = [(spot, name) for spot, name in names if len(name) <= _MAX_NAME]
        label(ax, short, list(map(_spot, curve)))
    return ax


def _draw_points(ax: Axes, curve: CheckpointCurve, color: str) -> None:
    """Draw the ways as points, which are hollow if they do not fit."""
    for each in curve:
        spot, area, inside = _spot(each), _AREA, "none"
        if each.is_on_front:
            area = _FRONT_AREA
        if each.fits:
            inside = color
        ax.scatter(spot.x, spot.y, area, facecolor=inside, edgecolor=color, zorder=3)


def _spot(choice: CheckpointChoice) -> Spot:
    """Return the place of a way: GiB and milliseconds."""
    x, y = choice.reserved_bytes / 2**30, 1000 * choice.time_estimate
    return Spot(x, y, (_FRONT_AREA / 3.14) ** 0.5)
