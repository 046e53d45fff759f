"""A series over time as a picture: columns of steps, rows of values, as plain data that a page draws."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchscan.live.bins import BINS, is_finite, quantiles
from torchscan.live.schema import Distribution

#: the share of values that may lie in the row around zero besides zeros: with one row for each half of an octave down to the
#: least of all values, a picture would be empty for the most part
_NEAR_ZERO = 0.02
#: signs for how much of a column is in a row: none, then a logarithmic scale from one of 512 up
SHADES = "0123456789ABCDEF"
_SHARES = (0.05, 0.5, 0.95)
_HALF = BINS // 2


class HeatmapColumn:
    """A series in several steps, in any order. Each value counts equally.

    If ``s`` of ``n`` values were sampled, each of them counts ``n / s`` times.
    """

    __slots__ = ("_finite", "_sum", "counts", "inf", "max", "min", "nan")

    def __init__(self, seen: Distribution) -> None:
        times = seen.numel / max(1, seen.sampled)
        self.counts: dict[int, float] = {
            number: times * count for number, count in seen.counts.items()
        }
        self.min, self.max, self.nan, self.inf = seen.min, seen.max, seen.nan, seen.inf
        self._finite = times * (seen.sampled - seen.nan - seen.inf)
        self._sum = self._finite * seen.mean if self._finite else 0.0

    @property
    def mean(self) -> float:
        """Mean of the finite values."""
        return self._sum / self._finite if self._finite else math.nan

    def add(self, other: HeatmapColumn) -> None:
        """Other steps."""
        if other is self:
            return
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0.0) + count
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.nan, self.inf = self.nan + other.nan, self.inf + other.inf
        self._finite, self._sum = self._finite + other._finite, self._sum + other._sum


def heat_of(columns: Sequence[HeatmapColumn]) -> dict[str, Any]:
    """Return the heatmap of a series, column by column.

    ``nearest`` is the bin of the smallest values with a row; ``up`` and ``down`` are the numbers of
    rows above and below zero. ``rows`` go from the largest values to the smallest, with the row
    around zero among them, and have a character per column.
    """
    counts = [_finite(each.counts) for each in columns]
    nearest = _nearest(counts)
    up, down = (_reach(counts, sign, nearest) for sign in (1, -1))
    rows = [*range(nearest + up - 1, nearest - 1, -1), 0, *range(-nearest, -nearest - down, -1)]
    return {
        "nearest": nearest,
        "up": up,
        "down": down,
        "rows": _shaded(counts, rows, nearest),
        **{
            key: [_rounded(getattr(each, name)) for each in columns]
            for key, name in (("least", "min"), ("most", "max"), ("mean", "mean"))
        },
        **{name: [getattr(each, name) for each in columns] for name in ("nan", "inf")},
        "quantiles": [
            [_rounded(value) for value in quantiles(each.counts, _SHARES, (each.min, each.max))]
            for each in columns
        ],
    }


def _finite(counts: Mapping[int, float]) -> dict[int, float]:
    """Return counts by row: 0 is zero, other rows have the number of their bin, with its sign."""
    found: defaultdict[int, float] = defaultdict(float)
    for number, count in counts.items():
        if is_finite(number):
            found[number if number < _HALF else _HALF - number] += count
    return found


def _reach(counts: Iterable[Mapping[int, float]], sign: int, nearest: int) -> int:
    """Return the number of rows on one side of zero."""
    farthest = max((sign * row for each in counts for row in each), default=0)
    return max(0, farthest - nearest + 1)


def _nearest(counts: Iterable[Mapping[int, float]]) -> int:
    """The first bin from zero that has a row: less than a small share of all that is not zero lies before it."""
    sizes: defaultdict[int, float] = defaultdict(float)
    for each in counts:
        for row, count in each.items():
            sizes[abs(row)] += count if row else 0
    room = _NEAR_ZERO * sum(sizes.values())
    for size in sorted(filter(None, sizes)):
        room -= sizes[size]
        if room < 0:
            return size
    return 1


def _shaded(counts: Sequence[Mapping[int, float]], rows: Sequence[int], nearest: int) -> list[str]:
    wholes = [max(1, sum(each.values())) for each in counts]
    middle = [sum(count for row, count in each.items() if abs(row) < nearest) for each in counts]
    return [
        "".join(
            _shade(count / whole)
            for count, whole in zip(_of(row, counts) if row else middle, wholes, strict=True)
        )
        for row in rows
    ]


def _of(row: int, counts: Sequence[Mapping[int, float]]) -> list[float]:
    return [each.get(row, 0) for each in counts]


def _shade(share: float) -> str:
    if not share:
        return SHADES[0]
    return SHADES[
        min(len(SHADES) - 1, math.ceil((len(SHADES) - 1) * math.log1p(512 * share) / math.log(513)))
    ]


def _rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None
