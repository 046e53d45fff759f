"""Periodic-affine functions of the places that a window reads: the least value at each index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from torchscan.analyses.receptive_field.periodic_lines import (
    MAX_VALUES,
    NOTHING,
    ZERO,
    PeriodicLine,
    continues_by,
    has_gaps,
    possible_periods,
    shortest,
    values_of,
    with_equal_gaps,
)
from torchscan.ops.windows import Taps

#: how long a table may be that is longer than the dimension
_LONGEST_TABLE = 512

T = TypeVar("T")


def through(line: PeriodicLine | None, taps: Taps) -> PeriodicLine:
    """Return the least value among the places that each index reads.

    This is ``g(j) = min f(i)`` over the taps i of j.
    """
    line = line or ZERO
    period = len(line.table)
    if period == 1:
        nearest = min if line.rise >= 0 else max
        ends = _for_each_entry(taps, lambda places: nearest(places, default=None))
        table = [NOTHING] * len(ends)
        for index, place in enumerate(ends):
            if place is not None:
                table[index] = line.table[0] + line.rise * place
        return shortest(table, line.rise * taps.rise)
    # until the places fall on the same entries again; gcd(P, 0) = P
    num_blocks = period // math.gcd(period, taps.rise)
    num_periods = num_blocks * taps.rise // period
    return shortest(_least_by_block(line, taps, num_blocks), num_periods * line.rise)


def through_within(line: PeriodicLine | None, taps: Taps, size: int) -> PeriodicLine:
    """Return the composed line with a table no longer than the dimension.

    A longer table is truncated, unless it has a shorter period, which shows from its start on.
    """
    if line is None or len(line.table) == 1:
        return truncate_table(through(line, taps), size)

    longest = max(size, _LONGEST_TABLE)
    period = len(line.table)
    num_blocks = period // math.gcd(period, taps.rise)
    full = num_blocks * len(taps.table)
    if full <= 2 * longest:
        return truncate_table(through(line, taps), size)

    rise = num_blocks * taps.rise // period * line.rise
    num_start_blocks = -(-2 * longest // len(taps.table))
    start = _least_by_block(line, taps, num_start_blocks)
    is_gapped = has_gaps(start)
    values = with_equal_gaps(start) if is_gapped else start
    for shorter, step in possible_periods(full, rise, longest):
        if continues_by(values, shorter, step, is_gapped):
            return truncate_table(through(line, taps), size)
    return PeriodicLine(tuple(start[:size]), rise * size // full)


def _least_by_block(line: PeriodicLine, taps: Taps, num_blocks: int) -> Sequence[int]:
    """Return ``g(j)`` of :func:`through`, for ``num_blocks`` times the table of the taps."""
    if taps.rise <= 0 or num_blocks * taps.rise > MAX_VALUES:
        find_least = partial(_least_one_by_one, line, rise=taps.rise, count=num_blocks)
    else:
        ends = [(min(places), max(places)) for places in _distinct(taps).values() if places]
        first = min([start for start, _ in ends], default=0)
        last = max([end for _, end in ends], default=0)
        values = values_of(line, last - first + (num_blocks - 1) * taps.rise + 1, first)
        find_least = partial(_least_of_slices, values, first, rise=taps.rise, count=num_blocks)
    by_entry = _for_each_entry(taps, find_least)
    if len(by_entry) == 1:
        return by_entry[0]
    return [value for block in zip(*by_entry, strict=True) for value in block]


def _for_each_entry(taps: Taps, find_least: Callable[[Sequence[int]], T]) -> list[T]:
    """Return the results of a function for the places of each entry; call it once for equal ones.

    All channels of a group read all of its channels: a call for each would take quadratic time.
    """
    least = {key: find_least(places) for key, places in _distinct(taps).items()}
    return [least[id(places)] for places in taps.table]


def _distinct(taps: Taps) -> dict[int, Sequence[int]]:
    """Return the entries by identity: all entries of a group are one tuple."""
    return {id(places): places for places in taps.table}


def _least_one_by_one(
    line: PeriodicLine, places: Sequence[int], rise: int, count: int
) -> Sequence[int]:
    """Return ``min f(i + k · rise)`` over these places i, for the first ``count`` numbers k."""
    least = []
    for block in range(count):
        values = [line.at(place + block * rise) for place in places]
        least.append(min(values, default=NOTHING))
    return least


def _least_of_slices(
    values: Sequence[int], first: int, places: Sequence[int], rise: int, count: int
) -> Sequence[int]:
    """Return the smallest value at each of ``count`` steps; ``values`` begin at ``first``."""
    if not places:
        return [NOTHING] * count
    starts = [place - first for place in places]
    if count == 1:
        return (min([values[start] for start in starts]),)
    slices = [values[start : start + (count - 1) * rise + 1 : rise] for start in starts]
    if len(slices) == 1:
        return slices[0]
    return [*map(min, *slices)]


def truncate_table(line: PeriodicLine, size: int) -> PeriodicLine:
    """Return the line with a table no longer than the dimension, if it is long."""
    if len(line.table) <= max(size, _LONGEST_TABLE):
        return line
    return PeriodicLine(line.table[:size], line.rise_in(size))
