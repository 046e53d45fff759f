"""Everything that is seen along several ways, even if some lead only to a piece of the result."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.analyses.receptive_field.digits import Digits, joined, sized
from torchscan.analyses.receptive_field.envelopes import Envelope, Shape, Term, fused, normal
from torchscan.analyses.receptive_field.periodic_lines import NOTHING, PeriodicLine, values_of
from torchscan.analyses.receptive_field.sights import Sight, all_reasons, only
from torchscan.analyses.receptive_field.tapped_lines import through_within
from torchscan.ops.windows import Note, Piece, shifted


def united(parts: Sequence[tuple[Piece | None, Sight]], shape: Shape, length: int) -> Sight | None:
    """Return what is seen of an axis of this length along several ways, or None if nothing is.

    Some of the ways may lead only to a piece of the result.
    """
    if len(parts) == 1:
        piece, sight = parts[0]
        if piece is None:
            return sight if sight.low or sight.reasons else None

    low, high, notes = _find_terms(parts, shape, length)
    fused_low, low_is_hull = fused(low, shape)
    fused_high, high_is_hull = fused(high, shape)
    if low_is_hull or high_is_hull:
        notes |= only("hull")
    reasons = all_reasons(sight for _, sight in parts)
    if not fused_low and not reasons:
        return None
    inside = _common_inside(parts, shape) if fused_low else ()
    return Sight(low=fused_low, high=fused_high, reasons=reasons, notes=notes, inside=inside)


def _find_terms(
    parts: Sequence[tuple[Piece | None, Sight]], shape: Shape, length: int
) -> tuple[list[Term], list[Term], frozenset[Note]]:
    """Return the terms of both envelopes along all ways, and the notes."""
    notes = frozenset[Note]()
    low: list[Term] = []
    high: list[Term] = []
    pieces: list[tuple[Piece, Sight]] = []
    for piece, sight in parts:
        notes |= sight.notes
        if piece is None:
            low += sight.low
            high += sight.high
        elif sight.low:
            pieces.append((piece, sight))
    if pieces:
        (placed_low, placed_high), wraps = _place(pieces, shape, length)
        low += placed_low
        high += placed_high
        if wraps:
            notes |= only("wraps")
    return low, high, notes


def _common_inside(
    parts: Sequence[tuple[Piece | None, Sight]], shape: Shape
) -> tuple[tuple[int, int, int], ...]:
    """Return, along each dimension, the places at which any of the ways sees something."""
    ranges: list[dict[int, tuple[int, int]]] = []
    for piece, sight in parts:
        if not sight.low:
            continue
        known = {dim: (start, stop) for dim, start, stop in sight.inside}
        if piece is not None:
            start, stop = known.get(piece.dim, (0, piece.stop - piece.start))
            known[piece.dim] = (piece.start + start, piece.start + stop)
        ranges.append(known)
    if not ranges:
        return ()

    inside: list[tuple[int, int, int]] = []
    for dim in sorted(set(ranges[0]).intersection(*ranges)):
        start = min(each[dim][0] for each in ranges)
        stop = max(each[dim][1] for each in ranges)
        if (start, stop) != (0, shape[dim]):
            inside.append((dim, start, stop))
    return tuple(inside)


def _place(
    pieces: Sequence[tuple[Piece, Sight]], shape: Shape, length: int
) -> tuple[tuple[Sequence[Term], Sequence[Term]], bool]:
    """Return the terms of pieces in the result, and whether they wrap around.

    They do if one piece goes on where the far side of another ends. Along a dimension of places, a
    single large piece goes on beyond its ends, as a padded map does. So does the largest of
    several, if the others are what is at its other side. Otherwise each piece ends where it ends.
    """
    dim = pieces[0][0].dim
    size = shape[dim]
    if not any(_goes_on(sight, dim, piece.stop - piece.start) for piece, sight in pieces):
        return _restrict(pieces, size), False

    main, main_sight = max(pieces, key=lambda each: each[0].stop - each[0].start)
    ends = _move_ends(main_sight, main)
    all_ends = [_move_ends(sight, piece) for piece, sight in pieces]
    others = [each for each in all_ends if each != ends]

    spans = _spans_to_far_side(main, main_sight, size, length)
    if not _is_most_of_map(main, pieces, size):
        return _restrict(pieces, size), False
    if not all(_is_displaced(each, ends, dim, spans) for each in others):
        return _restrict(pieces, size), False
    return ends, bool(others)


def _spans_to_far_side(main: Piece, sight: Sight, size: int, length: int) -> set[int]:
    """Return how far a border may be from its far side.

    This is the length of the piece, of the map, or of the input in steps of the map.
    """
    spans = {main.stop - main.start, size}
    for term in sight.low:
        for _, line in term.dims[main.dim] or ():
            if line and line.rise:
                spans.add(round(length / line.steepness))
    return spans


def _is_most_of_map(main: Piece, pieces: Sequence[tuple[Piece, Sight]], size: int) -> bool:
    """Return whether the pieces fill over half of a map, the others at most half the main one."""
    lengths = [piece.stop - piece.start for piece, _ in pieces]
    if 2 * sum(lengths) <= size:
        return False
    other_lengths = [piece.stop - piece.start for piece, _ in pieces if piece is not main]
    return all(2 * each <= main.stop - main.start for each in other_lengths)


def _goes_on(sight: Sight, dim: int, size: int) -> bool:
    """Return whether the field moves or repeats along a dimension: places do, channels do not."""
    for term in (*sight.low, *sight.high):
        digits = term.dims[dim]
        line = joined(sized(digits, size)) if digits else None
        if line is not None and (line.rise or 2 * len(line.table) <= size):
            return True
    return False


def dims_of_places(sight: Sight, shape: Shape) -> frozenset[int]:
    """Return the dimensions that follow the axis.

    Channels are not among them, even if some of them see other things than others.
    """
    if not sight.low:
        return frozenset()
    return frozenset([dim for dim, size in enumerate(shape) if _goes_on(sight, dim, size)])


def _move_ends(sight: Sight, piece: Piece) -> tuple[Envelope, Envelope]:
    """Return the envelopes of a piece of the result that goes on in both directions."""
    place = (piece.dim, piece.start, piece.stop)
    return _shift_envelope(sight.low, *place), _shift_envelope(sight.high, *place)


def _shift_envelope(envelope: Envelope, dim: int, start: int, stop: int) -> Envelope:
    """Shift an envelope along a dimension, so that place 0 comes to ``start``."""
    terms: list[Term] = []
    for term in envelope:
        digits = term.dims[dim]
        if digits is None or (start == 0 and len(digits) == 1):
            terms.append(term)
            continue
        line = through_within(joined(sized(digits, stop - start)), shifted(-start), stop)
        dims = (*term.dims[:dim], ((0, line),), *term.dims[dim + 1 :])
        terms.append(normal(term.base, dims)[0])
    return tuple(terms)


def _is_displaced(
    one: tuple[Envelope, Envelope], other: tuple[Envelope, Envelope], dim: int, spans: set[int]
) -> bool:
    """Return whether one pair of envelopes is the other, shifted along the dimension by a span.

    The far side of a border is an example.
    """
    low, high = one
    other_low, other_high = other
    for size in spans:
        for span in (-size, size):
            if _shift_envelope(other_low, dim, span, size) != low:
                continue
            if _shift_envelope(other_high, dim, span, size) == high:
                return True
    return False


def _restrict(pieces: Sequence[tuple[Piece, Sight]], size: int) -> tuple[list[Term], list[Term]]:
    lows = [(piece, term) for piece, sight in pieces for term in sight.low]
    highs = [(piece, term) for piece, sight in pieces for term in sight.high]
    return _lay_out(lows, size), _lay_out(highs, size)


def _lay_out(terms: Sequence[tuple[Piece, Term]], size: int) -> list[Term]:
    """Return one table along the dimension for all terms that are the same along the others."""
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
            rises[others] = line.rise_in(size) if line else 0
            bases[others] = term.base

        base = term.base - bases[others]
        values = [base] * count
        if line:
            values = [base + value for value in values_of(line, count)]
        table = tables[others]
        before = table[piece.start : piece.stop]
        if before.count(NOTHING) != count:
            values = [*map(min, before, values)]
        table[piece.start : piece.stop] = values

    laid_out: list[Term] = []
    for others, table in tables.items():
        line = PeriodicLine(tuple(table), rises[others])
        dims = (*others[:dim], ((0, line),), *others[dim + 1 :])
        laid_out += normal(bases[others], dims)
    return laid_out
