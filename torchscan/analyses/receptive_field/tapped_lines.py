"""Periodic-affine functions of the places that a window reads: the least value at each index."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
)
from torchscan.ops.windows import Taps

#: how long a table may be that is longer than the dimension
_LONGEST_TABLE = 512


def through(line: PeriodicLine | None, taps: Taps) -> PeriodicLine:
    """Return the least value among the places that each index reads.

    This is ``g(j) = min f(i)`` over the taps i of j.
    """
    line = line or ZERO
    period = len(line.table)
    if period == 1:
        nearest = min if line.rise >= 0 else max
        table = [NOTHING] * len(taps.table)
        for index, places in enumerate(taps.table):
            if places:
                table[index] = line.table[0] + line.rise * nearest(places)
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
    for shorter, step in possible_periods(full, rise, longest):
        if continues_by(start, shorter, step, is_gapped):
            return truncate_table(through(line, taps), size)
    return PeriodicLine(tuple(start[:size]), rise * size // full)


def _least_by_block(line: PeriodicLine, taps: Taps, num_blocks: int) -> Sequence[int]:
    """Return ``g(j)`` of :func:`through`, for ``num_blocks`` times the table of the taps."""
    if taps.rise <= 0 or num_blocks * taps.rise > MAX_VALUES:
        by_entry = [_least_one_by_one(line, places, taps.rise, num_blocks) for places in taps.table]
    else:
        all_places = [place for places in taps.table for place in places]
        first, last = min(all_places, default=0), max(all_places, default=0)
        count = last - first + (num_blocks - 1) * taps.rise + 1
        values = values_of(line, count, first)
        by_entry = []
        for places in taps.table:
            known_places = [place - first for place in places]
            by_entry.append(_least_of_slices(values, known_places, taps.rise, num_blocks))
    if len(by_entry) == 1:
        return by_entry[0]
    return [value for block in zip(*by_entry, strict=True) for value in block]


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
    values: Sequence[int], places: Sequence[int], rise: int, count: int
) -> Sequence[int]:
    """Return the smallest value at each of ``count`` steps, from known values."""
    if not places:
        return [NOTHING] * count
    if count == 1:
        return (min([values[place] for place in places]),)
    slices = [values[place : place + (count - 1) * rise + 1 : rise] for place in places]
    if len(slices) == 1:
        return slices[0]
    return [*map(min, *slices)]


def truncate_table(line: PeriodicLine, size: int) -> PeriodicLine:
    """Return the line with a table no longer than the dimension, if it is long."""
    if len(line.table) <= max(size, _LONGEST_TABLE):
        return line
    return PeriodicLine(line.table[:size], line.rise_in(size))
