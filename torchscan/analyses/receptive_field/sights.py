"""A sight: what the elements of a tensor see along one axis of one input.

The element at ``(i_0, i_1, …)`` sees the interval from ``low`` to ``high`` with

    low  = min over terms (base + Σ_d f_d(i_d))        high = −min over terms (base + Σ_d g_d(i_d))

where each ``f_d``, ``g_d`` is a periodic-affine function
(:mod:`~torchscan.analyses.receptive_field.periodic_lines`). Only the ends matter, and an end passes
through an operator exactly: the lowest place that a result sees is the lowest that any of its
operands sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.analyses.receptive_field.digits import Digits
from torchscan.analyses.receptive_field.envelope_steps import envelopes_after, shape_after
from torchscan.analyses.receptive_field.envelopes import (
    Envelope,
    Shape,
    Term,
    follows,
    never_above,
    top,
)
from torchscan.analyses.receptive_field.padded_places import Inside, inside_after, is_in_place
from torchscan.analyses.receptive_field.periodic_lines import PeriodicLine
from torchscan.ops.windows import WHOLE, Look, Note, Piece, Step, Way, Whole


@dataclass(frozen=True, slots=True)
class Reason:
    """The operator by which everything is seen, and the path of the first module that called it."""

    operator: str
    path: str


class Sight(NamedTuple):
    """The field of all elements along one axis of one input.

    The envelopes are empty if the axis is seen only for the ``reasons``. It is a tuple because it
    is hashed for every question that was not asked before.
    """

    low: Envelope
    high: Envelope
    reasons: tuple[Reason, ...] = ()
    notes: frozenset[Note] = frozenset()
    #: dimension, start, stop: at other places there is padding, which sees nothing, though the
    #: envelopes go on
    inside: Inside = ()

    @property
    def is_local(self) -> bool:
        """True if anything is seen locally."""
        return bool(self.low)


def identity(rank: int, dim: int) -> Sight:
    """Return the sight of the input itself: each element sees its own place."""
    low: list[Digits | None] = [None] * rank
    high: list[Digits | None] = [None] * rank
    low[dim] = ((0, PeriodicLine((0,), 1)),)
    high[dim] = ((0, PeriodicLine((0,), -1)),)
    return Sight(low=(Term(0, tuple(low)),), high=(Term(0, tuple(high)),))


def moved(sight: Sight, low: int, high: int) -> Sight:
    """Return the sight with these numbers added to its envelopes."""
    moved_low = [Term(term.base + low, term.dims) for term in sight.low]
    moved_high = [Term(term.base + high, term.dims) for term in sight.high]
    return Sight(
        low=tuple(moved_low),
        high=tuple(moved_high),
        reasons=sight.reasons,
        notes=sight.notes,
        inside=sight.inside,
    )


@dataclass(slots=True, kw_only=True)
class Glance:
    """The context of one operator call: size of the axis, reason, and the rule for statistics."""

    size: int
    reason: Reason
    strict_norm: bool
    #: what was found depends on where in the input things are seen
    is_bound: bool = False
    #: the reason was given
    is_named: bool = False


def follow(sight: Sight, shape: Shape, way: Way, glance: Glance) -> tuple[Piece | None, Sight]:
    """Follow one way from an operand of this shape.

    Return the piece of the result that it is restricted to, and what is seen.
    """
    *steps, last = way.steps
    piece = last if isinstance(last, Piece) else None
    seen = sight
    is_bordered = way.note in ("wraps", "padded")
    is_concerned = False
    for step in steps if piece else way.steps:
        if way.note is not None and _is_concerned(seen, shape, step):
            is_concerned = True
        seen = _step(seen, shape, step, glance, is_bordered=is_bordered)
        shape = shape_after(shape, step)
    if way.note is None or not is_concerned:
        return piece, seen
    if way.note != "norm-stats":
        return piece, seen._replace(notes=seen.notes | only(way.note))
    if glance.strict_norm or seen.reasons == sight.reasons:
        return piece, seen
    return piece, Sight(low=(), high=(), reasons=sight.reasons, notes=sight.notes | only(way.note))


def _is_concerned(sight: Sight, shape: Shape, step: Step) -> bool:
    """Return whether a step moves or mixes a dimension along which the field varies."""
    if not isinstance(step, Look):
        return True
    terms = (*sight.low, *sight.high)
    for dim, (how, size) in enumerate(zip(step.dims, shape, strict=True)):
        if not is_in_place(how, size, step) and any(term.dims[dim] is not None for term in terms):
            return True
    return False


def only(note: Note) -> frozenset[Note]:
    """Return a set of one note."""
    return frozenset((note,))


def everything(sight: Sight, shape: Shape, result: Shape, glance: Glance) -> Sight:
    """Return what a result of this shape sees if each element reads all of an operand."""
    return _step(sight, shape, Look((WHOLE,) * len(shape), result), glance)


def blind(sights: Sequence[Sight | None], reason: Reason) -> Sight | None:
    """Return what the result of an operator without a window rule sees."""
    seeing = [sight for sight in sights if sight is not None]
    if not seeing:
        return None
    notes = frozenset[Note]().union(*(sight.notes for sight in seeing))
    reasons = _with_reason(all_reasons(seeing), reason)
    return Sight(low=(), high=(), reasons=reasons, notes=notes)


def all_reasons(sights: Iterable[Sight]) -> tuple[Reason, ...]:
    """Return the reasons of several sights, each operator once."""
    return joined_reasons([sight.reasons for sight in sights])


def joined_reasons(several: Iterable[tuple[Reason, ...]]) -> tuple[Reason, ...]:
    """Return all reasons, each operator once."""
    joined: tuple[Reason, ...] = ()
    for reasons in several:
        for reason in reasons:
            joined = _with_reason(joined, reason)
    return joined


def _step(
    sight: Sight, shape: Shape, step: Step, glance: Glance, *, is_bordered: bool = False
) -> Sight:
    """Return what is seen after a step; what a bordered one puts around a map sees something."""
    if not sight.low:
        return sight
    mixed_dims = []
    if isinstance(step, Look):
        if step.is_identity and step.shape == shape:
            return sight
        mixed_dims = [dim for dim, how in enumerate(step.dims) if isinstance(how, Whole)]
    ends, reasons = _ends_after(sight, shape, step, mixed_dims, glance)

    (low, low_is_hull), (high, high_is_hull) = ends
    notes = sight.notes
    if low_is_hull or high_is_hull:
        notes |= only("hull")
    inside = () if is_bordered else inside_after(sight.inside, shape, step)
    if inside is None:
        return Sight(low=(), high=(), reasons=reasons, notes=notes)
    return Sight(low=low, high=high, reasons=reasons, notes=notes, inside=inside)


def _ends_after(
    sight: Sight, shape: Shape, step: Step, mixed_dims: Sequence[int], glance: Glance
) -> tuple[list[tuple[Envelope, bool]], tuple[Reason, ...]]:
    """Return both envelopes after a step, whether each is a hull, and the reasons.

    Terms that see everything after the step become a reason.
    """
    low, mixed_low = _separate_mixed(sight.low, mixed_dims)
    high, mixed_high = _separate_mixed(sight.high, mixed_dims)
    reasons = sight.reasons
    if mixed_low and mixed_high:
        ends = envelopes_after((mixed_low, mixed_high), shape, step)
        if _sees_all(ends, shape_after(shape, step), (*mixed_low, *mixed_high), sight, glance):
            reasons = _with_reason(sight.reasons, glance.reason)
            if reasons is not sight.reasons:
                glance.is_named = True
            mixed_low = mixed_high = ()
        elif not low and not high:
            return ends, reasons
    return envelopes_after(((*low, *mixed_low), (*high, *mixed_high)), shape, step), reasons


def _separate_mixed(envelope: Envelope, dims: Sequence[int]) -> tuple[Envelope, Envelope]:
    """Return the terms that are the same all along some dimensions, and those that are not."""
    if not dims:
        return envelope, ()
    same, mixed = [], []
    for term in envelope:
        if any(term.dims[dim] is not None for dim in dims):
            mixed.append(term)
        else:
            same.append(term)
    return tuple(same), tuple(mixed)


def _sees_all(
    ends: Sequence[tuple[Envelope, bool]],
    shape: Shape,
    before: Sequence[Term],
    sight: Sight,
    glance: Glance,
) -> bool:
    """Return whether the field covers the complete input and no longer moves.

    At its ends, strides of the terms before may leave a remainder.
    """
    (low, _), (high, _) = ends
    if not low or not high or follows((*low, *high)):
        return False
    glance.is_bound = True
    slack = _max_remainder(before)
    if never_above(low, shape, slack) and never_above(high, shape, slack + 1 - glance.size):
        return True
    if "wraps" not in sight.notes:
        return False
    # as much as all of it, wherever it starts
    span = 1 - max(top(term, shape) for term in low)
    span -= max(top(term, shape) for term in high)
    return span >= glance.size - slack


def _with_reason(reasons: tuple[Reason, ...], reason: Reason) -> tuple[Reason, ...]:
    """Name each operator once, where it first occurred."""
    if any(each.operator == reason.operator for each in reasons):
        return reasons
    return (*reasons, reason)


def _max_remainder(terms: Iterable[Term]) -> int:
    """Return the remainder that strides may leave at an end: less than one step between units."""
    all_digits = [digits for term in terms for digits in term.dims if digits]
    lines = [line for digits in all_digits for _, line in digits if line]
    steps = [-(-abs(line.rise) // len(line.table)) for line in lines]
    return max(max(steps, default=1) - 1, 0)
