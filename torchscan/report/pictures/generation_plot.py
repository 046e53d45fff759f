"""Plot of tokens per second and latency against price."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.errors import Give, InputError
from torchscan.report.pictures.labels import Spot, label
from torchscan.report.pictures.style import Size, drawing, inks_of
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AREA = 36.0
#: parts of a line from point to point
_STEPS = 12


@explain_wrong_types
def draw_generation(
    sweep: Generation | GenerationSweep, *, ax: Axes | None = None, size: Size = "screen"
) -> Axes:
    """Draw tokens per second over the time per token, a point for each batch size.

    The points of batch sizes for which the memory has no room are hollow.

    Args:
        sweep: of ``analyze_generation`` for at least two batch sizes; a single generation is
            refused.
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    generations = (sweep,) if isinstance(sweep, Generation) else sweep.generations
    if len(generations) < 2:
        raise InputError(
            "there is only one batch size to draw: give analyze_generation() ",
            Give("batch_size", [1, 8, 32]),
        )
    radius = (_AREA / 3.14) ** 0.5
    spots, labels = [], []
    ordered = sorted(generations, key=lambda each: each.batch_size)
    for each in ordered:
        spot = Spot(1000 * each.per_token, each.tokens_per_second, radius)
        name = "1 sequence" if each.batch_size == 1 else f"{each.batch_size:,} sequences"
        spots.append(spot)
        labels.append((spot, name if each.fits else f"{name}: no room"))
    with drawing(ax, size) as ax:
        inks = inks_of(ax)
        color = inks.colours["memory"]
        ax.grid(color=inks.hair, linewidth=0.5, alpha=0.6)
        ax.set_axisbelow(True)
        xs = [spot.x for spot in spots]
        ys = [spot.y for spot in spots]
        ax.plot(xs, ys, color=color, linewidth=1, alpha=0.5, zorder=1)
        for each, spot in zip(ordered, spots, strict=True):
            inside = color if each.fits else "none"
            ax.scatter(
                spot.x, spot.y, _AREA, facecolor=inside, edgecolor=color, zorder=2, clip_on=False
            )
        ax.margins(0.12)
        ax.set(xlabel="Time per token, ms", ylabel="Tokens per second")
        ax.set_ylim(bottom=0)
        label(ax, labels, [*spots, *_spots_of_line(spots)])
    return ax


def _spots_of_line(spots: Sequence[Spot]) -> list[Spot]:
    """Return spots on the line between points, which no label should hide."""
    on_line = []
    for start, end in pairwise(spots):
        for step in range(1, _STEPS):
            x = start.x + (end.x - start.x) * step / _STEPS
            y = start.y + (end.y - start.y) * step / _STEPS
            on_line.append(Spot(x, y, 1.0))
    return on_line
