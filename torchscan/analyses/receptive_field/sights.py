"""What the elements of a tensor see of one axis of one input: two envelopes, and why it is more than they tell.

The element at ``(i_0, i_1, …)`` sees the interval from ``low`` to ``high`` with

    low  = min over terms (base + Σ_d f_d(i_d))        high = −min over terms (base + Σ_d g_d(i_d))

where each ``f_d``, ``g_d`` is a periodic-affine function (:mod:`~torchscan.analyses.receptive_field.lines`). Only the ends
matter, and an end goes through an operator exactly: the lowest place that a result sees is the lowest that any of its
operands sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from torchscan.analyses.receptive_field.lines import (
    LEAST_NOTHING,
    NOTHING,
    Digits,
    Line,
    cut,
    greatest,
    joined,
    least,
    minimum,
    split,
    split_off_start,
    through,
    total,
    values_of,
)
from torchscan.ops.windows import HERE, WHOLE, Along, At, Look, Note, Piece, Reshape, Step, Unfold, Way, Whole, shifted

#: how many terms an envelope may have, and how many are too many to look for some that are one
_MOST_TERMS = 12
_TOO_MANY_TERMS = 48
_LONGEST_FUSED_PERIOD = 1 << 14


@dataclass(frozen=True, slots=True)
class Term:
    """``base + Σ_d f_d(i_d)``; None for a dimension that it does not depend on."""

    base: int
    dims: tuple[Digits | None, ...]


Envelope = tuple[Term, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """The operator by which everything is seen, and the path of the first module that called it."""

    operator: str
    path: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of one axis of one input; the envelopes are empty where it is seen by the ``reasons`` only."""

    low: Envelope
    high: Envelope
    reasons: tuple[Reason, ...] = ()
    notes: frozenset[Note] = frozenset()
    #: dimension, start, stop: at other places there is padding, which sees nothing, though the envelopes go on
    inside: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether there is an interval besides what is seen as a whole."""
        return bool(self.low)


def identity(rank: int, dim: int) -> Sight:
    """Of the input itself: each element sees its own place."""
    rising, falling = (((0, Line((0,), rise)),) for rise in (1, -1))
    low, high = (tuple(line if at == dim else None for at in range(rank)) for line in (rising, falling))
    return Sight((Term(0, low),), (Term(0, high),))


@dataclass(frozen=True, slots=True)
class Glance:
    """How one operator call looks: of which size the axis is, who looks, and whether statistics count."""

    size: int
    reason: Reason
    strict_norm: bool


def follow(sight: Sight, shape: Shape, way: Way, glance: Glance) -> tuple[Piece | None, Sight]:
    """What is seen along one way from an operand of this shape, and to which piece of the result it is restricted."""
    *steps, last = way.steps
    piece = last if isinstance(last, Piece) else None
    seen = sight
    is_concerned = False
    for step in steps if piece else way.steps:
        is_concerned |= way.note is not None and _is_concerned(seen, shape, step)
        seen, shape = _step(seen, shape, step, glance), shape_after(shape, step)
    if way.note is None or not is_concerned:
        return piece, seen
    if way.note != "norm-stats":
        return piece, replace(seen, notes=seen.notes | _only(way.note), inside=())  # what is put around it sees something
    if glance.strict_norm or seen.reasons == sight.reasons:
        return piece, seen
    return piece, Sight((), (), sight.reasons, sight.notes | _only(way.note))


def _is_concerned(sight: Sight, shape: Shape, step: Step) -> bool:
    """Whether a step moves or mixes along a dimension along which different things are seen."""
    if not isinstance(step, Look):
        return True
    stays = [
        isinstance(how, Along) and how.taps is HERE and step.shape[how.dim] == size
        for how, size in zip(step.dims, shape, strict=True)
    ]
    return any(term.dims[dim] is not None for dim, stay in enumerate(stays) if not stay for term in (*sight.low, *sight.high))


def _only(note: Note) -> frozenset[Note]:
    return frozenset((note,))


def everything(sight: Sight, shape: Shape, result: Shape, glance: Glance) -> Sight:
    """All of an operand in each element of a result of this shape."""
    return _step(sight, shape, Look((WHOLE,) * len(shape), result), glance)


def blind(sights: Sequence[Sight | None], reason: Reason) -> Sight | None:
    """Through an operator of which nothing is known."""
    seeing = [sight for sight in sights if sight is not None]
    notes = frozenset[Note]().union(*(sight.notes for sight in seeing))
    return Sight((), (), _with_reason(_all_reasons(seeing), reason), notes) if seeing else None


def _all_reasons(sights: Iterable[Sight]) -> tuple[Reason, ...]:
    reasons: tuple[Reason, ...] = ()
    for sight in sights:
        for reason in sight.reasons:
            reasons = _with_reason(reasons, reason)
    return reasons


def shape_after(shape: Shape, step: Step) -> Shape:
    """The shape of what a step makes."""
    if isinstance(step, Look | Reshape):
        return step.shape
    if isinstance(step, Unfold):
        windows = (shape[step.dim] - step.spacing * (step.size - 1) - 1) // step.step + 1
        return (*shape[: step.dim], windows, *shape[step.dim + 1 :], step.size)
    return shape


def _step(sight: Sight, shape: Shape, step: Step, glance: Glance) -> Sight:
    if not sight.low or (isinstance(step, Look) and step.is_identity and step.shape == shape):
        return sight
    whole = [dim for dim, how in enumerate(step.dims) if how is WHOLE] if isinstance(step, Look) else []
    low, low_mixed = _apart_by(sight.low, whole)
    high, high_mixed = _apart_by(sight.high, whole)
    if low_mixed and high_mixed and _sees_all(low_mixed, high_mixed, shape, step, glance, wraps="wraps" in sight.notes):
        reasons = _with_reason(sight.reasons, glance.reason)
    else:
        reasons, low, high = sight.reasons, (*low, *low_mixed), (*high, *high_mixed)
    low, low_is_hull = _envelope_after(low, shape, step)
    high, high_is_hull = _envelope_after(high, shape, step)
    notes = sight.notes | _only("hull") if low_is_hull or high_is_hull else sight.notes
    inside = _inside_after(sight, shape, step)
    return Sight((), (), reasons, notes) if inside is None else Sight(low, high, reasons, notes, inside)


def _inside_after(sight: Sight, shape: Shape, step: Step) -> tuple[tuple[int, int, int], ...] | None:
    """Where something is seen after a step; None: nowhere. What a window has a part of is seen."""
    known = {dim: (start, stop) for dim, start, stop in sight.inside}
    if isinstance(step, Look):
        return _inside_look(known, shape, step)
    if isinstance(step, Reshape):
        kept = dict(_unchanged(shape, step.shape))
        return tuple((kept[dim], *known[dim]) for dim in known if dim in kept)
    return tuple(each for each in sight.inside if not isinstance(step, Unfold) or each[0] != step.dim)


def _unchanged(shape: Shape, new: Shape) -> Iterable[tuple[int, int]]:
    """The dimensions that a reshape leaves as they are, but for dimensions of one place beside them."""
    for olds, news in _blocks(shape, new):
        large, become = ([dim for dim in dims if sizes[dim] != 1] for dims, sizes in ((olds, shape), (news, new)))
        if len(large) == len(become) == 1:
            yield large[0], become[0]


def _inside_look(known: Mapping[int, tuple[int, int]], shape: Shape, step: Look) -> tuple[tuple[int, int, int], ...] | None:
    inside: list[tuple[int, int, int]] = []
    for dim, (how, size) in enumerate(zip(step.dims, shape, strict=True)):
        start, stop = known.get(dim, (0, size))
        if isinstance(how, At) and not start <= how.index < stop:
            return None
        if isinstance(how, Along) and len(how.taps.table) == len(how.taps.table[0]) == 1 and how.taps.rise > 0:
            first, rise, full = how.taps.table[0][0], how.taps.rise, step.shape[how.dim]
            start, stop = max(-((first - start) // rise), 0), min(-((first - stop) // rise), full)
            if start >= stop:
                return None
            if (start, stop) != (0, full):
                inside.append((how.dim, start, stop))
    return tuple(inside)


def _apart_by(envelope: Envelope, dims: Sequence[int]) -> tuple[Envelope, Envelope]:
    """The terms that are the same all along some dimensions, and those that are not."""
    varies = [any(term.dims[dim] is not None for dim in dims) for term in envelope]
    same = tuple(term for term, each in zip(envelope, varies, strict=True) if not each)
    return same, tuple(term for term, each in zip(envelope, varies, strict=True) if each)


def _sees_all(low: Envelope, high: Envelope, shape: Shape, step: Step, glance: Glance, *, wraps: bool) -> bool:
    """Whether what is mixed covers the whole input then, up to what strides leave over at its ends, and moves no more."""
    slack = _slack((*low, *high))
    low, high = (_envelope_after(each, shape, step)[0] for each in (low, high))
    if not low or not high or _follows((*low, *high)):
        return False
    shape = shape_after(shape, step)
    if _never_above(low, shape, slack) and _never_above(high, shape, slack + 1 - glance.size):
        return True
    span = 1 - max(_top(term, shape) for term in low) - max(_top(term, shape) for term in high)
    return wraps and span >= glance.size - slack  # as much as all of it, wherever it starts


def _with_reason(reasons: tuple[Reason, ...], reason: Reason) -> tuple[Reason, ...]:
    """An operator is named once, where it was first."""
    return reasons if any(each.operator == reason.operator for each in reasons) else (*reasons, reason)


def _follows(terms: Iterable[Term]) -> bool:
    """Whether what is seen still moves from place to place."""
    return any(line is not None and line.rise for term in terms for digits in term.dims if digits for _, line in digits)


def _slack(terms: Iterable[Term]) -> int:
    """What strides may leave over at an end of the input: less than one step from unit to unit."""
    lines = (line for term in terms for digits in term.dims if digits for _, line in digits if line)
    return max(math.ceil(max((abs(line.slope) for line in lines), default=1)) - 1, 0)


def _never_above(envelope: Envelope, shape: Shape, bound: int) -> bool:
    """Whether the envelope is at most ``bound`` wherever it sees anything; one term suffices if it is everywhere."""
    return all(_top(term, shape) <= bound for term in envelope) or any(
        _top(term, shape) <= bound for term in envelope if not _has_gaps(term)
    )


def _top(term: Term, shape: Shape) -> int:
    return term.base + sum(greatest(line, size) for size, line in _all_digits(term, shape))


def _bottom(term: Term, shape: Shape) -> int:
    return term.base + sum(least(line, size) for size, line in _all_digits(term, shape))


def _all_digits(term: Term, shape: Shape) -> Iterable[tuple[int, Line | None]]:
    for size, digits in zip(shape, term.dims, strict=True):
        yield from sized(digits, size)


def _has_gaps(term: Term) -> bool:
    lines = (line for digits in term.dims if digits for _, line in digits if line)
    return any(value >= LEAST_NOTHING for line in lines for value in line.table)


def sized(digits: Digits | None, size: int) -> Digits:
    """Digits of which the outermost has its size, too (it goes on, so that the digits need not say it)."""
    if digits is None:
        return ((size, None),)
    inner = math.prod(count for count, _ in digits[1:])
    return ((size // max(inner, 1), digits[0][1]), *digits[1:])


# -- steps of an envelope ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Loss:
    """Whether something was put down as less than it is, on the way through a step."""

    is_hull: bool = False


def _envelope_after(envelope: Envelope, shape: Shape, step: Step) -> tuple[Envelope, bool]:
    terms: list[Term] = []
    loss = _Loss()
    for term in envelope:
        if isinstance(step, Look):
            terms += _looked_at(term, shape, step)
        elif isinstance(step, Reshape):
            terms += _reshaped(term, shape, step.shape, loss)
        elif isinstance(step, Unfold):
            terms += _unfolded(term, shape, step, loss)
    after, is_hull = fused(terms, shape_after(shape, step))
    return after, is_hull or loss.is_hull


def _looked_at(term: Term, shape: Shape, step: Look) -> list[Term]:
    base = term.base
    dims: list[Digits | None] = [None] * len(step.shape)
    for how, digits, size in zip(step.dims, term.dims, shape, strict=True):
        if isinstance(how, Along):
            _enter_dim(dims, how, digits, size, step.shape[how.dim])
        elif digits is not None:
            base += _met(how, digits, size)
    return _normal(base, dims)


def _met(how: At | Whole, digits: Digits, size: int) -> int:
    """The value at one place of a dimension, or the least along it."""
    if isinstance(how, At):
        line = joined(digits)
        return 0 if line is None else line.at(how.index)
    return sum(least(line, count) for count, line in sized(digits, size))


def _enter_dim(dims: list[Digits | None], how: Along, digits: Digits | None, size: int, full: int) -> None:
    here = dims[how.dim]
    if how.taps is HERE and here is None and (size == full or digits is None or len(digits) == 1):
        dims[how.dim] = digits
    elif digits is not None or not all(how.taps.table):
        line = cut(through(joined(sized(digits, size)), how.taps), full)
        dims[how.dim] = ((0, total(line, joined(here)) if here else line),)


def _normal(base: int, dims: Sequence[Digits | None]) -> list[Term]:
    """The term with lines that start at zero; none if it sees nothing."""
    kept: list[Digits | None] = []
    for digits in dims:
        if digits is None:
            kept.append(None)
            continue
        started = [(count, *split_off_start(line)) if line else (count, 0, None) for count, line in digits]
        base += sum(start for _, start, _ in started)
        bare = tuple([(count if at else 0, line) for at, (count, _, line) in enumerate(started)])  # the outermost goes on
        kept.append(bare if any(line for _, line in bare) else None)
    return [] if base >= LEAST_NOTHING else [Term(base, tuple(kept))]


def _unfolded(term: Term, shape: Shape, step: Unfold, loss: _Loss) -> list[Term]:
    digits = term.dims[step.dim]
    line = joined(digits) if digits else None
    if line is None:
        return [Term(term.base, (*term.dims, None))]
    found: list[Term] = []
    pairs, is_hull = split(line, shape[step.dim], step.size, step.step, step.spacing)
    loss.is_hull |= is_hull
    for outer, inner in pairs:
        dims = (*term.dims[: step.dim], ((0, outer),), *term.dims[step.dim + 1 :], ((step.size, inner),))
        found += _normal(term.base, dims)
    return found


def _reshaped(term: Term, shape: Shape, new: Shape, loss: _Loss) -> list[Term]:
    """Dimensions are joined by writing their digits one after the other, and split between digits or within one."""
    terms: list[tuple[int, list[Digits | None]]] = [(term.base, [])]
    if 0 in shape:
        return []
    for old_dims, new_dims in _blocks(shape, new):
        digits = [each for dim in old_dims for each in sized(term.dims[dim], shape[dim])]
        digits = [each for each in digits if each[0] != 1] or digits[:1]  # of one value only the first, which is zero, is met
        sizes = [new[dim] for dim in new_dims]
        if any(line for _, line in digits) and sizes:
            splits = _regrouped(digits, sizes, loss)
        else:  # at its only place a dimension of one element has its first value, which is zero
            splits = [[None] * len(sizes)]
        terms = [(base, [*dims, *each]) for base, dims in terms for each in splits]
    return [each for base, dims in terms for each in _normal(base, dims)]


def _blocks(shape: Shape, new: Shape) -> Iterable[tuple[list[int], list[int]]]:
    """Runs of old and new dimensions of equal product, as short as can be; what is left over has one element."""
    old = new_at = 0
    while old < len(shape) and new_at < len(new):
        olds, news = [old], [new_at]
        left, right = shape[old], new[new_at]
        while left != right:
            if left < right:
                olds.append(olds[-1] + 1)
                left *= shape[olds[-1]]
            else:
                news.append(news[-1] + 1)
                right *= new[news[-1]]
        old, new_at = olds[-1] + 1, news[-1] + 1
        yield olds, news
    for dim in range(new_at, len(new)):
        yield [], [dim]


def _regrouped(digits: Sequence[tuple[int, Line | None]], sizes: Sequence[int], loss: _Loss) -> list[list[Digits | None]]:
    """The same digits for dimensions of these sizes, each way to write them as a sum."""
    *outer, size = sizes
    if not outer:
        return [[tuple(digits)]]
    ways = _last_digits(tuple(digits), size, loss)
    return [[*rest, last] for remaining, last in ways for rest in _regrouped(remaining, outer, loss)]


def _last_digits(digits: Digits, size: int, loss: _Loss) -> list[tuple[Digits, Digits]]:
    """Take as many of the innermost digits as make up ``size``, and what is left of them."""
    taken: Digits = ()
    left = size
    while left > 1 and left % digits[-1][0] == 0:
        left //= digits[-1][0]
        taken, digits = (digits[-1], *taken), digits[:-1]
    if left == 1:
        return [(digits or ((1, None),), taken or ((1, None),))]
    if digits[-1][0] % left:  # it ends within another digit: only all of them together can be split there
        digits, taken, left = ((math.prod(each for each, _ in (*digits, *taken)), joined((*digits, *taken))),), (), size
    count, line = digits[-1]
    pairs, is_hull = ([(None, None)], False) if line is None else split(line, count // left, left, left, 1)
    loss.is_hull |= is_hull
    return [((*digits[:-1], (count // left, outer)), ((left, inner), *taken)) for outer, inner in pairs]


# -- several ways at once ------------------------------------------------------------------------------------------------


def fused(terms: Iterable[Term], shape: Shape) -> tuple[Envelope, bool]:
    """Fewer terms of the same least value; if they stay too many, one that is nowhere above them, which is a hull."""
    by_dims: dict[tuple[Digits | None, ...], int] = {}
    for term in terms:
        by_dims[term.dims] = min(term.base, by_dims.get(term.dims, NOTHING))
    left = [Term(base, dims) for dims, base in by_dims.items()]
    if len(left) == 1:
        return tuple(left), False
    if len(left) > _TOO_MANY_TERMS:
        return (_hull(left, shape),), True
    done: list[Term] = []
    while left:
        term = left.pop()
        position, both = next(((at, both) for at, each in enumerate(left) if (both := _fused(term, each))), (0, None))
        if both is None:
            done.append(term)
        else:
            left[position] = both
    done.reverse()
    return (tuple(done), False) if len(done) <= _MOST_TERMS else ((_hull(done, shape),), True)


def _fused(one: Term, other: Term) -> Term | None:
    """One term for two, if they differ along one dimension at most, and rise alike there."""
    differing = [dim for dim, (first, second) in enumerate(zip(one.dims, other.dims, strict=True)) if first != second]
    if len(differing) != 1:
        return Term(min(one.base, other.base), one.dims) if not differing else None
    dim = differing[0]
    first, second = (joined(digits) if digits else None for digits in (one.dims[dim], other.dims[dim]))
    if _slope(first) != _slope(second) or math.lcm(_period(first), _period(second)) > _LONGEST_FUSED_PERIOD:
        return None
    lower = minimum(_plus(first, one.base - other.base), second)
    merged = _normal(other.base, [((0, lower),) if at == dim else digits for at, digits in enumerate(other.dims)])
    return merged[0]


def _plus(line: Line | None, number: int) -> Line:
    line = line or Line((0,), 0)
    return Line(tuple([value if value >= LEAST_NOTHING else value + number for value in line.table]), line.rise)


def _slope(line: Line | None) -> object:
    return 0 if line is None else line.slope


def _period(line: Line | None) -> int:
    return 1 if line is None else len(line.table)


def _hull(terms: Sequence[Term], shape: Shape) -> Term:
    common = [
        each[0] if all(digits == each[0] for digits in each) else None for each in zip(*(t.dims for t in terms), strict=True)
    ]
    rest = (Term(t.base, tuple(None if kept else digits for kept, digits in zip(common, t.dims, strict=True))) for t in terms)
    return Term(min(_bottom(term, shape) for term in rest), tuple(common))


def united(parts: Sequence[tuple[Piece | None, Sight]], shape: Shape, length: int) -> Sight | None:
    """All that is seen along several ways of an axis of this length, some of them leading to a piece of the result only."""
    if len(parts) == 1 and parts[0][0] is None:
        return parts[0][1] if parts[0][1].low or parts[0][1].reasons else None
    pieces = [(piece, sight) for piece, sight in parts if piece is not None and sight.low]
    notes = frozenset[Note]().union(*(sight.notes for _, sight in parts))
    low = [term for piece, sight in parts if piece is None for term in sight.low]
    high = [term for piece, sight in parts if piece is None for term in sight.high]
    if pieces:
        placed, wraps = _placed(pieces, shape, length)
        notes |= _only("wraps") if wraps else frozenset()
        low += placed[0]
        high += placed[1]
    inside = _common_inside(parts, shape)
    (lows, low_is_hull), (highs, high_is_hull) = fused(low, shape), fused(high, shape)
    if low_is_hull or high_is_hull:
        notes |= _only("hull")
    reasons = _all_reasons(sight for _, sight in parts)
    return Sight(lows, highs, reasons, notes, inside if lows else ()) if lows or reasons else None


def _common_inside(parts: Sequence[tuple[Piece | None, Sight]], shape: Shape) -> tuple[tuple[int, int, int], ...]:
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
    spans = {dim: (min(each[dim][0] for each in ranges), max(each[dim][1] for each in ranges)) for dim in sorted(common)}
    return tuple((dim, *span) for dim, span in spans.items() if span != (0, shape[dim]))


def _placed(pieces: Sequence[tuple[Piece, Sight]], shape: Shape, length: int) -> tuple[tuple[list[Term], list[Term]], bool]:
    """The terms of pieces in the result, and whether one piece goes on where the far side of another ends.

    Along a dimension of places a single large piece goes on beyond its ends, as a padded map does. So does the
    largest of several, if the others are what is at its other side. Otherwise each piece ends where it ends.
    """
    dim = pieces[0][0].dim
    if not any(_goes_on(sight, dim, piece.stop - piece.start) for piece, sight in pieces):
        return _restricted(pieces, shape[dim]), False
    main, seen = max(pieces, key=lambda each: each[0].stop - each[0].start)
    low, high = _moved(seen, main)
    others = [moved for moved in (_moved(sight, piece) for piece, sight in pieces) if moved != (low, high)]
    spans = {main.stop - main.start, shape[dim], *(round(length / slope) for slope in _slopes(seen, dim))}
    is_most = 2 * sum(piece.stop - piece.start for piece, _ in pieces) > shape[dim]
    is_most &= all(2 * (piece.stop - piece.start) <= main.stop - main.start for piece, _ in pieces if piece is not main)
    if is_most and all(_is_displaced(each, (low, high), dim, spans) for each in others):
        return (list(low), list(high)), bool(others)
    return _restricted(pieces, shape[dim]), False


def _goes_on(sight: Sight, dim: int, size: int) -> bool:
    """Whether what is seen along a dimension moves on or repeats itself, as it does along places, and not along channels."""
    lines = (joined(sized(digits, size)) for term in (*sight.low, *sight.high) if (digits := term.dims[dim]))
    return any(line is not None and (line.rise != 0 or 2 * len(line.table) <= size) for line in lines)


def dims_of_places(sight: Sight, shape: Shape) -> set[int]:
    """The dimensions that follow the axis, and are not channels of which some see other things than others."""
    return {dim for dim, size in enumerate(shape) if sight.low and _goes_on(sight, dim, size)}


def _slopes(sight: Sight, dim: int) -> set[Fraction]:
    """How fast what is seen moves along a dimension."""
    lines = (line for term in sight.low for _, line in term.dims[dim] or () if line)
    return {abs(line.slope) for line in lines if line.rise}


def _moved(sight: Sight, piece: Piece) -> tuple[Envelope, Envelope]:
    """A piece of the result goes on in both directions."""
    low, high = (tuple(_shifted(term, piece.dim, piece.start, piece.stop) for term in each) for each in (sight.low, sight.high))
    return low, high


def _shifted(term: Term, dim: int, start: int, stop: int) -> Term:
    """What was at place 0 of a dimension is at ``start``."""
    digits = term.dims[dim]
    if digits is None or (start == 0 and len(digits) == 1):
        return term
    line = cut(through(joined(sized(digits, stop - start)), shifted(-start)), stop)
    return _normal(term.base, (*term.dims[:dim], ((0, line),), *term.dims[dim + 1 :]))[0]


def _is_displaced(one: tuple[Envelope, Envelope], other: tuple[Envelope, Envelope], dim: int, spans: set[int]) -> bool:
    """Whether one is the other from one of these spans further along the dimension, as at the far side of a border."""
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
    dim = terms[0][0].dim
    for piece, term in terms:
        count = piece.stop - piece.start
        digits = term.dims[dim]
        line = joined(sized(digits, count)) if digits else None
        others = (*term.dims[:dim], None, *term.dims[dim + 1 :])
        table = tables.setdefault(others, [NOTHING] * size)
        rises.setdefault(others, 0 if line is None else math.floor(line.slope * size))
        here = table[piece.start : piece.stop]
        values = values_of(line, count, term.base)
        table[piece.start : piece.stop] = values if here == [NOTHING] * count else map(min, here, values)
    found: list[Term] = []
    for others, table in tables.items():
        found += _normal(0, (*others[:dim], ((0, Line(tuple(table), rises[others])),), *others[dim + 1 :]))
    return found
