"""Everything that is seen along several ways, even if some lead only to a piece of the result."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torchscan.analyses.receptive_field.envelopes import Envelope, Shape, Term, fused, normal, sized
from torchscan.analyses.receptive_field.periodic_lines import (
    NOTHING,
    Digits,
    PeriodicLine,
    joined,
    through_within,
    values_of,
)
from torchscan.analyses.receptive_field.sights import Sight, all_reasons, only
from torchscan.ops.windows import Note, Piece, shifted


def united(parts: Sequence[tuple[Piece | None, Sight]], shape: Shape, length: int) -> Sight | None:
    """Everything that is seen of an axis of this length along several ways, some of them only to a piece of the result."""
    if len(parts) == 1 and parts[0][0] is None:
        return parts[0][1] if parts[0][1].low or parts[0][1].reasons else None
    pieces = [(piece, sight) for piece, sight in parts if piece is not None and sight.low]
    notes = frozenset[Note]().union(*(sight.notes for _, sight in parts))
    low = [term for piece, sight in parts if piece is None for term in sight.low]
    high = [term for piece, sight in parts if piece is None for term in sight.high]
    if pieces:
        placed, wraps = _placed(pieces, shape, length)
        notes |= only("wraps") if wraps else frozenset()
        low += placed[0]
        high += placed[1]
    inside = _common_inside(parts, shape)
    (lows, low_is_hull), (highs, high_is_hull) = fused(low, shape), fused(high, shape)
    if low_is_hull or high_is_hull:
        notes |= only("hull")
    reasons = all_reasons(sight for _, sight in parts)
    return (
        Sight(low=lows, high=highs, reasons=reasons, notes=notes, inside=inside if lows else ())
        if lows or reasons
        else None
    )


def _common_inside(
    parts: Sequence[tuple[Piece | None, Sight]], shape: Shape
) -> tuple[tuple[int, int, int], ...]:
    """Along each dimension the places at which any of the ways sees something."""
    ranges: list[dict[int, tuple[int, int]]] = []
    for piece, sight in parts:
        known = {dim: (start, stop) for dim, start, stop in sight.inside}
        if piece is not None:
            start, stop = known.get(piece.dim, (0, piece.stop - piece.start))
            known[piece.dim] = (piece.start + start, piece.start + stop)
        if sight.low:
            ranges.append(known)
    common = set(ranges[0]).intersection(*ranges) if ranges else set()
    spans = {
        dim: (min(each[dim][0] for each in ranges), max(each[dim][1] for each in ranges))
        for dim in sorted(common)
    }
    return tuple((dim, *span) for dim, span in spans.items() if span != (0, shape[dim]))


def _placed(
    pieces: Sequence[tuple[Piece, Sight]], shape: Shape, length: int
) -> tuple[tuple[list[Term], list[Term]], bool]:
    """The terms of pieces in the result, and whether one piece goes on where the far side of another ends.

    Along a dimension of places a single large piece goes on beyond its ends, as a padded map does. So does the
    largest of several, if the others are what is at its other side. Otherwise each piece ends where it ends.
    """
    dim = pieces[0][0].dim
    if not any(_goes_on(sight, dim, piece.stop - piece.start) for piece, sight in pieces):
        return _restricted(pieces, shape[dim]), False
    main, seen = max(pieces, key=lambda each: each[0].stop - each[0].start)
    low, high = _moved(seen, main)
    others = [
        moved for moved in (_moved(sight, piece) for piece, sight in pieces) if moved != (low, high)
    ]
    # how far a border may be from its far side: the length of the piece, of the map, or of the input in steps of the map
    spans = {
        main.stop - main.start,
        shape[dim],
        *(round(length / slope) for slope in _slopes(seen, dim)),
    }
    is_most = 2 * sum(piece.stop - piece.start for piece, _ in pieces) > shape[dim]
    is_most &= all(
        2 * (piece.stop - piece.start) <= main.stop - main.start
        for piece, _ in pieces
        if piece is not main
    )
    if is_most and all(_is_displaced(each, (low, high), dim, spans) for each in others):
        return (list(low), list(high)), bool(others)
    return _restricted(pieces, shape[dim]), False


def _goes_on(sight: Sight, dim: int, size: int) -> bool:
    """Return whether the field moves or repeats along a dimension: places do, channels do not."""
    lines = (
        joined(sized(digits, size))
        for term in (*sight.low, *sight.high)
        if (digits := term.dims[dim])
    )
    return any(
        line is not None and (line.rise != 0 or 2 * len(line.table) <= size) for line in lines
    )


def dims_of_places(sight: Sight, shape: Shape) -> frozenset[int]:
    """The dimensions that follow the axis, and are not channels of which some see other things than others."""
    return frozenset(
        [dim for dim, size in enumerate(shape) if sight.low and _goes_on(sight, dim, size)]
    )


def _slopes(sight: Sight, dim: int) -> set[int | Fraction]:
    """Return the speeds at which the field moves along a dimension."""
    lines = (line for term in sight.low for _, line in term.dims[dim] or () if line)
    return {line.steepness for line in lines if line.rise}


def _moved(sight: Sight, piece: Piece) -> tuple[Envelope, Envelope]:
    """A piece of the result goes on in both directions."""
    low, high = (
        tuple(_shifted(term, piece.dim, piece.start, piece.stop) for term in each)
        for each in (sight.low, sight.high)
    )
    return low, high


def _shifted(term: Term, dim: int, start: int, stop: int) -> Term:
    """Shift a term along a dimension, so that place 0 comes to ``start``."""
    digits = term.dims[dim]
    if digits is None or (start == 0 and len(digits) == 1):
        return term
    line = through_within(joined(sized(digits, stop - start)), shifted(-start), stop)
    return normal(term.base, (*term.dims[:dim], ((0, line),), *term.dims[dim + 1 :]))[0]


def _is_displaced(
    one: tuple[Envelope, Envelope], other: tuple[Envelope, Envelope], dim: int, spans: set[int]
) -> bool:
    """Return whether one envelope is the other, shifted along the dimension by one of the spans.

    The far side of a border is an example.
    """
    return any(
        all(
            tuple(_shifted(term, dim, span, abs(span)) for term in each) == against
            for each, against in zip(other, one, strict=True)
        )
        for size in spans
        for span in (-size, size)
    )


def _restricted(pieces: Sequence[tuple[Piece, Sight]], size: int) -> tuple[list[Term], list[Term]]:
    lows = [(piece, term) for piece, sight in pieces for term in sight.low]
    highs = [(piece, term) for piece, sight in pieces for term in sight.high]
    return _laid_out(lows, size), _laid_out(highs, size)


def _laid_out(terms: Sequence[tuple[Piece, Term]], size: int) -> list[Term]:
    """One table along the dimension for all terms that are the same along the others."""
    tables: dict[tuple[Digits | None, ...], list[int]] = {}
    rises: dict[tuple[Digits | None, ...], int] = {}
    bases: dict[tuple[Digits | None, ...], int] = {}
    dim = terms[0][0].dim
    for piece, term in terms:
        count = piece.stop - piece.start
        digits = term.dims[dim]
        line = joined(sized(digits, count)) if digits else None
        others = (*term.dims[:dim], None, *term.dims[dim + 1 :])
        if others not in tables:
            tables[others] = [NOTHING] * size
            rises[others] = 0 if line is None else line.rise_in(size)
        table = tables[others]
        base = term.base - bases.setdefault(others, term.base)
        here = table[piece.start : piece.stop]
        values = [base + value for value in values_of(line, count)] if line else [base] * count
        table[piece.start : piece.stop] = (
            values if here.count(NOTHING) == count else map(min, here, values)
        )
    found: list[Term] = []
    for others, table in tables.items():
        found += normal(
            bases[others],
            (*others[:dim], ((0, PeriodicLine(tuple(table), rises[others])),), *others[dim + 1 :]),
        )
    return found
