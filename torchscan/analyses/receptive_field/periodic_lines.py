"""Periodic-affine functions of one index: ``f(i) = table[i mod P] + (i div P) · rise``.

P is the number of entries in the table. Such functions are closed under all that an operator does
along one dimension: a window, a slice, a stretch, a split of the dimension in two. They go on
beyond the ends of the dimension, as if the tensor had none, which is what makes a receptive field a
property of the model and not of the size of its input.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

#: larger than any place: the value of a minimum over nothing
NOTHING = 1 << 60
#: values from this one on stand for nothing, even after numbers have been added to them
MIN_NOTHING = NOTHING >> 1


class PeriodicLine(NamedTuple):
    """A periodic-affine function of an index, of whole numbers; see the module.

    It is a tuple because lines are created, compared and hashed in every step of a way.
    """

    table: tuple[int, ...]
    rise: int

    def at(self, index: int) -> int:
        """Return the value at an index, which may be negative."""
        blocks, place = divmod(index, len(self.table))
        value = self.table[place]
        return NOTHING if value >= MIN_NOTHING else value + blocks * self.rise

    @property
    def slope(self) -> int | Fraction:
        """Mean rise from one index to the next."""
        return ratio(self.rise, len(self.table))

    @property
    def steepness(self) -> int | Fraction:
        """Absolute mean rise from one index to the next."""
        return ratio(abs(self.rise), len(self.table))

    def rise_in(self, count: int) -> int:
        """Return the mean rise over ``count`` indices, rounded down."""
        return self.rise * count // len(self.table)


def ratio(number: int, by: int) -> int | Fraction:
    """Return the quotient; most are whole numbers, which are faster to compute with."""
    return number // by if number % by == 0 else Fraction(number, by)


ZERO = PeriodicLine((0,), 0)
#: how many values are too many to compute at once
MAX_VALUES = 1 << 14


def values_of(line: PeriodicLine, count: int, start: int = 0) -> Sequence[int]:
    """Return the values at ``count`` indices from ``start`` on: ``line.at`` of many."""
    table, rise = line
    period = len(table)
    if period == 1 and table[0] < MIN_NOTHING:
        first = table[0] + start * rise
        if not rise:
            return (first,) * count
        return range(first, first + count * rise, rise)

    first_block = start // period
    skipped = start - first_block * period
    if skipped + count <= period:
        table, skipped = table[skipped : skipped + count], 0
    num_blocks = -(-(skipped + count) // period)
    values = _repeat_table(table, rise, range(first_block, first_block + num_blocks))
    if skipped or len(values) > count:
        return values[skipped : skipped + count]
    return values


def _repeat_table(table: tuple[int, ...], rise: int, blocks: range) -> list[int]:
    """Return the values of these periods, one after the other."""
    if has_gaps(table):
        return [
            NOTHING if value >= MIN_NOTHING else value + block * rise
            for block in blocks
            for value in table
        ]
    if not rise:
        return [*(table * len(blocks))]
    return [value + block * rise for block in blocks for value in table]


def has_gaps(values: Sequence[int]) -> bool:
    """Return whether some values are those of a minimum over nothing."""
    return max(values, default=0) >= MIN_NOTHING


def shortest(table: Sequence[int], rise: int) -> PeriodicLine:
    """Return the line of this table with the shortest possible period."""
    full = len(table)
    is_gapped = full > 1 and has_gaps(table)
    values = with_equal_gaps(table) if is_gapped else table
    for period, step in possible_periods(full, rise, full // 2):
        if continues_by(values, period, step, is_gapped):
            return PeriodicLine(tuple(table[:period]), step)
    return PeriodicLine(tuple(table), rise)


def possible_periods(full: int, rise: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield the periods that divide a table of ``full`` entries, and the rise in each, if whole."""
    for period in range(1, longest + 1):
        if full % period == 0 and rise * period % full == 0:
            yield period, rise * period // full


def with_equal_gaps(values: Sequence[int]) -> Sequence[int]:
    """Return the values with an equal value in all gaps, so that they can be compared at once."""
    return [*map(min, values, (MIN_NOTHING,) * len(values))]


def continues_by(values: Sequence[int], period: int, step: int, is_gapped: bool) -> bool:
    """Return whether each value is ``step`` more than the value one period before.

    Gaps have equal values (:func:`with_equal_gaps`).
    """
    # Most candidates fail at one of the ends already.
    if not _continues(values[0], values[period], step):
        return False
    if not _continues(values[-1 - period], values[-1], step):
        return False
    later = values[period:]
    if not step:
        return later == values[:-period]
    if is_gapped:
        return all(map(_continues, values, later, (step,) * len(later)))
    return all(map(step.__eq__, map(operator.sub, later, values)))


def _continues(value: int, later: int, step: int) -> bool:
    if value >= MIN_NOTHING or later >= MIN_NOTHING:
        return value >= MIN_NOTHING and later >= MIN_NOTHING
    return later - value == step


def add_to_table(table: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return the table with a number added to each value that does not stand for nothing."""
    return tuple([value if value >= MIN_NOTHING else value + number for value in table])


def split_off_start(line: PeriodicLine) -> tuple[int, PeriodicLine | None]:
    """Return the first value of a line, and the line less that value, or None if it is zero."""
    start = line.table[0]
    if start >= MIN_NOTHING:
        start = next((value for value in line.table if value < MIN_NOTHING), NOTHING)
        if start == NOTHING:
            return NOTHING, None
    if len(line.table) == 1:
        return start, PeriodicLine((0,), line.rise) if line.rise else None
    table = line.table
    if start:
        table = add_to_table(table, -start)
    if not line.rise and not any(table):
        return start, None
    return start, PeriodicLine(table, line.rise)


def min_value(line: PeriodicLine | None, size: int) -> int:
    """Return the least value among the first ``size`` indices."""
    if line is None:
        return 0
    if size <= len(line.table):
        return min(line.table[:size])
    if line.rise >= 0:
        return min(line.table)
    return min(_last_of_each_phase(line, size))


def greatest(line: PeriodicLine | None, size: int) -> int:
    """Return the greatest value among the first ``size`` indices, leaving out nothing."""
    if line is None:
        return 0
    ends = _last_of_each_phase(line, size) if line.rise > 0 else line.table[:size]
    return max((value for value in ends if value < MIN_NOTHING), default=NOTHING)


def _last_of_each_phase(line: PeriodicLine, size: int) -> Sequence[int]:
    count = min(len(line.table), size)
    return values_of(line, count, size - count)


def minimum(one: PeriodicLine | None, other: PeriodicLine | None) -> PeriodicLine:
    """Return the lesser of two lines of equal slope at each index."""
    first, second = one or ZERO, other or ZERO
    if _is_nowhere_above(first, second):
        return first
    if _is_nowhere_above(second, first):
        return second
    if len(first.table) == len(second.table):
        return shortest(tuple(map(min, first.table, second.table)), first.rise)
    period = math.lcm(len(first.table), len(second.table))
    table = [*map(min, values_of(first, period), values_of(second, period))]
    return shortest(table, first.rise * period // len(first.table))


def _is_nowhere_above(one: PeriodicLine, other: PeriodicLine) -> bool:
    """Return whether a constant is at most a line that does not rise: a frequent, cheap test."""
    if len(one.table) != 1 or one.rise or other.rise:
        return False
    return one.table[0] <= min(other.table)


def total(one: PeriodicLine | None, other: PeriodicLine | None) -> PeriodicLine | None:
    """Return the sum of two lines."""
    if one is None or other is None:
        return one or other
    period = math.lcm(len(one.table), len(other.table))
    table = [*map(operator.add, values_of(one, period), values_of(other, period))]
    if has_gaps(table):
        table = [min(value, NOTHING) for value in table]
    rise = one.rise * period // len(one.table) + other.rise * period // len(other.table)
    return shortest(table, rise)
