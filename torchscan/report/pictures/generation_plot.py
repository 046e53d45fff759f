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
    """Draw the tokens per second of all sequences over the time from one token to the next, a point for each batch size.

    Batch sizes for which the memory has no room are hollow.

    Args:
        sweep: of ``analyze_generation`` for at least two batch sizes; a single generation is refused.
        ax: where to draw; by default in a new figure.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".
    """
    generations = (sweep,) if isinstance(sweep, Generation) else sweep.generations
    if len(generations) < 2:
        raise InputError(
            "there is only one batch size to draw: give analyze_generation() ",
            Give("batch_size", [1, 8, 32]),
        )
    found = sorted(generations, key=lambda each: each.batch_size)
    with drawing(ax, size) as ax:
        inks = inks_of(ax)
        colour = inks.colours["memory"]
        spots = [_spot(each) for each in found]
        ax.grid(color=inks.hair, linewidth=0.5, alpha=0.6)
        ax.set_axisbelow(True)
        ax.plot(
            [spot.x for spot in spots],
            [spot.y for spot in spots],
            color=colour,
            linewidth=1,
            alpha=0.5,
            zorder=1,
        )
        for each, spot in zip(found, spots, strict=True):
            inside = colour if each.fits else "none"
            ax.scatter(
                spot.x, spot.y, _AREA, facecolor=inside, edgecolor=colour, zorder=2, clip_on=False
            )
        ax.margins(0.12)
        ax.set(xlabel="Time per token, ms", ylabel="Tokens per second")
        ax.set_ylim(bottom=0)
        label(
            ax,
            [(spot, _legend_label(each)) for each, spot in zip(found, spots, strict=True)],
            [*spots, *_along(spots)],
        )
    return ax


def _spot(each: Generation) -> Spot:
    return Spot(1000 * each.per_token, each.tokens_per_second, (_AREA / 3.14) ** 0.5)


def _along(spots: Sequence[Spot]) -> list[Spot]:
    """The line, which no name should hide."""
    return [
        Spot(
            one.x + (other.x - one.x) * step / _STEPS,
            one.y + (other.y - one.y) * step / _STEPS,
            1.0,
        )
        for one, other in pairwise(spots)
        for step in range(1, _STEPS)
    ]


def _legend_label(each: Generation) -> str:
    name = "1 sequence" if each.batch_size == 1 else f"{each.batch_size:,} sequences"
    return name if each.fits else f"{name}: no room"
