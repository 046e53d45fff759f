"""Columns of a series over time: several steps together, as plain data that a page draws."""

from __future__ import annotations

import math

from torchscan.live.schema import Distribution


class HeatmapColumn:
    """A series in several steps, in any order. Each value counts equally.

    If ``s`` of ``n`` values were sampled, each of them counts ``n / s`` times.
    """

    __slots__ = ("_dead", "_update", "counts", "inf", "max", "min", "nan")

    def __init__(self, seen: Distribution) -> None:
        times = seen.numel / max(1, seen.sampled)
        self.counts: dict[int, float] = {
            number: times * count for number, count in seen.counts.items()
        }
        self.min, self.max, self.nan, self.inf = seen.min, seen.max, seen.nan, seen.inf
        self._dead, self._update = (_KnownMean(value) for value in (seen.dead, seen.update))

    @property
    def dead(self) -> float:
        """Mean of the steps' shares of dead units, or NaN if they were not computed."""
        return self._dead.value

    @property
    def update(self) -> float:
        """Mean of the steps' relative changes of a parameter, or NaN if they are not known."""
        return self._update.value

    def add(self, other: HeatmapColumn) -> None:
        """Other steps."""
        if other is self:
            return
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0.0) + count
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.nan, self.inf = self.nan + other.nan, self.inf + other.inf
        self._dead.add(other._dead)
        self._update.add(other._update)


class _KnownMean:
    """Mean of the values that are not NaN."""

    __slots__ = ("_count", "_sum")

    def __init__(self, value: float) -> None:
        self._count, self._sum = (0, 0.0) if math.isnan(value) else (1, value)

    @property
    def value(self) -> float:
        """The mean, or NaN without any value."""
        return self._sum / self._count if self._count else math.nan

    def add(self, other: _KnownMean) -> None:
        """Add the values of another mean."""
        self._count, self._sum = self._count + other._count, self._sum + other._sum
