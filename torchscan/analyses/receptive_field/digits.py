"""Indices made of digits: dimensions that others are joined into, or that are split into others."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from torchscan.analyses.receptive_field.periodic_lines import (
    MAX_VALUES,
    MIN_NOTHING,
    NOTHING,
    ZERO,
    PeriodicLine,
    continues_by,
    has_gaps,
    min_value,
    shortest,
    split_off_start,
    values_of,
    with_equal_gaps,
)
from torchscan.analyses.receptive_field.tapped_lines import through
from torchscan.ops.windows import Taps

#: an index made of digits, the outermost first: how many values each has, and the line of it
Digits = tuple[tuple[int, PeriodicLine | None], ...]
#: a line of the outer digit and one of the inner digit, of which the sum counts
Pair = tuple[PeriodicLine, PeriodicLine | None]

#: how many phases a split may have
_MAX_PHASES = 16


def sized(digits: Digits | None, size: int) -> Digits:
    """Return the digits of a dimension, the outermost with its size, too.

    Otherwise the outermost needs no size, as it goes on.
    """
    if digits is None:
        return ((size, None),)
    inner = math.prod(count for count, _ in digits[1:])
    return ((size // max(inner, 1), digits[0][1]), *digits[1:])


def joined(digits: Digits) -> PeriodicLine | None:
    """Return one line of the complete index: ``f(i) = Σ f_d(d-th digit of i)``."""
    if len(digits) == 1:
        return digits[0][1]
    *outer, (size, inner) = digits
    above = joined(tuple(outer))
    if above is None and inner is None:
        return None
    period, rise = 1, 0
    if above is not None:
        period, rise = len(above.table), above.rise
    low = values_of(inner or ZERO, size)
    high = values_of(above or ZERO, period)
    table = [one + other for one in high for other in low]
    if has_gaps(table):
        table = [min(value, NOTHING) for value in table]
    return shortest(table, rise)


def split(
    line: PeriodicLine, outer_size: int, inner_size: int, step: int, spacing: int
) -> tuple[list[Pair], bool]:
    """Return ``f(step·j + spacing·k)`` as sums of a line of j and one of k, and if it is a hull.

    The least sum is the value, for j < outer_size and k < inner_size. If the period divides the
    step, there is one such sum. Otherwise there is one for each phase of j, which is nothing at the
    other phases; for many phases, one sum that is nowhere above the value: a hull.
    """
    if len(line.table) == 1:
        outer = PeriodicLine((0,), line.rise * step)
        return [(outer, PeriodicLine(line.table, line.rise * spacing))], False

    period = len(line.table)
    num_phases = period // math.gcd(period, step)
    rise = num_phases * step // period * line.rise
    if num_phases > max(outer_size, _MAX_PHASES):
        num_phases, rise = outer_size, line.rise_in(step * outer_size)
    if num_phases > _MAX_PHASES:
        hull = _hull_of_phases(line, (num_phases, rise), inner_size, step, spacing)
        if hull is not None:
            return [(hull, None)], True

    inner = [_from(line, step * phase, spacing, inner_size) for phase in range(num_phases)]
    starts, bare = zip(*map(split_off_start, inner), strict=True)
    if all(each == bare[0] for each in bare):
        return [(shortest(starts, rise), bare[0] or ZERO)], False
    if num_phases > _MAX_PHASES:
        lowest = [min_value(each, inner_size) for each in inner]
        return [(shortest(lowest, rise), None)], True

    return _pair_by_phase(starts, bare, rise), False


def _pair_by_phase(
    starts: Sequence[int], inner: Sequence[PeriodicLine | None], rise: int
) -> list[Pair]:
    """Return a pair for each phase, of which the outer line is nothing at the other phases."""
    pairs: list[Pair] = []
    for phase, start in enumerate(starts):
        if start < MIN_NOTHING:
            table = [NOTHING] * len(starts)
            table[phase] = start
            pairs.append((PeriodicLine(tuple(table), rise), inner[phase] or ZERO))
    return pairs


def _hull_of_phases(
    line: PeriodicLine, phases: tuple[int, int], inner_size: int, step: int, spacing: int
) -> PeriodicLine | None:
    """Return a line of j that is nowhere above the values of :func:`split`.

    None: the lines of k may be the same in all phases. ``phases`` is their number and the rise.
    """
    num_phases, rise = phases
    if num_phases * inner_size > MAX_VALUES:
        return _below(line, num_phases, step, spacing * (inner_size - 1))
    if has_gaps(line.table):
        return None
    values = [_every(line, step * phase, spacing, inner_size) for phase in range(num_phases)]
    if all(len(set(map(operator.sub, each, values[0]))) <= 1 for each in values):
        return None
    return shortest([min(each) for each in values], rise)


def _below(line: PeriodicLine, num_phases: int, step: int, reach: int) -> PeriodicLine:
    """Return a line of j that is nowhere above ``f(step·j + k)`` for k up to ``reach``.

    It has the slope of the line, and lies below the value that falls below the slope most.
    """
    # in whole numbers: everything times the period
    period, rise = len(line.table), line.rise
    dip = min([value * period - rise * index for index, value in enumerate(line.table)])
    dip += min(rise * reach, 0)
    table = [(rise * step * phase + dip) // period for phase in range(num_phases)]
    return PeriodicLine(tuple(table), int(num_phases * step * line.slope))


def _from(line: PeriodicLine, start: int, step: int, size: int) -> PeriodicLine:
    """Return every ``step``-th value from ``start`` on.

    Fewer values than a period go on by the shortest period that they show.
    """
    if size > len(line.table):
        return through(line, Taps(((start,),), step))
    values = _every(line, start, step, size)
    is_gapped = has_gaps(values)
    compared = with_equal_gaps(values) if is_gapped else values
    for period in range(1, size // 2 + 1):
        rise = values[period] - values[0]
        if continues_by(compared, period, rise, is_gapped):
            return PeriodicLine(tuple(values[:period]), rise)
    return PeriodicLine(tuple(values), line.rise_in(step * size))


def _every(line: PeriodicLine, start: int, step: int, count: int) -> Sequence[int]:
    """Return ``f(start + step · k)`` for the first ``count`` numbers k."""
    if step > 0 and step * count <= MAX_VALUES:
        return values_of(line, (count - 1) * step + 1, start)[::step]
    return [line.at(start + step * index) for index in range(count)]
