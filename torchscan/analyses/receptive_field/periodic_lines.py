"""Periodic-affine functions of one index: ``f(i) = table[i mod P] + (i div P) · rise``, with P entries in the table.

Such functions are closed under all that an operator does along one dimension: a window, a slice, a stretch, a split of the
dimension in two. They go on beyond the ends of the dimension, as if the tensor had none, which is what makes a receptive field
a property of the model and not of the size of its input.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from torchscan.ops.windows import Taps

#: larger than any place: the value of a minimum over nothing
NOTHING = 1 << 60
#: values from this one on stand for nothing, even after numbers have been added to them
MIN_NOTHING = NOTHING >> 1


class PeriodicLine(
    NamedTuple
):  # a tuple, as lines are made, compared and hashed in every step of a way
    """A periodic-affine function of an index, of whole numbers; see the module."""

    table: tuple[int, ...]
    rise: int

    def at(self, index: int) -> int:
        """The value at an index, which may be negative."""
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
    """The quotient; most are whole numbers, with which it is quicker to reckon."""
    return number // by if number % by == 0 else Fraction(number, by)


ZERO = PeriodicLine((0,), 0)
#: how many phases a split may have, and how many values are too many to look at
_MAX_PHASES = 16
_MAX_VALUES = 1 << 14
#: how long a table may be that is longer than the dimension
_LONGEST_TABLE = 512


def values_of(line: PeriodicLine, count: int, start: int = 0) -> Sequence[int]:
    """The values at ``count`` indices from ``start`` on: ``line.at`` of many."""
    table, rise = line
    period = len(table)
    if period == 1 and table[0] < MIN_NOTHING:
        first = table[0] + start * rise
        return range(first, first + count * rise, rise) if rise else (first,) * count
    before = start // period
    skipped = start - before * period
    if skipped + count <= period:
        table, skipped = table[skipped : skipped + count], 0
    blocks = -(-(skipped + count) // period)
    if has_gaps(table):
        some = [
            NOTHING if value >= MIN_NOTHING else value + (before + block) * rise
            for block in range(blocks)
            for value in table
        ]
    elif not rise:
        some = [*(table * blocks)]
    else:
        some = [value + block * rise for block in range(before, before + blocks) for value in table]
    return some[skipped : skipped + count] if skipped or len(some) > count else some


def has_gaps(values: Sequence[int]) -> bool:
    """Return whether some values are those of a minimum over nothing."""
    return max(values, default=0) >= MIN_NOTHING


def shortest(table: Sequence[int], rise: int) -> PeriodicLine:
    """The line of this table with the shortest period that there is."""
    full = len(table)
    is_gapped = full > 1 and has_gaps(table)
    for period in range(1, full // 2 + 1):
        if (
            full % period == 0
            and rise * period % full == 0
            and _continues_by(table, period, rise * period // full, is_gapped)
        ):
            return PeriodicLine(tuple(table[:period]), rise * period // full)
    return PeriodicLine(tuple(table), rise)


def _continues_by(values: Sequence[int], period: int, step: int, is_gapped: bool) -> bool:
    """Return whether each value is ``step`` more than the value one period before."""
    if not _continues(values[0], values[period], step) or not _continues(
        values[-1 - period], values[-1], step
    ):
        return False  # most don't, and this tells
    later = values[period:]
    if is_gapped:
        return all(map(_continues, values, later, (step,) * len(later)))
    return all(map(step.__eq__, map(operator.sub, later, values)))


def _continues(value: int, later: int, step: int) -> bool:
    if value >= MIN_NOTHING or later >= MIN_NOTHING:
        return value >= MIN_NOTHING and later >= MIN_NOTHING
    return later - value == step


def split_off_start(line: PeriodicLine) -> tuple[int, PeriodicLine | None]:
    """The line less its first value, and that value; None for the line that is zero everywhere."""
    start = line.table[0]
    if start >= MIN_NOTHING:
        start = next((value for value in line.table if value < MIN_NOTHING), NOTHING)
        if start == NOTHING:
            return NOTHING, None
    if len(line.table) == 1:
        return start, PeriodicLine((0,), line.rise) if line.rise else None
    table = (
        tuple([value if value >= MIN_NOTHING else value - start for value in line.table])
        if start
        else line.table
    )
    return start, None if not line.rise and not any(table) else PeriodicLine(table, line.rise)


def through(line: PeriodicLine | None, taps: Taps) -> PeriodicLine:
    """The least value among the places that each index looks at: ``g(j) = min f(i)`` over the taps i of j."""
    if line is None:
        return shortest([0 if places else NOTHING for places in taps.table], 0)
    if len(line.table) == 1:
        return shortest(
            [_least_of_straight(line, places) for places in taps.table], line.rise * taps.rise
        )
    period = len(line.table)
    blocks = period // math.gcd(
        period, taps.rise
    )  # until the places fall on the same entries again; gcd(P, 0) = P
    return shortest(_least_by_block(line, taps, blocks), blocks * taps.rise // period * line.rise)


def through_within(line: PeriodicLine | None, taps: Taps, size: int) -> PeriodicLine:
    """Return the composed line with a table no longer than the dimension.

    A longer table is truncated, unless it has a shorter period, which shows from its start on.
    """
    longest = max(size, _LONGEST_TABLE)
    if line is None or len(line.table) == 1:
        return truncate_table(through(line, taps), size)
    blocks = len(line.table) // math.gcd(len(line.table), taps.rise)
    full, rise = blocks * len(taps.table), blocks * taps.rise // len(line.table) * line.rise
    if full > 2 * longest:
        start = _least_by_block(line, taps, -(-2 * longest // len(taps.table)))
        is_gapped = has_gaps(start)
        periods = (
            each for each in range(1, longest + 1) if full % each == 0 and rise * each % full == 0
        )
        if not any(_continues_by(start, each, rise * each // full, is_gapped) for each in periods):
            return PeriodicLine(tuple(start[:size]), rise * size // full)
    return truncate_table(through(line, taps), size)


def _least_by_block(line: PeriodicLine, taps: Taps, blocks: int) -> Sequence[int]:
    """``g(j)`` of :func:`through`, for so many times the table of the taps."""
    if taps.rise <= 0 or blocks * taps.rise > _MAX_VALUES:
        by_entry = [_least_one_by_one(line, places, taps.rise, blocks) for places in taps.table]
    else:
        first = min([min(places) for places in taps.table if places], default=0)
        last = max([max(places) for places in taps.table if places], default=0)
        values = values_of(line, last - first + (blocks - 1) * taps.rise + 1, first)
        by_entry = [
            _least_of_slices(values, [place - first for place in places], taps.rise, blocks)
            for places in taps.table
        ]
    return (
        by_entry[0]
        if len(by_entry) == 1
        else [value for block in zip(*by_entry, strict=True) for value in block]
    )


def _least_one_by_one(
    line: PeriodicLine, places: Sequence[int], rise: int, count: int
) -> Sequence[int]:
    """``min f(i + k · rise)`` over these places i, for the first ``count`` numbers k."""
    return [
        min([line.at(place + block * rise) for place in places], default=NOTHING)
        for block in range(count)
    ]


def _least_of_slices(
    values: Sequence[int], places: Sequence[int], rise: int, count: int
) -> Sequence[int]:
    """Return the smallest value at each of ``count`` steps, from known values."""
    if not places:
        return [NOTHING] * count
    if count == 1:
        return (min([values[place] for place in places]),)
    slices = [values[place : place + (count - 1) * rise + 1 : rise] for place in places]
    return slices[0] if len(slices) == 1 else [*map(min, *slices)]


def _every(line: PeriodicLine, start: int, step: int, count: int) -> Sequence[int]:
    """``f(start + step · k)`` for the first ``count`` numbers k."""
    if step > 0 and step * count <= _MAX_VALUES:
        return values_of(line, (count - 1) * step + 1, start)[::step]
    return [line.at(start + step * index) for index in range(count)]


def _least_of_straight(line: PeriodicLine, places: Sequence[int]) -> int:
    if not places:
        return NOTHING
    return line.table[0] + line.rise * (min(places) if line.rise >= 0 else max(places))


def min_value(line: PeriodicLine | None, size: int) -> int:
    """The least value among the first ``size`` indices."""
    if line is None:
        return 0
    if size <= len(line.table):
        return min(line.table[:size])
    return min(line.table) if line.rise >= 0 else min(_last_of_each_phase(line, size))


def greatest(line: PeriodicLine | None, size: int) -> int:
    """The greatest value among the first ``size`` indices, leaving out nothing."""
    if line is None:
        return 0
    ends = _last_of_each_phase(line, size) if line.rise > 0 else line.table[:size]
    return max((value for value in ends if value < MIN_NOTHING), default=NOTHING)


def _last_of_each_phase(line: PeriodicLine, size: int) -> Sequence[int]:
    count = min(len(line.table), size)
    return values_of(line, count, size - count)


def minimum(one: PeriodicLine | None, other: PeriodicLine | None) -> PeriodicLine:
    """The lesser of two lines of equal slope at each index."""
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
    return (
        len(one.table) == 1 and not one.rise and not other.rise and one.table[0] <= min(other.table)
    )


def total(one: PeriodicLine | None, other: PeriodicLine | None) -> PeriodicLine | None:
    """The sum of two lines."""
    if one is None or other is None:
        return one or other
    period = math.lcm(len(one.table), len(other.table))
    table = [*map(operator.add, values_of(one, period), values_of(other, period))]
    if has_gaps(table):
        table = [min(value, NOTHING) for value in table]
    rise = one.rise * period // len(one.table) + other.rise * period // len(other.table)
    return shortest(table, rise)


#: an index made of digits, the outermost first: how many values each has, and the line of it
Digits = tuple[tuple[int, PeriodicLine | None], ...]


def joined(digits: Digits) -> PeriodicLine | None:
    """One line of the whole index: ``f(i) = Σ f_d(d-th digit of i)``."""
    if len(digits) == 1:
        return digits[0][1]
    *outer, (size, inner) = digits
    above = joined(tuple(outer))
    if above is None and inner is None:
        return None
    period = 1 if above is None else len(above.table)
    rise = 0 if above is None else above.rise
    low = values_of(inner or ZERO, size)
    high = values_of(above or ZERO, period)
    table = [one + other for one in high for other in low]
    return shortest([min(value, NOTHING) for value in table] if has_gaps(table) else table, rise)


def split(
    line: PeriodicLine, outer_size: int, inner_size: int, step: int, spacing: int
) -> tuple[list[tuple[PeriodicLine, PeriodicLine | None]], bool]:
    """``f(step·j + spacing·k)`` for j < outer_size, k < inner_size as sums of a line of each: their least is the value.

    If the period divides the step there is one such sum. Else one for each phase of j, which is nothing at the other phases;
    for many phases one sum that is nowhere above the value, a hull, which the second result tells.
    """
    if len(line.table) == 1:
        return [
            (PeriodicLine((0,), line.rise * step), PeriodicLine(line.table, line.rise * spacing))
        ], False
    period = len(line.table)
    phases = period // math.gcd(period, step)
    rise = phases * step // period * line.rise
    if phases > max(outer_size, _MAX_PHASES):
        phases, rise = outer_size, line.rise_in(step * outer_size)
    if phases > _MAX_PHASES and phases * inner_size > _MAX_VALUES:
        return [(_below(line, phases, step, spacing * (inner_size - 1)), None)], True
    if phases > _MAX_PHASES and not has_gaps(line.table):
        values = [_every(line, step * phase, spacing, inner_size) for phase in range(phases)]
        if any(len(set(map(operator.sub, each, values[0]))) > 1 for each in values):
            return [(shortest([min(each) for each in values], rise), None)], True
    inner = [_from(line, step * phase, spacing, inner_size) for phase in range(phases)]
    starts, bare = zip(*map(_apart, inner), strict=True)
    if all(each == bare[0] for each in bare):
        return [(shortest(starts, rise), bare[0])], False
    if phases > _MAX_PHASES:
        return [(shortest([min_value(each, inner_size) for each in inner], rise), None)], True
    return [
        (
            PeriodicLine(
                tuple(starts[each] if each == phase else NOTHING for each in range(phases)), rise
            ),
            bare[phase],
        )
        for phase in range(phases)
        if starts[phase] < MIN_NOTHING
    ], False


def _below(line: PeriodicLine, phases: int, step: int, reach: int) -> PeriodicLine:
    """A line of j that is nowhere above ``f(step·j + k)`` for k up to ``reach``: by the slope and what falls below it most."""
    period, rise = len(line.table), line.rise  # in whole numbers: everything times the period
    dip = min([value * period - rise * index for index, value in enumerate(line.table)]) + min(
        rise * reach, 0
    )
    return PeriodicLine(
        tuple([(rise * step * phase + dip) // period for phase in range(phases)]),
        int(phases * step * line.slope),
    )


def _apart(line: PeriodicLine) -> tuple[int, PeriodicLine]:
    start, bare = split_off_start(line)
    return (start, bare or ZERO) if start < MIN_NOTHING else (NOTHING, ZERO)


def _from(line: PeriodicLine, start: int, step: int, size: int) -> PeriodicLine:
    """Every ``step``-th value from ``start`` on; of fewer than a period, gone on with by the shortest period that they show."""
    if size > len(line.table):
        return through(line, Taps(((start,),), step))
    values = _every(line, start, step, size)
    is_gapped = has_gaps(values)
    for period in range(1, size // 2 + 1):
        rise = values[period] - values[0]
        if _continues_by(values, period, rise, is_gapped):
            return PeriodicLine(tuple(values[:period]), rise)
    return PeriodicLine(tuple(values), line.rise_in(step * size))


def truncate_table(line: PeriodicLine, size: int) -> PeriodicLine:
    """A long table no longer than the dimension is."""
    if len(line.table) <= max(size, _LONGEST_TABLE):
        return line
    return PeriodicLine(line.table[:size], line.rise_in(size))
