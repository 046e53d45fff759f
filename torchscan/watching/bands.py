"""The bands of series over their columns of steps, as plain data that a page draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.watching.distributions import BINS, bounds
from torchscan.watching.page_numbers import round_to_digits, to_finite

#: shares of the values below the edges of the bands, and the median among them
SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
#: powers of ten around zero with a share of the values, down from the largest value's
NUM_POWERS = 9
#: significant digits of values, and of values within a decade that does not reach zero
_DIGITS, _DIGITS_IN_DECADE = 3, 5
#: cells whose counts are in memory at once
_MAX_CELLS = 1 << 13

_HALF = BINS // 2
#: the finite bins from the most negative to the most positive
_FINITE = torch.tensor([*range(_HALF + 509, _HALF - 1, -1), *range(510)])
#: position of each bin among these, or -1
_PLACES = torch.full((BINS,), -1)
_PLACES[_FINITE] = torch.arange(len(_FINITE))
_EDGES = torch.tensor([bounds(number) for number in _FINITE.tolist()], dtype=torch.float64)
_ZEROS = [509, 510]
#: values of the two bins around zero count as 0, because zeros are more frequent than subnormals
_EDGES[_ZEROS] = 0.0
_STARTS = _EDGES[:, 0].contiguous()


class Cells(NamedTuple):
    """Several series over columns of steps. Each value counts equally.

    A cell is a column in which a series was seen; the cells of a series lie one behind the other.
    """

    #: number of cells of each series
    sizes: list[int]
    #: cell, bin and estimated number of values, of the bins with values
    cells: Tensor
    bins: Tensor
    counts: Tensor
    #: statistics of each cell; ``dead`` and ``update`` are means of its steps, or NaN
    min: Tensor
    max: Tensor
    nan: Tensor
    inf: Tensor
    dead: Tensor
    update: Tensor

    def to_page_data(self) -> Iterator[dict[str, Any]]:
        """Yield plain data of each series, each with a value per column.

        ``quantiles`` has a row per share of :data:`SHARES`. ``near`` has the percentage of the
        values that are 0, and then of those between ``-10**k`` and ``10**k`` for the powers ``k``
        from ``near["power"]`` up, so that a page can choose the width of its zero band. ``dead``
        and ``update`` are there if a column has them.
        """
        powers, digits = self._scales()
        sizes = torch.tensor(self.sizes)
        powers_of_cells = torch.tensor(powers).repeat_interleave(sizes)
        digits_of_cells = torch.tensor(digits).repeat_interleave(sizes)
        quantiles, near = self._shares(powers_of_cells)
        rows: list[list[float | None]] = []
        for row in (*quantiles, self.min, self.max, self.dead, self.update):
            rounded = round_to_digits(row, digits_of_cells)
            rows.append(to_finite(rounded))
        percents = near.mul(100).round().int().tolist()
        nan = self.nan.long().tolist()
        inf = self.inf.long().tolist()
        start = 0
        for size, power in zip(self.sizes, powers, strict=True):
            here = slice(start, start + size)
            start = here.stop
            *shares, low, high, dead, update = (row[here] for row in rows)
            percent = [row[here] for row in percents]
            found: dict[str, Any] = {
                "quantiles": shares,
                "near": {"power": power, "percent": percent},
                "nan": nan[here],
                "inf": inf[here],
                "min": low,
                "max": high,
            }
            if any(value is not None for value in dead):
                found["dead"] = dead
            if any(value is not None for value in update):
                found["update"] = update
            yield found

    def _scales(self) -> tuple[list[int], list[int]]:
        """Return the first power and the significant digits of each series."""
        parts = zip(self.min.split(self.sizes), self.max.split(self.sizes), strict=True)
        powers: list[int] = []
        digits: list[int] = []
        for part in parts:
            extremes = torch.cat(part)
            is_finite = extremes.isfinite()
            known = extremes[is_finite].tolist() or [0.0]
            smallest, largest = min(known), max(known)
            near, far = sorted((abs(smallest), abs(largest)))
            power = math.floor(math.log10(far)) if far else 0
            powers.append(power - NUM_POWERS + 1)
            # such as weights of normalization around 1
            has_one_sign = smallest * largest > 0
            is_decade = has_one_sign and far <= 10 * near
            digits.append(_DIGITS_IN_DECADE if is_decade else _DIGITS)
        return powers, digits

    def _shares(self, powers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantiles, and the shares of zeros and within powers of ten, by cell."""
        num_cells = len(self.min)
        places = _PLACES[self.bins]
        is_known = places >= 0
        keys = self.cells[is_known] * BINS + places[is_known]
        keys, order = keys.sort()
        counts = self.counts[is_known]
        counts = counts[order]
        cells = keys.div(BINS, rounding_mode="floor")
        places = keys % BINS
        starts = torch.searchsorted(cells, torch.arange(num_cells + 1))
        first_powers, which = powers.unique(return_inverse=True)
        limits = _limits_from(first_powers.tolist())
        quantiles = torch.empty(len(SHARES), num_cells, dtype=torch.float64)
        near = torch.empty(NUM_POWERS + 1, num_cells, dtype=torch.float64)
        for start in range(0, num_cells, _MAX_CELLS):
            part = slice(start, start + _MAX_CELLS)
            ends = starts[start : start + _MAX_CELLS + 1]
            entries = slice(int(ends[0]), int(ends[-1]))
            rows = cells[entries]
            numbers = torch.arange(entries.start, entries.stop)
            found = _Counts(
                rows=rows - start,
                indices=numbers - starts[rows],
                places=places[entries],
                counts=counts[entries],
                extremes=(self.min[part], self.max[part]),
            )
            quantiles[:, part] = found.quantiles(SHARES)
            near[0, part] = found.zeros()
            chosen = which[part]
            upper, above, below = (each[chosen] for each in limits)
            near[1:, part] = found.shares_within(upper, above, below)
        return quantiles, near


def _limits_from(powers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the powers of ten from each first one up, and the bins of their limits.

    A bin of negative values includes its upper edge, a bin of positive ones its lower edge.
    """
    limits = [10.0 ** (first + more) for first in powers for more in range(NUM_POWERS)]
    upper = torch.tensor(limits, dtype=torch.float64).view(-1, NUM_POWERS)
    above = torch.bucketize(upper, _STARTS, right=True) - 1
    below = torch.bucketize(-upper, _STARTS) - 1
    return upper, above, below


class _Counts:
    """Counts of the finite values of some cells: a row for each, in the order of values."""

    def __init__(
        self,
        *,
        rows: Tensor,
        indices: Tensor,
        places: Tensor,
        counts: Tensor,
        extremes: tuple[Tensor, Tensor],
    ) -> None:
        """``rows`` and ``indices``: where the bins ``places`` and their counts lie."""
        # the extremes are known more precisely than their bins
        self._min, self._max = (each[:, None] for each in extremes)
        shape = len(self._min), int(indices.max()) + 1 if len(indices) else 1
        self._places = torch.full(shape, len(_FINITE))
        self._places[rows, indices] = places
        self._counts = torch.zeros(shape, dtype=torch.float64)
        self._counts[rows, indices] = counts
        self._ends = self._counts.cumsum(1)
        self._wholes = self._ends[:, -1:]

    def quantiles(self, shares: Sequence[float]) -> Tensor:
        """Return quantiles by share and cell, each in its bin in the order of values."""
        targets = torch.tensor(shares, dtype=torch.float64) * self._wholes
        indices = torch.searchsorted(self._ends, targets).clamp(max=self._ends.shape[1] - 1)
        low, high = self._edges_at(self._places.gather(1, indices))
        count = self._counts.gather(1, indices)
        begin = self._ends.gather(1, indices) - count
        values = low + (high - low) * (targets - begin) / count
        return values.where(self._wholes > 0, math.nan).T

    def zeros(self) -> Tensor:
        """Return the share of zeros by cell."""
        is_zero = (self._places == _ZEROS[0]) | (self._places == _ZEROS[1])
        return self._share(self._counts.where(is_zero, 0.0).sum(1, keepdim=True))[:, 0]

    def shares_within(self, upper: Tensor, above: Tensor, below: Tensor) -> Tensor:
        """Return the share of the values between ``-limit`` and ``limit``, by limit and cell.

        ``above`` and ``below`` are the bins of the limits of each cell.
        """
        return self._share(self._below(upper, above) - self._below(-upper, below)).T

    def _below(self, limits: Tensor, bins: Tensor) -> Tensor:
        """Return the number of values below each limit, by cell and limit.

        ``bins`` are the places of the limits. If all values of a bin are equal to a limit, they
        count to the side of zero.
        """
        places = bins.clamp(min=0)
        low, high = self._edges_at(places)
        is_below = torch.where(limits > 0, high <= limits, high < limits)
        part = ((limits - low) / (high - low)).where(high > low, 0.0).clamp(0, 1)
        indices = torch.searchsorted(self._places, places)
        at = indices.clamp(max=self._ends.shape[1] - 1)
        is_there = self._places.gather(1, at) == places
        count = self._counts.gather(1, at).where(is_there, 0.0)
        begin = self._ends.gather(1, (indices - 1).clamp(min=0)).where(indices > 0, 0.0)
        return begin + count * part.where(~is_below, 1.0)

    def _edges_at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        edges = _EDGES[places.clamp(max=len(_FINITE) - 1)]
        edges = edges.maximum(self._min[..., None]).minimum(self._max[..., None])
        low, high = edges.unbind(2)
        return low, high

    def _share(self, counts: Tensor) -> Tensor:
        return counts / self._wholes.clamp(min=1e-300)
