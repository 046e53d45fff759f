"""From what is seen along an axis to its :class:`AxisField`: starts, sizes, stride and padding."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from torchscan.analyses.receptive_field.digits import joined, sized
from torchscan.analyses.receptive_field.envelopes import Envelope, Shape
from torchscan.analyses.receptive_field.periodic_lines import (
    MIN_NOTHING,
    NOTHING,
    ZERO,
    PeriodicLine,
    has_gaps,
    min_value,
    ratio,
    values_of,
)
from torchscan.analyses.receptive_field.receptive_field_result import AxisField
from torchscan.analyses.receptive_field.sights import Sight

#: a line along a dimension: the dimension, its size, the line
_Along = tuple[int, int, PeriodicLine]
#: a term as a number and the lines of the dimensions that it depends on
_Flat = tuple[int, tuple[_Along, ...]]


class Places(NamedTuple):  # a tuple, as it is part of cache keys
    """The dimensions of an output that are places along an axis; the others are taken together."""

    dims: frozenset[int]
    #: True if places along other axes share these dimensions
    are_shared: bool

    def turned(self, turn: Sequence[int]) -> Places:
        """Return the places with each dimension where the turn puts it."""
        return Places(frozenset([turn[dim] for dim in self.dims]), self.are_shared)


def axis_field(
    name: str, axis: int, length: int, sight: Sight | None, shape: Shape, places: Places
) -> AxisField:
    """Return the result for one axis of an output of this shape."""
    if sight is None:
        return AxisField(input=name, axis=axis, length=length, status="none")
    fields: dict[str, Any] = {
        "status": "global" if sight.reasons else "local",
        "reasons": sight.reasons,
        "notes": tuple(sorted(sight.notes)),
    }
    if not sight.is_local:
        return AxisField(input=name, axis=axis, length=length, **fields)

    dim = None
    if len(places.dims) == 1:
        (dim,) = places.dims
        spans = {each: (start, stop) for each, start, stop in sight.inside}
        fields |= {"dim": dim, "units": shape[dim], "inside": spans.get(dim)}
    low = _flatten(sight.low, shape, places)
    high = _flatten(sight.high, shape, places)
    fields |= _describe_ends(low, high, dim, places)
    field = AxisField(input=name, axis=axis, length=length, **fields)
    if places.are_shared and dim is not None and (field.rise or len(field.starts) > 1):
        return _replace_steps(field)
    return field


def further(field: AxisField, low: int, high: int) -> AxisField:
    """Return the field with these offsets added to its ends: ``size = 1 − high − low``."""
    if field.size is None or not (low or high):
        return field
    padding = field.padding
    if padding is not None:
        padding -= low
    starts = [start + low for start in field.starts if start is not None]
    sizes = [size - low - high for size in field.sizes]
    return AxisField(
        input=field.input,
        axis=field.axis,
        length=field.length,
        status=field.status,
        dim=field.dim,
        units=field.units,
        size=field.size - low - high,
        stride=field.stride,
        padding=padding,
        rise=field.rise,
        starts=tuple(starts),
        sizes=tuple(sizes),
        inside=field.inside,
        reasons=field.reasons,
        notes=field.notes,
    )


def _flatten(envelope: Envelope, shape: Shape, places: Places) -> list[_Flat]:
    """Return the terms along places, reduced to the least along all other dimensions."""
    flat: list[_Flat] = []
    for term in envelope:
        base = term.base
        lines: list[_Along] = []
        for dim, digits in enumerate(term.dims):
            line = joined(sized(digits, shape[dim])) if digits else None
            if line is not None and dim in places.dims:
                lines.append((dim, shape[dim], line))
            else:
                base += min_value(line, shape[dim])
        if base < MIN_NOTHING:
            flat.append((base, tuple(lines)))
    return flat


def _describe_ends(
    low: Sequence[_Flat], high: Sequence[_Flat], dim: int | None, places: Places
) -> dict[str, Any]:
    """Return the fields of an AxisField that follow from starts and sizes."""
    phases = _find_phases(low, high)
    if phases is None:
        # Several dimensions decide, or ways that rise differently meet. The size is an upper bound.
        steps = [line.steepness for _, lines in low for _, _, line in lines if line.rise]
        size = max([_span(one, other) for one in low for other in high])
        return {"size": size, "stride": min(steps, default=None)}
    fields: dict[str, Any] = {
        "size": max(phases.sizes),
        "starts": phases.starts,
        "sizes": phases.sizes,
        "rise": phases.rise,
    }
    moves = phases.rise != 0 or len(phases.starts) > 1
    if dim is not None and moves and not places.are_shared:
        fields["stride"] = ratio(phases.rise, phases.period)
        fields["padding"] = phases.padding
    return fields


def _replace_steps(field: AxisField) -> AxisField:
    """Return the field with stride and padding of a dimension that holds places of several axes.

    The stride is the smallest step between two of them.
    """
    units = range(*(field.inside or (0, field.units or 0)))
    period = len(field.starts)  # the same steps come again, and starts move one way
    first = _starts_of(field, units[: 2 * period])
    last = _starts_of(field, units[-period:])
    steps = set(map(abs, map(operator.sub, first[1:], first))) - {0}
    least = min((*first, *last), default=None)
    padding = None if least is None else -least
    return field._replace(stride=min(steps, default=None), padding=padding)


def _starts_of(field: AxisField, units: range) -> Sequence[int]:
    """Return the starts of these units, without those that see nothing."""
    known = [start for start in field.starts if start is not None]
    if len(known) == len(field.starts):
        return values_of(PeriodicLine(tuple(known), field.rise), len(units), units.start)
    intervals = [field.interval(unit) for unit in units]
    return [interval[0] for interval in intervals if interval]


# -- phases --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Phases:
    """Starts and sizes of units by phase."""

    starts: tuple[int | None, ...]
    sizes: tuple[int, ...]
    #: distance that starts move in one period
    rise: int
    #: length of the period
    period: int

    @property
    def padding(self) -> int | Fraction | None:
        """The largest ``stride · i − start`` of all phases, or None if none sees anything."""
        ahead = [
            self.rise * phase - self.period * start
            for phase, start in enumerate(self.starts)
            if start is not None
        ]
        return ratio(max(ahead), self.period) if ahead else None


def _find_phases(low: Sequence[_Flat], high: Sequence[_Flat]) -> _Phases | None:
    """Return the phases if one dimension decides and all terms rise equally along it, or None."""
    all_lines = [along for _, lines in (*low, *high) for along in lines]
    if len({dim for dim, _, _ in all_lines}) > 1:
        return None
    slopes = {_slope_of(lines) for _, lines in low}
    high_slopes = {_slope_of(lines) for _, lines in high}
    if len(slopes) > 1 or high_slopes != {-slope for slope in slopes}:
        return None

    period = math.lcm(*[len(line.table) for _, _, line in all_lines])
    num_units = max((size for _, size, _ in all_lines), default=1)
    starts, sizes = _by_phase(low, high, min(period, num_units))
    return _Phases(starts, sizes, int(slopes.pop() * period), period)


def _by_phase(
    low: Sequence[_Flat], high: Sequence[_Flat], num_phases: int
) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Return the starts by phase, and the sizes by phase, or one if all are equal."""
    starts: list[int | None] = []
    sizes: list[int] = []
    firsts, lasts = _least_values(low, num_phases), _least_values(high, num_phases)
    for first, last in zip(firsts, lasts, strict=True):
        sees_any = first < MIN_NOTHING
        starts.append(first if sees_any else None)
        sizes.append(1 - first - last if sees_any else 0)
    if len(set(sizes)) == 1:
        del sizes[1:]
    return tuple(starts), tuple(sizes)


def _slope_of(lines: Sequence[_Along]) -> int | Fraction:
    """Return the slope along the only dimension, if there is one."""
    for _, _, line in lines:
        return line.slope
    return 0


def _least_values(flats: Sequence[_Flat], count: int) -> Sequence[int]:
    """Return the smallest value of all terms for each unit along one dimension."""
    by_term: list[list[int]] = []
    for base, lines in flats:
        values = [base] * count
        for _, _, line in lines:
            values = [base + value for value in values_of(line, count)]
        by_term.append(values)
    if len(by_term) == 1:
        return by_term[0]
    return [*map(min, *by_term)]


# -- several dimensions --------------------------------------------------------------------------


def _span(low: _Flat, high: _Flat) -> int:
    """Return an upper bound of what a unit sees: the greatest sum over the digits."""
    base, lines = low
    high_base, high_lines = high
    line_by_dim = {dim: line for dim, _, line in high_lines}
    span = 1 - base - high_base
    for dim, size, line in lines:
        span -= _least_sum(line, line_by_dim.pop(dim, ZERO), size)
    for dim, size, line in high_lines:
        if dim in line_by_dim:
            span -= _least_sum(line, ZERO, size)
    return span


def _least_sum(one: PeriodicLine, other: PeriodicLine, size: int) -> int:
    """Return the minimum of f + g where both see something; opposite lines cancel.

    It is in the first period or in the last.
    """
    period = math.lcm(len(one.table), len(other.table))
    rise = period // len(one.table) * one.rise + period // len(other.table) * other.rise
    count = min(period, size)
    start = 0 if rise >= 0 else size - count
    pairs = zip(values_of(one, count, start), values_of(other, count, start), strict=True)
    sums = [first + second for first, second in pairs]
    if has_gaps(sums):
        return min([each for each in sums if each < MIN_NOTHING], default=NOTHING)
    return min(sums)
