"""The ends of what is seen, as functions of a place in a tensor.

An envelope is the least of some terms ``base + Σ_d f_d(i_d)`` at each place ``(i_0, i_1, …)``,
where each ``f_d`` is a periodic-affine function
(:mod:`~torchscan.analyses.receptive_field.periodic_lines`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchscan.analyses.receptive_field.digits import Digits, joined, sized
from torchscan.analyses.receptive_field.periodic_lines import (
    MIN_NOTHING,
    NOTHING,
    ZERO,
    PeriodicLine,
    add_to_table,
    greatest,
    has_gaps,
    min_value,
    minimum,
    split_off_start,
)

#: how many terms an envelope may have
_MAX_TERMS = 12
#: how many terms are too many to look for pairs that are one
_TOO_MANY_TERMS = 48
_LONGEST_FUSED_PERIOD = 1 << 14


class Term(NamedTuple):  # a tuple, see PeriodicLine
    """``base + Σ_d f_d(i_d)``; None for a dimension that it does not depend on."""

    base: int
    dims: tuple[Digits | None, ...]


Envelope = tuple[Term, ...]
Shape = tuple[int, ...]


def normal(base: int, dims: Sequence[Digits | None]) -> list[Term]:
    """Return the term with lines that start at zero, or no term if it sees nothing."""
    kept: list[Digits | None] = []
    for digits in dims:
        if digits is not None:
            start, digits = start_at_zero(digits)
            base += start
        kept.append(digits)
    return [] if base >= MIN_NOTHING else [Term(base, tuple(kept))]


def start_at_zero(digits: Digits) -> tuple[int, Digits | None]:
    """Return the value at the first place, and the digits with lines that start at zero.

    The outermost digit goes on, and needs no size.
    """
    if len(digits) == 1:
        ((_, line),) = digits
        if line is None:
            return 0, None
        start, line = split_off_start(line)
        return start, ((0, line),) if line else None

    total_start = 0
    bare: list[tuple[int, PeriodicLine | None]] = []
    for position, (count, line) in enumerate(digits):
        if line:
            start, line = split_off_start(line)
            total_start += start
        bare.append((count if position else 0, line))
    if all(line is None for _, line in bare):
        return total_start, None
    return total_start, tuple(bare)


def fused(terms: Iterable[Term], shape: Shape) -> tuple[Envelope, bool]:
    """Return fewer terms with the same minimum, and whether they are a hull.

    If too many terms remain, the result is a single one that is nowhere above them: a hull.
    """
    terms = tuple(terms)
    if len(terms) == 1:
        return terms, False
    base_by_dims: dict[tuple[Digits | None, ...], int] = {}
    for term in terms:
        base_by_dims[term.dims] = min(term.base, base_by_dims.get(term.dims, NOTHING))
    left = [Term(base, dims) for dims, base in base_by_dims.items()]
    if len(left) == 1:
        return tuple(left), False
    if len(left) > _TOO_MANY_TERMS:
        return (_hull(left, shape),), True

    done: list[Term] = []
    line_by_digits: dict[Digits, PeriodicLine] = {}
    while left:
        term = left.pop()
        for position, other in enumerate(left):
            both = _fuse(term, other, line_by_digits)
            if both is not None:
                left[position] = both
                break
        else:
            done.append(term)
    done.reverse()
    if len(done) > _MAX_TERMS:
        return (_hull(done, shape),), True
    return tuple(done), False


def _fuse(one: Term, other: Term, line_by_digits: dict[Digits, PeriodicLine]) -> Term | None:
    """Return one term for two.

    None if they differ along several dimensions, or rise differently along one. Lines are kept
    because a term is compared with many others, and lines of joined digits may be long.
    """
    if sum(map(operator.ne, one.dims, other.dims)) > 1:
        return None
    dim = next((dim for dim, digits in enumerate(one.dims) if digits != other.dims[dim]), None)
    if dim is None:
        return Term(min(one.base, other.base), one.dims)

    rise, num_places = _slope(one.dims[dim])
    other_rise, other_num_places = _slope(other.dims[dim])
    if rise * other_num_places != other_rise * num_places:
        return None
    line = _line_along(one.dims[dim], line_by_digits)
    other_line = _line_along(other.dims[dim], line_by_digits)
    period, other_period = len(line.table), len(other_line.table)
    if math.lcm(period, other_period) > _LONGEST_FUSED_PERIOD:
        return None

    if period > other_period:  # numbers are added to the shorter table
        one, other, line, other_line = other, one, other_line, line
    table = add_to_table(line.table, one.base - other.base)
    lower = minimum(PeriodicLine(table, line.rise), other_line)
    merged = normal(other.base, (*other.dims[:dim], ((0, lower),), *other.dims[dim + 1 :]))
    return merged[0]


def _slope(digits: Digits | None) -> tuple[int, int]:
    """Return the rise of the outermost digit, and the number of places that it takes."""
    if not digits:
        return 0, 1
    (_, line), *inner = digits
    if line is None:
        return 0, 1
    return line.rise, len(line.table) * math.prod([count for count, _ in inner])


def _line_along(digits: Digits | None, line_by_digits: dict[Digits, PeriodicLine]) -> PeriodicLine:
    if not digits:
        return ZERO
    line = line_by_digits.get(digits)
    if line is None:
        line = line_by_digits[digits] = joined(digits) or ZERO
    return line


def _hull(terms: Sequence[Term], shape: Shape) -> Term:
    """Return a term that is nowhere above these: what all have in common, less the lowest rest."""
    common: list[Digits | None] = []
    for first, *others in zip(*(term.dims for term in terms), strict=True):
        common.append(first if others.count(first) == len(others) else None)

    lowest = []
    for term in terms:
        rest = list(term.dims)
        for dim, kept in enumerate(common):
            if kept:
                rest[dim] = None
        lines = _all_digits(Term(term.base, tuple(rest)), shape)
        lowest.append(term.base + sum(min_value(line, size) for size, line in lines))
    return Term(min(lowest), tuple(common))


def top(term: Term, shape: Shape) -> int:
    """Return the greatest value of a term."""
    return term.base + sum(greatest(line, size) for size, line in _all_digits(term, shape))


def _all_digits(term: Term, shape: Shape) -> Iterable[tuple[int, PeriodicLine | None]]:
    for size, digits in zip(shape, term.dims, strict=True):
        yield from sized(digits, size)


def never_above(envelope: Envelope, shape: Shape, bound: int) -> bool:
    """Return whether the envelope is at most ``bound`` at each place with a field.

    One term without gaps suffices.
    """
    are_below = [top(term, shape) <= bound for term in envelope]
    if all(are_below):
        return True
    for term, is_below in zip(envelope, are_below, strict=True):
        lines = (line for digits in term.dims if digits for _, line in digits if line)
        if is_below and not any(has_gaps(line.table) for line in lines):
            return True
    return False


def follows(terms: Iterable[Term]) -> bool:
    """Return whether the field still moves from place to place."""
    all_digits = (digits for term in terms for digits in term.dims if digits)
    return any(line is not None and line.rise for digits in all_digits for _, line in digits)
