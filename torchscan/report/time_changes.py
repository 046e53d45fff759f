"""Changes of a time between two runs, and whether a change exceeds the ranges of the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchscan.inspecting.call_run import Latency

#: maximum probability that a time is marked although it is the same in both runs
_MAX_CHANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    """A time before and after, or None where there was none."""

    before: Latency | None
    after: Latency | None
    #: True if the ranges (minimum to maximum) do not overlap, with enough steps that chance is
    #: unlikely
    is_clear: bool

    @property
    def difference(self) -> float:
        """Seconds after minus seconds before."""
        return median_or_zero(self.after) - median_or_zero(self.before)

    @property
    def share(self) -> float | None:
        """The difference as a share of the time before; None if that was 0."""
        before = median_or_zero(self.before)
        if not before or self.after is None:
            return None
        return self.difference / before


def compare_times(
    before: Latency | None, after: Latency | None, steps: tuple[int, int]
) -> TimeChange:
    """Return the change of a time, from runs with these numbers of steps."""
    is_clear = False
    if before is not None and after is not None and are_enough(steps):
        is_clear = after.min > before.max or after.max < before.min
    return TimeChange(before=before, after=after, is_clear=is_clear)


def are_enough(steps: tuple[int, int]) -> bool:
    """Return whether ranges of these numbers of steps are unlikely to differ by chance."""
    return chance_of_no_overlap(*steps) < _MAX_CHANCE


def chance_of_no_overlap(before: int, after: int) -> float:
    """Return the probability that two ranges do not overlap by chance.

    Of the (m + n)! / (m! n!) equally likely orders of the steps of two runs, two have no overlap.
    """
    return min(1.0, 2 / math.comb(before + after, before))


def median_or_zero(latency: Latency | None) -> float:
    """Return the median in seconds, or 0 if there was no such call."""
    return 0.0 if latency is None else latency.median
