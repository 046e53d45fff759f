"""The envelopes of what a tensor sees after each step of a way: a look, a reshape, an unfolding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchscan.analyses.receptive_field.digits import Digits, joined, sized, split
from torchscan.analyses.receptive_field.envelope_reshapes import after_reshape, find_runs
from torchscan.analyses.receptive_field.envelopes import (
    Envelope,
    Shape,
    Term,
    fused,
    normal,
    start_at_zero,
)
from torchscan.analyses.receptive_field.periodic_lines import (
    MIN_NOTHING,
    NOTHING,
    PeriodicLine,
    min_value,
    total,
)
from torchscan.analyses.receptive_field.tapped_lines import through_within
from torchscan.ops.windows import HERE, Along, At, Look, Reshape, Step, Taps, Unfold, Whole


def envelopes_after(
    envelopes: Iterable[Envelope], shape: Shape, step: Step
) -> list[tuple[Envelope, bool]]:
    """Return the envelopes of what a step produces, and whether each is a hull."""
    if isinstance(step, Look):
        return [_after_look(each, shape, step) for each in envelopes]
    if isinstance(step, Reshape):
        runs = find_runs(shape, step.shape)
        return [after_reshape(each, shape, step.shape, runs) for each in envelopes]
    if isinstance(step, Unfold):
        return [_after_unfold(each, shape, step) for each in envelopes]
    return [((), False) for _ in envelopes]


def shape_after(shape: Shape, step: Step) -> Shape:
    """Return the shape of what a step produces."""
    if isinstance(step, Look | Reshape):
        return step.shape
    if isinstance(step, Unfold):
        windows = (shape[step.dim] - step.spacing * (step.size - 1) - 1) // step.step + 1
        return (*shape[: step.dim], windows, *shape[step.dim + 1 :], step.size)
    return shape


# -- a look --------------------------------------------------------------------------------------


def _after_look(envelope: Envelope, shape: Shape, step: Look) -> tuple[Envelope, bool]:
    """Return the envelope after a look.

    Terms whose dimensions only changed places can't be fused any more than before.
    """
    terms: list[Term] = []
    only_moved = True
    for term in envelope:
        base, dims, is_moved = _look_at(term, shape, step)
        only_moved &= is_moved
        if base < MIN_NOTHING:
            terms.append(Term(base, tuple(dims)))
    return (tuple(terms), False) if only_moved else fused(terms, step.shape)


def _look_at(term: Term, shape: Shape, step: Look) -> tuple[int, Sequence[Digits | None], bool]:
    """Return the base, the digits by dimension, and whether they are as before, in other places."""
    base = term.base
    dims: list[Digits | None] = [None] * len(step.shape)
    is_moved = True
    for how, digits, size in zip(step.dims, term.dims, shape, strict=True):
        if not isinstance(how, Along):
            if digits is not None:
                base += _reduce(how, digits, size)
                is_moved = False
        elif digits is not None or how.taps is not HERE:
            sizes = (size, step.shape[how.dim])
            start, after, is_same = _look_along(how.taps, digits, dims[how.dim], sizes)
            base += start
            dims[how.dim] = after
            is_moved &= is_same
    return base, dims, is_moved


def _look_along(
    taps: Taps, digits: Digits | None, before: Digits | None, sizes: tuple[int, int]
) -> tuple[int, Digits | None, bool]:
    """Return the start and the digits of a dimension of the result, and whether they are unchanged.

    ``before`` has the digits from other dimensions that are read along it. ``sizes`` are the sizes
    of the operand's dimension and of the result's.
    """
    size, new_size = sizes
    if digits is None:
        if all(taps.table):
            return 0, before, True
    elif taps is HERE and before is None and (size == new_size or len(digits) == 1):
        is_unseen = new_size < size and _sees_nothing(digits, new_size)
        return NOTHING if is_unseen else 0, digits, True

    line: PeriodicLine | None = through_within(joined(sized(digits, size)), taps, new_size)
    if before:
        line = total(line, joined(before))
    start, after = start_at_zero(((0, line),))
    if after and _sees_nothing(after, new_size):
        start = NOTHING
    return start, after, False


def _sees_nothing(digits: Digits, size: int) -> bool:
    """Return whether a line has only gaps at the first ``size`` places; it may be longer."""
    _, line = digits[0]
    if line is None or size >= len(line.table):
        return False
    return min(line.table[:size]) >= MIN_NOTHING


def _reduce(how: At | Whole, digits: Digits, size: int) -> int:
    """Return the value at one place of a dimension, or the least along it."""
    if isinstance(how, At):
        line = joined(digits)
        return 0 if line is None else line.at(how.index)
    return sum(min_value(line, count) for count, line in sized(digits, size))


# -- an unfolding --------------------------------------------------------------------------------


def _after_unfold(envelope: Envelope, shape: Shape, step: Unfold) -> tuple[Envelope, bool]:
    terms: list[Term] = []
    has_lost = False
    for term in envelope:
        unfolded, is_hull = _unfold(term, shape, step)
        terms += unfolded
        has_lost |= is_hull
    after, is_hull = fused(terms, shape_after(shape, step))
    return after, is_hull or has_lost


def _unfold(term: Term, shape: Shape, step: Unfold) -> tuple[list[Term], bool]:
    """Return the terms of a dimension divided into windows, and whether they are a hull."""
    digits = term.dims[step.dim]
    line = joined(digits) if digits else None
    if line is None:
        return [Term(term.base, (*term.dims, None))], False
    pairs, is_hull = split(line, shape[step.dim], step.size, step.step, step.spacing)
    before, after = term.dims[: step.dim], term.dims[step.dim + 1 :]
    unfolded: list[Term] = []
    for outer, inner in pairs:
        dims = (*before, ((0, outer),), *after, ((step.size, inner),))
        unfolded += normal(term.base, dims)
    return unfolded, is_hull
