"""A series over time as a picture: columns of steps, rows of values, as plain data that a page draws."""

from __future__ import annotations

import math
from collections import Counter
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


def heat_of(columns: Sequence[Distribution]) -> dict[str, Any]:
    """Of what is known of a series, column by column.

    ``nearest`` is the bin of the least values that have a row, ``up`` and ``down`` are how many rows there are above and below
    zero; ``rows`` are from the greatest to the least, the row around zero among them, with a sign for each column.
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
        **{name: [_rounded(getattr(each, name)) for each in columns] for name in ("least", "most", "mean")},
        **{name: [getattr(each, name) for each in columns] for name in ("nan", "inf")},
        "quantiles": [
            [_rounded(value) for value in quantiles(each.counts, _SHARES, (each.least, each.most))] for each in columns
        ],
    }


def _finite(counts: Mapping[int, int]) -> dict[int, int]:
    """By row: 0 is zero, others have the number of their bin, with the sign of its values."""
    found: Counter[int] = Counter()
    for number, count in counts.items():
        if is_finite(number):
            found[number if number < _HALF else _HALF - number] += count
    return found


def _reach(counts: Iterable[Mapping[int, int]], sign: int, nearest: int) -> int:
    """How many rows there are on one side of zero."""
    farthest = max((sign * row for each in counts for row in each), default=0)
    return max(0, farthest - nearest + 1)


def _nearest(counts: Iterable[Mapping[int, int]]) -> int:
    """The first bin from zero that has a row: less than a small share of all that is not zero lies before it."""
    sizes: Counter[int] = Counter()
    for each in counts:
        for row, count in each.items():
            sizes[abs(row)] += count if row else 0
    room = _NEAR_ZERO * sizes.total()
    for size in sorted(filter(None, sizes)):
        room -= sizes[size]
        if room < 0:
            return size
    return 1


def _shaded(counts: Sequence[Mapping[int, int]], rows: Sequence[int], nearest: int) -> list[str]:
    wholes = [max(1, sum(each.values())) for each in counts]
    middle = [sum(count for row, count in each.items() if abs(row) < nearest) for each in counts]
    return [
        "".join(_shade(count / whole) for count, whole in zip(_of(row, counts) if row else middle, wholes, strict=True))
        for row in rows
    ]


def _of(row: int, counts: Sequence[Mapping[int, int]]) -> list[int]:
    return [each.get(row, 0) for each in counts]


def _shade(share: float) -> str:
    if not share:
        return SHADES[0]
    return SHADES[min(len(SHADES) - 1, math.ceil((len(SHADES) - 1) * math.log1p(512 * share) / math.log(513)))]


def _rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None
