"""The envelopes of what a tensor sees after a reshape, which joins and splits dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchscan.analyses.receptive_field.digits import Digits, joined, sized, split
from torchscan.analyses.receptive_field.envelopes import Envelope, Shape, Term, fused, normal


@dataclass(frozen=True, slots=True)
class DimRun:
    """Dimensions that a reshape derives from others."""

    olds: list[int]
    news: list[int]
    #: the only old dimension and the one new that have more than one place
    same: tuple[int, int] | None


def find_runs(shape: Shape, new: Shape) -> list[DimRun]:
    """Return the shortest runs of dimensions that a reshape joins or splits."""
    runs: list[DimRun] = []
    for olds, news in blocks(shape, new):
        large_olds = [dim for dim in olds if shape[dim] != 1]
        large_news = [dim for dim in news if new[dim] != 1]
        same = None
        if len(large_olds) == len(large_news) == 1:
            same = (large_olds[0], large_news[0])
        runs.append(DimRun(olds, news, same))
    return runs


def blocks(shape: Shape, new: Shape) -> Iterable[tuple[list[int], list[int]]]:
    """Yield the shortest possible runs of old and new dimensions of equal product.

    Leftover dimensions have one element.
    """
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


def unchanged(shape: Shape, new: Shape) -> dict[int, int]:
    """Return the dimensions that a reshape leaves as they are, and what they become.

    Dimensions of one place beside them do not count.
    """
    return dict(run.same for run in find_runs(shape, new) if run.same)


@dataclass(slots=True)
class _Loss:
    """A flag that is set if a step widened an envelope to a hull."""

    is_hull: bool = False


def after_reshape(
    envelope: Envelope, shape: Shape, new: Shape, runs: Sequence[DimRun]
) -> tuple[Envelope, bool]:
    """Return the envelope after a reshape.

    Terms whose dimensions only get other numbers are not fused again: they can't be fused any more
    than before.
    """
    if 0 in shape:
        return (), False
    moved = [_renumber(term, shape, new, runs) for term in envelope]
    if None not in moved:
        return tuple([term for term in moved if term is not None]), False
    loss = _Loss()
    terms = [each for term in envelope for each in _reshape(term, shape, new, runs, loss)]
    after, is_hull = fused(terms, new)
    return after, is_hull or loss.is_hull


def _renumber(term: Term, shape: Shape, new: Shape, runs: Sequence[DimRun]) -> Term | None:
    """Return the term after a reshape that leaves the dimensions that it depends on as they are.

    None if the reshape does not.
    """
    dims: list[Digits | None] = [None] * len(new)
    for run in runs:
        for old in run.olds:
            digits = term.dims[old]
            if digits is None:
                continue
            if run.same is None:
                return None
            same_old, same_new = run.same
            if old != same_old:
                return None
            # A reshape removes a digit with a single value.
            if len(digits) > 1 and any(count == 1 for count, _ in sized(digits, shape[old])):
                return None
            dims[same_new] = digits
    return Term(term.base, tuple(dims))


def _reshape(
    term: Term, shape: Shape, new: Shape, runs: Sequence[DimRun], loss: _Loss
) -> list[Term]:
    """Return the terms after a reshape.

    Dimensions are joined by writing their digits one after the other, and split between digits or
    within one.
    """
    ways: list[list[Digits | None]] = [[]]
    for run in runs:
        digits = _digits_of_run(term, shape, run)
        sizes = [new[dim] for dim in run.news]
        if any(line for _, line in digits) and sizes:
            splits = _regroup(digits, sizes, loss)
        else:
            # At its only place a dimension of one element has its first value, which is zero.
            splits = [[None] * len(sizes)]
        ways = [[*dims, *each] for dims in ways for each in splits]
    return [each for dims in ways for each in normal(term.base, dims)]


def _digits_of_run(term: Term, shape: Shape, run: DimRun) -> Digits:
    """Return the digits of a run without those of one value, or no digits if it has no lines."""
    if all(term.dims[dim] is None for dim in run.olds):
        return ()
    digits = [each for dim in run.olds for each in sized(term.dims[dim], shape[dim])]
    large = [(count, line) for count, line in digits if count != 1]
    # Of one value only the first, which is zero, is met.
    return tuple(large or digits[:1])


def _regroup(digits: Digits, sizes: Sequence[int], loss: _Loss) -> list[list[Digits | None]]:
    """Return the digits for dimensions of these sizes, for each way to write them as a sum."""
    *outer, size = sizes
    if not outer:
        return [[digits]]
    regrouped: list[list[Digits | None]] = []
    for remaining, last in _split_last(digits, size, loss):
        regrouped += [[*rest, last] for rest in _regroup(remaining, outer, loss)]
    return regrouped


def _split_last(digits: Digits, size: int, loss: _Loss) -> list[tuple[Digits, Digits]]:
    """Return what is left of digits without the innermost ones that make up ``size``, and those."""
    taken: Digits = ()
    left = size
    while left > 1 and left % digits[-1][0] == 0:
        *others, last = digits
        count, _ = last
        left //= count
        taken, digits = (last, *taken), tuple(others)
    if left == 1:
        return [(digits or ((1, None),), taken or ((1, None),))]

    count, line = digits[-1]
    if count % left:
        # It ends within another digit: only all of them together can be split there.
        everything = (*digits, *taken)
        count, line = math.prod(each for each, _ in everything), joined(everything)
        digits, taken, left = ((count, line),), (), size
    outer_size = count // left
    if line is None:
        return [((*digits[:-1], (outer_size, None)), ((left, None), *taken))]
    pairs, is_hull = split(line, outer_size, left, left, 1)
    loss.is_hull |= is_hull
    return [
        ((*digits[:-1], (outer_size, outer)), ((left, inner), *taken)) for outer, inner in pairs
    ]
