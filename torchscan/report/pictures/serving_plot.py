"""Plot of tokens per second and latency of all ways to serve a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from torchscan.analyses.generation.serving_search import (
    ServingChoice,
    ServingSearch,
    describe_choice,
)
from torchscan.errors import InputError
from torchscan.report.pictures.labels import Spot, label
from torchscan.report.pictures.style import Size, drawing, inks_of
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: areas of points: of all choices, and of those on the front
_AREA, _FRONT_AREA = 10.0, 36.0
#: choices on the front that are named, besides the best
_MAX_NAMES = 4
#: spots that stand for a line where names are placed, and how far they reach, in points: names are
#: higher than the distance between two
_SPOTS_OF_LINE, _LINE_RADIUS = 100, 1.5


@explain_wrong_types
def draw_serving(search: ServingSearch, *, ax: Axes | None = None, size: Size = "screen") -> Axes:
    """Draw tokens per second per GPU over the time per token, with the Pareto front as a line.

    Choices outside the limits are hollow; a vertical line is the limit of the time per token.

    Args:
        search: of ``parallel.search_serving``.
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".
    """
    if not search.choices:
        raise InputError("the search found no way that fits: there is nothing to draw")
    with drawing(ax, size) as ax:
        inks = inks_of(ax)
        color, front = inks.colours["memory"], search.front
        ax.grid(color=inks.hair, linewidth=0.5, alpha=0.6)
        ax.set_axisbelow(True)
        for each in search.choices:
            _draw(ax, each, color, _AREA, alpha=0.45)
        spots = list(map(_spot, front))
        xs = [spot.x for spot in spots]
        ys = [spot.y for spot in spots]
        ax.plot(xs, ys, color=color, linewidth=1.2, zorder=2)
        for each in front:
            _draw(ax, each, color, _FRONT_AREA, alpha=1.0)
        if search.max_per_token is not None:
            ax.axvline(1000 * search.max_per_token, color=inks.soft, linewidth=0.8, linestyle="--")
        ax.margins(0.12)
        ax.set(xlabel="Time per token, ms", ylabel="Tokens per second and GPU")
        ax.set_ylim(bottom=0)
        named = list(front[:: max(1, len(front) // _MAX_NAMES)])
        if search.best is not None and search.best not in named:
            named.insert(0, search.best)
        taken = [*map(_spot, search.choices), *_line_spots(ax, spots, search.max_per_token)]
        label(ax, [(_spot(each), describe_choice(each)) for each in named], taken)
    return ax


def _line_spots(ax: Axes, front: Sequence[Spot], limit: float | None) -> Iterator[Spot]:
    """Yield spots on the lines of the picture, close enough that no name crosses a line."""
    steps = [index / _SPOTS_OF_LINE for index in range(_SPOTS_OF_LINE + 1)]
    for left, right in pairwise(front):
        for share in steps:
            x, y = left.x + share * (right.x - left.x), left.y + share * (right.y - left.y)
            yield Spot(x, y, _LINE_RADIUS)
    if limit is not None:
        low, high = ax.get_ylim()
        for share in steps:
            yield Spot(1000 * limit, low + share * (high - low), _LINE_RADIUS)


def _draw(ax: Axes, choice: ServingChoice, color: str, area: float, *, alpha: float) -> None:
    inside = color if choice.is_within_limits else "none"
    spot = _spot(choice)
    ax.scatter(spot.x, spot.y, area, facecolor=inside, edgecolor=color, alpha=alpha, zorder=3)


def _spot(choice: ServingChoice) -> Spot:
    """Return the place of a choice: milliseconds per token, tokens per second and GPU."""
    x, y = 1000 * choice.per_token, choice.tokens_per_second_per_gpu
    return Spot(x, y, (_FRONT_AREA / 3.14) ** 0.5)
