"""A series over time as a picture: columns of steps, rows of values, as plain data that a page draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.live.bins import BINS, bounds, is_finite
from torchscan.live.schema import Distribution

#: the share of values that may lie in the row around zero besides zeros: with one row for each half of an octave down to the
#: least of all values, a picture would be empty for the most part
_NEAR_ZERO = 0.02
#: signs for how much of a column is in a row: none, then a logarithmic scale from one of 512 up
SHADES = "0123456789ABCDEF"
_SHARES = (0.05, 0.5, 0.95)
_HALF = BINS // 2
#: bins on each side of zero without those of Inf and NaN
_NUM_FINITE = _HALF - 2


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
    """Return the heatmap of a series, as :meth:`Heatmap.to_page_data` does."""
    counts = torch.zeros(len(columns), BINS, dtype=torch.float64)
    for place, column in enumerate(columns):
        for number, count in column.counts.items():
            counts[place, number] = count
    figures = torch.tensor(
        [[getattr(each, name) for each in columns] for name in Heatmap._fields[1:]]
    ).double()
    return Heatmap(counts, *figures).to_page_data()


class Heatmap(NamedTuple):
    """A series over time, as a column for some steps each. Each value counts equally."""

    #: estimated number of values, by column and bin
    counts: Tensor
    #: statistics of each column
    min: Tensor
    max: Tensor
    mean: Tensor
    nan: Tensor
    inf: Tensor

    def to_page_data(self) -> dict[str, Any]:
        """Return plain data, column by column.

        ``nearest`` is the bin of the smallest values with a row; ``up`` and ``down`` are the
        numbers of rows above and below zero. ``rows`` go from the largest values to the smallest,
        with the row around zero among them, and have a character per column.
        """
        positive, negative = self.counts[:, :_NUM_FINITE], self.counts[:, _HALF:][:, :_NUM_FINITE]
        nearest, up, down = _extent(positive.sum(0), negative.sum(0))
        rows = [
            positive[:, nearest : nearest + up].flip(1),
            (positive + negative)[:, :nearest].sum(1, keepdim=True),
            negative[:, nearest : nearest + down],
        ]
        totals = (positive + negative).sum(1, keepdim=True).clamp(min=1)
        return {
            "nearest": nearest,
            "up": up,
            "down": down,
            "rows": _shaded(torch.cat(rows, 1) / totals),
            "least": list(map(_rounded, self.min.tolist())),
            "most": list(map(_rounded, self.max.tolist())),
            "mean": list(map(_rounded, self.mean.tolist())),
            "nan": self.nan.long().tolist(),
            "inf": self.inf.long().tolist(),
            "quantiles": [list(map(_rounded, each)) for each in self._quantiles().tolist()],
        }

    def _quantiles(self) -> Tensor:
        """Return quantiles of each column, as :func:`torchscan.live.bins.quantiles` does."""
        lows, highs, order = _edges()
        order = order[self.counts[:, order].sum(0) > 0]
        if not len(order):
            return torch.full((len(self.counts), len(_SHARES)), torch.nan)
        counts = self.counts[:, order]
        ends = counts.cumsum(1)
        least, most = self.min[:, None], self.max[:, None]
        wanted = ends[:, -1:] * torch.tensor(_SHARES, dtype=torch.float64)
        places = torch.searchsorted(ends, wanted).clamp(max=len(order) - 1)
        low = lows[order][places].maximum(least).minimum(most)
        high = highs[order][places].maximum(least).minimum(most)
        count = counts.gather(1, places)
        share = (wanted - (ends.gather(1, places) - count)) / count
        return low + (high - low) * share


@lru_cache(maxsize=1)
def _edges() -> tuple[Tensor, Tensor, Tensor]:
    """Return the edges of all bins, and the finite ones in the order of their values.

    Values of the two bins around zero count as 0.
    """
    edges = list(map(bounds, range(BINS)))
    edges[0] = edges[_HALF] = (0.0, 0.0)
    finite = list(filter(is_finite, range(BINS)))
    finite.sort(key=lambda number: edges[number][0])
    lows, highs = torch.tensor(edges, dtype=torch.float64).unbind(1)
    return lows, highs, torch.tensor(finite)


def _extent(positive: Tensor, negative: Tensor) -> tuple[int, int, int]:
    """Return the first bin from zero with a row, and the number of rows on both sides.

    Less than a small share of all values that are not zero lies before it.
    """
    sizes = positive + negative
    sizes[0] = 0.0
    ends = sizes.cumsum(0)
    beyond = (ends > _NEAR_ZERO * ends[-1]).nonzero().flatten().tolist()
    nearest = beyond[0] if beyond else 1
    reaches = []
    for side in (positive, negative):
        filled = side.nonzero().flatten().tolist()
        reaches.append(max(0, filled[-1] - nearest + 1) if filled else 0)
    up, down = reaches
    return nearest, up, down


def _shaded(shares: Tensor) -> list[str]:
    """Return the shades of a picture, a text for each row of it."""
    darkest = len(SHADES) - 1
    scale = torch.log1p(512 * shares) / math.log(513)
    shades = (darkest * scale).ceil().clamp(max=darkest).long()
    signs = torch.tensor(list(SHADES.encode()))
    rows = signs[shades].T.tolist()
    return [bytes(row).decode() for row in rows]


def _rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None
