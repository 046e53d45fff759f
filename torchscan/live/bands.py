"""The bands of a series over its columns of steps, as plain data that a page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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

_HALF = BINS // 2
#: the finite bins from the most negative to the most positive
_FINITE = torch.tensor([*range(_HALF + 509, _HALF - 1, -1), *range(510)])
_EDGES = torch.tensor([bounds(number) for number in _FINITE.tolist()], dtype=torch.float64)
_ZEROS = [509, 510]
#: values of the two bins around zero count as 0, because zeros are more frequent than subnormals
_EDGES[_ZEROS] = 0.0
_STARTS = _EDGES[:, 0].contiguous()


def bands_of(columns: Sequence[HeatmapColumn]) -> dict[str, Any]:
    """Return the bands of a series, as :meth:`Bands.to_page_data` does."""
    sizes = [len(each.counts) for each in columns]
    rows = torch.arange(len(columns)).repeat_interleave(torch.tensor(sizes))
    bins = torch.tensor([number for each in columns for number in each.counts])
    counts = torch.zeros(len(columns), BINS, dtype=torch.float64)
    values = [count for each in columns for count in each.counts.values()]
    counts[rows, bins.long()] = torch.tensor(values, dtype=torch.float64)
    statistics = [[getattr(each, name) for each in columns] for name in Bands._fields[1:]]
    return Bands(counts, *torch.tensor(statistics, dtype=torch.float64)).to_page_data()


class Bands(NamedTuple):
    """A series over columns of steps. Each value counts equally."""

    #: estimated number of values, by column and bin
    counts: Tensor
    #: statistics of each column; ``dead`` and ``update`` are means of its steps, or NaN
    min: Tensor
    max: Tensor
    nan: Tensor
    inf: Tensor
    dead: Tensor
    update: Tensor

    def to_page_data(self) -> dict[str, Any]:
        """Return plain data, each with a value per column.

        ``quantiles`` has a row per share of :data:`SHARES`. ``near`` has the percentage of the
        values that are 0, and then of those between ``-10**k`` and ``10**k`` for the powers ``k``
        from ``near["power"]`` up, so that a page can choose the width of its zero band. ``dead``
        and ``update`` are there if a column has them.
        """
        extremes = torch.cat([self.min, self.max])
        known = extremes[extremes.isfinite()].tolist()
        digits = _DIGITS_IN_DECADE if _is_within_a_decade(known) else _DIGITS
        power = _power_of(known) - NUM_POWERS + 1
        counts = _Counts(self)
        shares = counts.shares_within([10.0 ** (power + more) for more in range(NUM_POWERS)])
        shares = torch.cat([counts.zeros()[None], shares])
        found: dict[str, Any] = {
            "quantiles": [_rounded(row, digits) for row in counts.quantiles(SHARES).tolist()],
            "near": {"power": power, "percent": shares.mul(100).round().int().tolist()},
            "nan": self.nan.long().tolist(),
            "inf": self.inf.long().tolist(),
            "min": _rounded(self.min.tolist(), digits),
            "max": _rounded(self.max.tolist(), digits),
        }
        for name in ("dead", "update"):
            values: Tensor = getattr(self, name)
            if values.isfinite().any():
                found[name] = _rounded(values.tolist(), digits)
        return found


class _Counts:
    """Counts of the finite values, in the order of the values."""

    def __init__(self, bands: Bands) -> None:
        self._counts = bands.counts[:, _FINITE]
        self._ends = self._counts.cumsum(1)
        self._wholes = self._ends[:, -1:]
        # the extremes are known more precisely than their bins
        self._min, self._max = bands.min[:, None], bands.max[:, None]

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
        return self._share(self._counts[:, _ZEROS].sum(1, keepdim=True))[:, 0]

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
