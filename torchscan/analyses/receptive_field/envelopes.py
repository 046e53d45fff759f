"""The ends of what is seen, as functions of a place in a tensor, and what each step of a way makes of them.

An envelope is the least of some terms ``base + Σ_d f_d(i_d)`` at each place ``(i_0, i_1, …)``, where each ``f_d`` is a
periodic-affine function (:mod:`~torchscan.analyses.receptive_field.periodic_lines`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.analyses.receptive_field.periodic_lines import (
    MIN_NOTHING,
    NOTHING,
    Digits,
    PeriodicLine,
    greatest,
    joined,
    min_value,
    minimum,
    split,
    split_off_start,
    through_within,
    total,
)
from torchscan.ops.windows import HERE, Along, At, Look, Reshape, Step, Unfold, Whole

#: how many terms an envelope may have, and how many are too many to look for some that are one
_MAX_TERMS = 12
_TOO_MANY_TERMS = 48
_LONGEST_FUSED_PERIOD = 1 << 14


class Term(NamedTuple):  # a tuple, see PeriodicLine
    """``base + Σ_d f_d(i_d)``; None for a dimension that it does not depend on."""

    base: int
    dims: tuple[Digits | None, ...]


Envelope = tuple[Term, ...]
Shape = tuple[int, ...]


@dataclass(slots=True)
class _Loss:
    """A flag that is set if a step widened an envelope to a hull."""

    is_hull: bool = False


def envelopes_after(
    envelopes: Iterable[Envelope], shape: Shape, step: Step
) -> list[tuple[Envelope, bool]]:
    """The envelopes of what a step makes, and whether each is a hull."""
    if isinstance(step, Look):
        return [_after_look(each, shape, step) for each in envelopes]
    if isinstance(step, Reshape):
        runs = _runs(shape, step.shape)
        return [_after_reshape(each, shape, step.shape, runs) for each in envelopes]
    if isinstance(step, Unfold):
        return [_after_unfold(each, shape, step) for each in envelopes]
    return [((), False) for _ in envelopes]


def _after_unfold(envelope: Envelope, shape: Shape, step: Unfold) -> tuple[Envelope, bool]:
    loss = _Loss()
    after, is_hull = fused(
        [each for term in envelope for each in _unfolded(term, shape, step, loss)],
        shape_after(shape, step),
    )
    return after, is_hull or loss.is_hull


def _after_reshape(
    envelope: Envelope, shape: Shape, new: Shape, runs: Sequence[_Run]
) -> tuple[Envelope, bool]:
    """Terms whose dimensions only get other numbers are not looked through again: they were as fused as they get."""
    if 0 in shape:
        return (), False
    moved = [_renumbered(term, shape, new, runs) for term in envelope]
    if None not in moved:
        return tuple([term for term in moved if term is not None]), False
    loss = _Loss()
    terms = [each for term in envelope for each in _reshaped(term, shape, new, runs, loss)]
    after, is_hull = fused(terms, new)
    return after, is_hull or loss.is_hull


def _after_look(envelope: Envelope, shape: Shape, step: Look) -> tuple[Envelope, bool]:
    """After a look. Terms whose dimensions only changed places can't be fused any more than before."""
    terms: list[Term] = []
    only_moved = True
    for term in envelope:
        base, dims, is_moved = _looked_at(term, shape, step)
        only_moved &= is_moved
        if base < MIN_NOTHING:
            terms.append(Term(base, tuple(dims)))
    return (tuple(terms), False) if only_moved else fused(terms, step.shape)


def _looked_at(term: Term, shape: Shape, step: Look) -> tuple[int, Sequence[Digits | None], bool]:
    """The base, the digits by dimension, and whether these are the same as before, in other places."""
    base = term.base
    dims: list[Digits | None] = [None] * len(step.shape)
    is_moved = True
    for how, digits, size in zip(step.dims, term.dims, shape, strict=True):
        if not isinstance(how, Along):
            if digits is not None:
                base += _met(how, digits, size)
                is_moved = False
        elif digits is None and (how.taps is HERE or all(how.taps.table)):
            continue
        elif (
            digits
            and how.taps is HERE
            and dims[how.dim] is None
            and (size == step.shape[how.dim] or len(digits) == 1)
        ):
            dims[how.dim] = digits
        else:
            line = through_within(joined(sized(digits, size)), how.taps, step.shape[how.dim])
            here = dims[how.dim]
            start, dims[how.dim] = _started(((0, total(line, joined(here)) if here else line),))
            base += start
            is_moved = False
    return base, dims, is_moved


def _met(how: At | Whole, digits: Digits, size: int) -> int:
    """The value at one place of a dimension, or the least along it."""
    if isinstance(how, At):
        line = joined(digits)
        return 0 if line is None else line.at(how.index)
    return sum(min_value(line, count) for count, line in sized(digits, size))


def normal(base: int, dims: Sequence[Digits | None]) -> list[Term]:
    """The term with lines that start at zero; none if it sees nothing."""
    kept: list[Digits | None] = []
    for digits in dims:
        if digits is not None:
            start, digits = _started(digits)
            base += start
        kept.append(digits)
    return [] if base >= MIN_NOTHING else [Term(base, tuple(kept))]


def _started(digits: Digits) -> tuple[int, Digits | None]:
    """The value at the first place, and digits with lines that start at zero; the outermost goes on, and needs no size."""
    if len(digits) == 1:
        line = digits[0][1]
        start, line = split_off_start(line) if line else (0, None)
        return start, ((0, line),) if line else None
    started = [
        (count, *split_off_start(line)) if line else (count, 0, None) for count, line in digits
    ]
    bare = tuple([(count if at else 0, line) for at, (count, _, line) in enumerate(started)])
    return sum([start for _, start, _ in started]), bare if any(line for _, line in bare) else None


def _unfolded(term: Term, shape: Shape, step: Unfold, loss: _Loss) -> list[Term]:
    digits = term.dims[step.dim]
    line = joined(digits) if digits else None
    if line is None:
        return [Term(term.base, (*term.dims, None))]
    found: list[Term] = []
    pairs, is_hull = split(line, shape[step.dim], step.size, step.step, step.spacing)
    loss.is_hull |= is_hull
    for outer, inner in pairs:
        dims = (
            *term.dims[: step.dim],
            ((0, outer),),
            *term.dims[step.dim + 1 :],
            ((step.size, inner),),
        )
        found += normal(term.base, dims)
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """Dimensions that a reshape makes of others."""

    olds: list[int]
    news: list[int]
    #: the one old dimension and the one new that have more than one place
    same: tuple[int, int] | None


def _runs(shape: Shape, new: Shape) -> list[_Run]:
    runs: list[_Run] = []
    for olds, news in blocks(shape, new):
        large, become = (
            [dim for dim in dims if sizes[dim] != 1] for dims, sizes in ((olds, shape), (news, new))
        )
        runs.append(
            _Run(olds, news, (large[0], become[0]) if len(large) == len(become) == 1 else None)
        )
    return runs


def unchanged(shape: Shape, new: Shape) -> dict[int, int]:
    """The dimensions that a reshape leaves as they are, but for dimensions of one place beside them."""
    return dict(run.same for run in _runs(shape, new) if run.same)


def _renumbered(term: Term, shape: Shape, new: Shape, runs: Sequence[_Run]) -> Term | None:
    """The term after a reshape that leaves the dimensions that it depends on as they are; None if it does not."""
    dims: list[Digits | None] = [None] * len(new)
    for run in runs:
        for old in run.olds:
            digits = term.dims[old]
            if digits is None:
                continue
            if run.same is None or old != run.same[0] or _has_single(digits, shape[old]):
                return None
            dims[run.same[1]] = digits
    return Term(term.base, tuple(dims))


def _has_single(digits: Digits, size: int) -> bool:
    """Return whether one of several digits has a single value, which a reshape removes."""
    return len(digits) > 1 and any(count == 1 for count, _ in sized(digits, size))


def _reshaped(
    term: Term, shape: Shape, new: Shape, runs: Sequence[_Run], loss: _Loss
) -> list[Term]:
    """Dimensions are joined by writing their digits one after the other, and split between digits or within one."""
    terms: list[tuple[int, list[Digits | None]]] = [(term.base, [])]
    for run in runs:
        if all(term.dims[dim] is None for dim in run.olds):
            for _, dims in terms:
                dims += [None] * len(run.news)
            continue
        digits = [each for dim in run.olds for each in sized(term.dims[dim], shape[dim])]
        digits = [each for each in digits if each[0] != 1] or digits[
            :1
        ]  # of one value only the first, which is zero, is met
        sizes = [new[dim] for dim in run.news]
        if any(line for _, line in digits) and sizes:
            splits = _regrouped(digits, sizes, loss)
        else:  # at its only place a dimension of one element has its first value, which is zero
            splits = [[None] * len(sizes)]
        terms = [(base, [*dims, *each]) for base, dims in terms for each in splits]
    return [each for base, dims in terms for each in normal(base, dims)]


def blocks(shape: Shape, new: Shape) -> Iterable[tuple[list[int], list[int]]]:
    """The shortest possible runs of old and new dimensions of equal product; leftover dimensions have one element."""
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


def _regrouped(
    digits: Sequence[tuple[int, PeriodicLine | None]], sizes: Sequence[int], loss: _Loss
) -> list[list[Digits | None]]:
    """Return the digits for dimensions of these sizes, for each way to write them as a sum."""
    *outer, size = sizes
    if not outer:
        return [[tuple(digits)]]
    ways = _last_digits(tuple(digits), size, loss)
    return [
        [*rest, last] for remaining, last in ways for rest in _regrouped(remaining, outer, loss)
    ]


def _last_digits(digits: Digits, size: int, loss: _Loss) -> list[tuple[Digits, Digits]]:
    """Take as many of the innermost digits as make up ``size``, and what is left of them."""
    taken: Digits = ()
    left = size
    while left > 1 and left % digits[-1][0] == 0:
        left //= digits[-1][0]
        taken, digits = (digits[-1], *taken), digits[:-1]
    if left == 1:
        return [(digits or ((1, None),), taken or ((1, None),))]
    if (
        digits[-1][0] % left
    ):  # it ends within another digit: only all of them together can be split there
        digits, taken, left = (
            ((math.prod(each for each, _ in (*digits, *taken)), joined((*digits, *taken))),),
            (),
            size,
        )
    count, line = digits[-1]
    pairs, is_hull = (
        ([(None, None)], False) if line is None else split(line, count // left, left, left, 1)
    )
    loss.is_hull |= is_hull
    return [
        ((*digits[:-1], (count // left, outer)), ((left, inner), *taken)) for outer, inner in pairs
    ]


def fused(terms: Iterable[Term], shape: Shape) -> tuple[Envelope, bool]:
    """Fewer terms with the same minimum; if they remain too many, a single one that is nowhere above them, a hull."""
    terms = tuple(terms)
    if len(terms) == 1:
        return terms, False
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
        position, both = next(
            ((at, both) for at, each in enumerate(left) if (both := _fused(term, each))), (0, None)
        )
        if both is None:
            done.append(term)
        else:
            left[position] = both
    done.reverse()
    return (tuple(done), False) if len(done) <= _MAX_TERMS else ((_hull(done, shape),), True)


def _fused(one: Term, other: Term) -> Term | None:
    """One term for two, if they differ along one dimension at most, and rise alike there."""
    if sum(map(operator.ne, one.dims, other.dims)) > 1:
        return None
    dim = next((dim for dim, digits in enumerate(one.dims) if digits != other.dims[dim]), None)
    if dim is None:
        return Term(min(one.base, other.base), one.dims)
    if not _rise_alike(one.dims[dim], other.dims[dim]):
        return None
    first, second = (
        joined(digits) if digits else None for digits in (one.dims[dim], other.dims[dim])
    )
    if math.lcm(_period(first), _period(second)) > _LONGEST_FUSED_PERIOD:
        return None
    if _period(first) > _period(second):  # numbers are added to the shorter table
        one, other, first, second = other, one, second, first
    lower = minimum(_plus(first, one.base - other.base), second)
    merged = normal(
        other.base, [((0, lower),) if at == dim else digits for at, digits in enumerate(other.dims)]
    )
    return merged[0]


def _plus(line: PeriodicLine | None, number: int) -> PeriodicLine:
    line = line or PeriodicLine((0,), 0)
    return PeriodicLine(
        tuple([value if value >= MIN_NOTHING else value + number for value in line.table]),
        line.rise,
    )


def _rise_alike(one: Digits | None, other: Digits | None) -> bool:
    """Return whether the slopes of the joined lines are equal."""
    (rise, per), (other_rise, other_per) = map(_slope, (one, other))
    return rise * other_per == other_rise * per


def _slope(digits: Digits | None) -> tuple[int, int]:
    """Return the rise of the outermost digit, and the number of places that it takes."""
    line = digits[0][1] if digits else None
    if digits is None or line is None:
        return 0, 1
    return line.rise, len(line.table) * math.prod([count for count, _ in digits[1:]])


def _period(line: PeriodicLine | None) -> int:
    return 1 if line is None else len(line.table)


def _hull(terms: Sequence[Term], shape: Shape) -> Term:
    common = [
        each[0] if all(digits == each[0] for digits in each) else None
        for each in zip(*(t.dims for t in terms), strict=True)
    ]
    rest = (
        Term(
            t.base,
            tuple(None if kept else digits for kept, digits in zip(common, t.dims, strict=True)),
        )
        for t in terms
    )
    return Term(min(_bottom(term, shape) for term in rest), tuple(common))


def top(term: Term, shape: Shape) -> int:
    """The greatest value of a term."""
    return term.base + sum(greatest(line, size) for size, line in _all_digits(term, shape))


def _bottom(term: Term, shape: Shape) -> int:
    return term.base + sum(min_value(line, size) for size, line in _all_digits(term, shape))


def _all_digits(term: Term, shape: Shape) -> Iterable[tuple[int, PeriodicLine | None]]:
    for size, digits in zip(shape, term.dims, strict=True):
        yield from sized(digits, size)


def sized(digits: Digits | None, size: int) -> Digits:
    """Digits of which the outermost has its size, too (it goes on, so that the digits need not say it)."""
    if digits is None:
        return ((size, None),)
    inner = math.prod(count for count, _ in digits[1:])
    return ((size // max(inner, 1), digits[0][1]), *digits[1:])


def never_above(envelope: Envelope, shape: Shape, bound: int) -> bool:
    """Return whether the envelope is at most ``bound`` at each place with a field.

    One term without gaps suffices.
    """
    return all(top(term, shape) <= bound for term in envelope) or any(
        top(term, shape) <= bound for term in envelope if not _has_gaps(term)
    )


def _has_gaps(term: Term) -> bool:
    lines = (line for digits in term.dims if digits for _, line in digits if line)
    return any(value >= MIN_NOTHING for line in lines for value in line.table)


def follows(terms: Iterable[Term]) -> bool:
    """Return whether the field still moves from place to place."""
    return any(
        line is not None and line.rise
        for term in terms
        for digits in term.dims
        if digits
        for _, line in digits
    )


def shape_after(shape: Shape, step: Step) -> Shape:
    """The shape of what a step makes."""
    if isinstance(step, Look | Reshape):
        return step.shape
    if isinstance(step, Unfold):
        windows = (shape[step.dim] - step.spacing * (step.size - 1) - 1) // step.step + 1
        return (*shape[: step.dim], windows, *shape[step.dim + 1 :], step.size)
    return shape
