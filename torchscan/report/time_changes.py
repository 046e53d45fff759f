"""Changes of a time between two runs, and whether a change exceeds the variation of the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torchscan.inspecting.call_run import Latency, num_outside_quartile

#: maximum probability that a time is marked although it is the same in both runs
_MAX_CHANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    """A time before and after, or None where there was none."""

    before: Latency | None
    after: Latency | None
    #: True if the interquartile ranges do not overlap (with fewer steps, the ranges from min to
    #: max), and there are enough steps that this is unlikely by chance
    is_clear: bool

    @property
    def difference(self) -> float:
        """Seconds after minus seconds before."""
        return median_or_zero(self.after) - median_or_zero(self.before)

    @property
    def has_quartiles(self) -> bool:
        """True if both runs have quartiles."""
        sides = (self.before, self.after)
        return all(each is not None and each.lower_quartile is not None for each in sides)

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
    """Return the change of a time, from runs with these numbers of steps.

    Interquartile ranges count if there are enough steps: one slow step does not widen them.
    """
    change = TimeChange(before=before, after=after, is_clear=False)
    if before is None or after is None or not are_enough(steps):
        return change
    lower, upper = (before.min, after.min), (before.max, after.max)
    if change.has_quartiles and are_enough(steps, for_quartiles=True):
        lower = (before.lower_quartile or 0.0, after.lower_quartile or 0.0)
        upper = (before.upper_quartile or 0.0, after.upper_quartile or 0.0)
    is_clear = lower[1] > upper[0] or lower[0] > upper[1]
    return TimeChange(before=before, after=after, is_clear=is_clear)


def are_enough(steps: tuple[int, int], *, for_quartiles: bool = False) -> bool:
    """Return whether ranges of these numbers of steps are unlikely to differ by chance."""
    return chance_of_no_overlap(*steps, for_quartiles=for_quartiles) < _MAX_CHANCE


@lru_cache(maxsize=256)
def chance_of_no_overlap(before: int, after: int, *, for_quartiles: bool = False) -> float:
    """Return the probability that two ranges, or interquartile ranges, do not overlap by chance.

    If the runs do not differ, all (m + n)! / (m! n!) orders of their m and n steps are equally
    likely.
    """
    if not before or not after:
        return 1.0
    outside = (0, 0)
    if for_quartiles:
        outside = (num_outside_quartile(before), num_outside_quartile(after))
    outside_before, outside_after = outside
    num_slower = _count_slower(before, after, outside_before, outside_after)
    num_faster = _count_slower(after, before, outside_after, outside_before)
    return min(1.0, (num_slower + num_faster) / math.comb(before + after, before))


def _count_slower(before: int, after: int, outside_before: int, outside_after: int) -> int:
    """Return the number of orders in which the range after begins above the end of the one before.

    That end is the r-th of the m steps before. At most ``outside_after`` of the n steps after are
    below it. If j are, there are C(r - 1 + j, j) orders below it and C(m + n - r - j, n - j) above.
    """
    end = before - outside_before
    return sum(
        math.comb(end - 1 + below, below) * math.comb(before + after - end - below, after - below)
        for below in range(outside_after + 1)
    )


def median_or_zero(latency: Latency | None) -> float:
    """Return the median in seconds, or 0 if there was no such call."""
    return 0.0 if latency is None else latency.median
