"""The bands of a series over its columns of steps, as plain data that a page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchscan.live.bins import BINS, bounds

if TYPE_CHECKING:
    from torchscan.live.heat import HeatmapColumn

#: shares of the values below the edges of the bands, and the median among them
SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
#: powers of ten around zero with a share of the values, down from the largest value's
NUM_POWERS = 9
#: significant digits of values, and of values within a decade that does not reach zero
_DIGITS, _DIGITS_IN_DECADE = 3, 5

#: the finite bins from the most negative to the most positive, and the place of each
_FINITE = [*range(BINS // 2 + 509, BINS // 2 - 1, -1), *range(510)]
_PLACES = [len(_FINITE)] * BINS
for _place, _bin in enumerate(_FINITE):
    _PLACES[_bin] = _place
_EDGES = torch.tensor([bounds(each) for each in _FINITE], dtype=torch.float64)
_ZEROS = (_PLACES[BINS // 2], _PLACES[0])
#: values of the two bins around zero count as 0, because zeros are more frequent than subnormals
_EDGES[list(_ZEROS)] = 0.0
_STARTS = _EDGES[:, 0].contiguous()


def bands_of(columns: Sequence[HeatmapColumn]) -> dict[str, Any]:
    """Return the bands of a series, each with a value per column.

    ``quantiles`` has a row per share of :data:`SHARES`. ``near`` has the percentage of the values
    that are 0, and then of those between ``-10**k`` and ``10**k`` for the powers ``k`` from
    ``near["power"]`` up, so that a page can choose the width of its zero band. ``dead`` and
    ``update`` are there if a column has them.
    """
    counts = _Counts(columns)
    extremes = [value for each in columns for value in (each.min, each.max) if math.isfinite(value)]
    digits = _DIGITS_IN_DECADE if _is_within_a_decade(extremes) else _DIGITS
    power = _power_of(extremes) - NUM_POWERS + 1
    limits = [10.0 ** (power + more) for more in range(NUM_POWERS)]
    shares = torch.cat([counts.zeros()[None], counts.shares_within(limits)])
    found: dict[str, Any] = {
        "quantiles": [_rounded(row, digits) for row in counts.quantiles(SHARES).tolist()],
        "near": {"power": power, "percent": shares.mul(100).round().int().tolist()},
        "nan": [each.nan for each in columns],
        "inf": [each.inf for each in columns],
    }
    for name in ("min", "max", "dead", "update"):
        values = _rounded((getattr(each, name) for each in columns), digits)
        if name in ("min", "max") or any(value is not None for value in values):
            found[name] = values
    return found


class _Counts:
    """Counts of the finite values, of all columns at once."""

    def __init__(self, columns: Sequence[HeatmapColumn]) -> None:
        width = len(_FINITE) + 1
        rows = chain.from_iterable(
            repeat(width * at, len(each.counts)) for at, each in enumerate(columns)
        )
        bins = chain.from_iterable(each.counts for each in columns)
        places = [row + _PLACES[number] for row, number in zip(rows, bins, strict=True)]
        counts = list(chain.from_iterable(each.counts.values() for each in columns))
        dense = torch.bincount(
            torch.tensor(places, dtype=torch.int64),
            torch.tensor(counts, dtype=torch.float64),
            minlength=width * len(columns),
        )
        self._counts = dense.view(len(columns), width)[:, :-1]
        self._ends = self._counts.cumsum(1)
        self._wholes = self._ends[:, -1:]
        # the extremes are known more precisely than their bins
        self._min = torch.tensor([each.min for each in columns], dtype=torch.float64)[:, None]
        self._max = torch.tensor([each.max for each in columns], dtype=torch.float64)[:, None]

    def quantiles(self, shares: Sequence[float]) -> Tensor:
        """Return quantiles by share and column, as :func:`torchscan.live.bins.quantiles` does."""
        targets = torch.tensor(shares, dtype=torch.float64) * self._wholes
        places = torch.searchsorted(self._ends, targets).clamp(max=len(_FINITE) - 1)
        low, high = self._edges_at(places)
        count = self._counts.gather(1, places)
        begin = self._ends.gather(1, places) - count
        values = low + (high - low) * (targets - begin) / count
        return values.where(self._wholes > 0, math.nan).T

    def zeros(self) -> Tensor:
        """Return the share of zeros by column."""
        return self._share(self._counts[:, list(_ZEROS)].sum(1, keepdim=True))[:, 0]

    def shares_within(self, limits: Sequence[float]) -> Tensor:
        """Return the share of the values between ``-limit`` and ``limit``, by limit and column."""
        upper = torch.tensor(limits, dtype=torch.float64)
        # a bin of negative values includes its upper edge, a bin of positive ones its lower edge
        above = torch.bucketize(upper, _STARTS, right=True) - 1
        below = torch.bucketize(-upper, _STARTS) - 1
        return self._share(self._below(upper, above) - self._below(-upper, below)).T

    def _below(self, limits: Tensor, bins: Tensor) -> Tensor:
        """Return the number of values below each limit, by column and limit.

        ``bins`` are the places of the limits. If all values of a bin are equal to a limit, they
        count to the side of zero.
        """
        places = bins.clamp(min=0).expand(len(self._counts), -1)
        low, high = self._edges_at(places)
        is_below = torch.where(limits > 0, high <= limits, high < limits)
        part = ((limits - low) / (high - low)).where(high > low, 0.0).clamp(0, 1)
        count = self._counts.gather(1, places)
        begin = self._ends.gather(1, places) - count
        return begin + count * part.where(~is_below, 1.0)

    def _edges_at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        edges = _EDGES[places].maximum(self._min[..., None]).minimum(self._max[..., None])
        low, high = edges.unbind(2)
        return low, high

    def _share(self, counts: Tensor) -> Tensor:
        return counts / self._wholes.clamp(min=1e-300)


def _power_of(values: Sequence[float]) -> int:
    """Return the largest power of ten that is not above the largest magnitude."""
    largest = max(map(abs, values), default=0.0)
    return math.floor(math.log10(largest)) if largest else 0


def _is_within_a_decade(values: Sequence[float]) -> bool:
    if not values:
        return False
    near, far = sorted((abs(min(values)), abs(max(values))))
    return min(values) * max(values) > 0 and far <= 10 * near


def _rounded(values: Iterable[float], digits: int) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
