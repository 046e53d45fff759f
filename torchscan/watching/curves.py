"""Curves of a run: the loss and the learning rate of each step, and gradient norms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchscan.plain import to_plain
from torchscan.results import PlotSize, Result, draw
from torchscan.watching.schema import CurvePoint, Phase

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: the newest points of a phase, which are all kept
NUM_KEPT = 4096
#: the older ones are divided into at most so many spans of equal length
_MAX_SPANS = 1024
#: points after which older ones are thinned out again
THINNING_INTERVAL = 1024
_VALUES = ("loss", "learning_rate", "gradient_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves(Result):
    """Loss and learning rate of all steps of a run, and the gradient norm of sampled ones.

    The last 4,096 steps are complete. Of each span of older steps these are kept: the first step,
    those with the smallest and the largest value of each curve, and the first that is not finite.

    With several ranks, the loss is the mean over the ranks, or None where a rank no longer has the
    step. The learning rate and the gradient norm are those of the first rank.
    """

    phase: Phase
    #: training step, or the number of training steps before an evaluation pass
    steps: tuple[int, ...]
    #: 0 for the first pass of its kind, counted over the run
    numbers: tuple[int, ...]
    #: seconds since 1970
    times: tuple[float, ...]
    #: value of the tensor that ``backward()`` was called on, or None
    losses: tuple[float | None, ...]
    #: learning rate of the optimizer's first parameter group, or None
    learning_rates: tuple[float | None, ...]
    #: L2 norm over all watched gradients, before clipping; None in steps that were not sampled
    gradient_norms: tuple[float | None, ...]

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def __repr__(self) -> str:
        """Return the phase and the span of steps."""
        span = f", {self.steps[0]} … {self.steps[-1]}" if self.steps else ""
        return f"<Curves, {self.phase}: {len(self)} steps{span}>"

    def plot(self, ax: Axes | None = None, *, size: PlotSize = "screen") -> Axes:
        """Draw the loss over the steps, into ``ax`` or into a new figure."""
        return draw(self, ax=ax, size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the columns by name. ``"NaN"`` and ``"Infinity"`` are texts."""
        content: dict[str, Any] = to_plain(self)
        return content


def curves_of(phase: Phase, ranks: Sequence[Sequence[CurvePoint]]) -> Curves:
    """Return the curves of all ranks together."""
    columns = list(zip(*merge_points(ranks), strict=True)) or [()] * len(CurvePoint._fields)
    steps, numbers, times, losses, learning_rates, gradient_norms = columns
    return Curves(
        phase=phase,
        steps=steps,
        numbers=numbers,
        times=times,
        losses=losses,
        learning_rates=learning_rates,
        gradient_norms=gradient_norms,
    )


def merge_points(ranks: Sequence[Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Return the points of all ranks, one for each pass."""
    ranks = [points for points in ranks if points]
    if len(ranks) <= 1:
        return list(ranks[0]) if ranks else []
    found: dict[tuple[int, int], dict[int, CurvePoint]] = defaultdict(dict)
    for rank, points in enumerate(ranks):
        for point in points:
            found[point.step, point.number][rank] = point
    ends = [(points[0], points[-1]) for points in ranks]
    merged = []
    for place in sorted(found):
        num_ranks = sum(first[:2] <= place <= last[:2] for first, last in ends)
        merged.append(_merge_ranks(found[place], num_ranks))
    return merged


def _merge_ranks(points: Mapping[int, CurvePoint], num_ranks: int) -> CurvePoint:
    """Return the point of a pass of ``num_ranks`` ranks, of which some may have dropped it."""
    losses = [point.loss for point in points.values() if point.loss is not None]
    loss = sum(losses) / len(losses) if losses else None
    if loss is not None and math.isfinite(loss) and len(points) < num_ranks:
        loss = None
    learning_rate = gradient_norm = None
    if 0 in points:
        learning_rate = points[0].learning_rate
        gradient_norm = points[0].gradient_norm
    any_point = next(iter(points.values()))
    return CurvePoint(
        step=any_point.step,
        number=any_point.number,
        time=min(point.time for point in points.values()),
        loss=loss,
        learning_rate=learning_rate,
        gradient_norm=gradient_norm,
    )


def points_to_drop(points: Sequence[CurvePoint]) -> Iterator[int]:
    """Yield the numbers of points that are dropped: those without an extreme of an older span.

    Dropping them and asking again changes nothing, and wider spans later find the same extremes.
    """
    old = points[:-NUM_KEPT]
    if not old:
        return
    width = 1
    while (old[-1].number - old[0].number) // width >= _MAX_SPANS:
        width *= 2
    spans: dict[int, list[CurvePoint]] = defaultdict(list)
    for point in old:
        spans[point.number // width].append(point)
    for span in spans.values():
        kept = {span[0].number}
        for name in _VALUES:
            values = [(getattr(point, name), point.number) for point in span]
            kept.update(_extremes((value, number) for value, number in values if value is not None))
        yield from (point.number for point in span if point.number not in kept)


def _extremes(values: Iterable[tuple[float, int]]) -> Iterator[int]:
    """Yield the numbers of the smallest and largest value, and of the first that is not finite."""
    finite = []
    has_other = False
    for value, number in values:
        if math.isfinite(value):
            finite.append((value, number))
        elif not has_other:
            has_other = True
            yield number
    if finite:
        yield min(finite)[1]
        yield max(finite)[1]
