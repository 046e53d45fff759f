"""A sight: what the elements of a tensor see along one axis of one input.

The element at ``(i_0, i_1, …)`` sees the interval from ``low`` to ``high`` with

    low  = min over terms (base + Σ_d f_d(i_d))        high = −min over terms (base + Σ_d g_d(i_d))

where each ``f_d``, ``g_d`` is a periodic-affine function
(:mod:`~torchscan.analyses.receptive_field.periodic_lines`). Only the ends matter, and an end passes
through an operator exactly: the lowest place that a result sees is the lowest that any of its
operands sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.analyses.receptive_field.envelopes import (
    Envelope,
    Shape,
    Term,
    envelopes_after,
    follows,
    never_above,
    shape_after,
    top,
    unchanged,
)
from torchscan.analyses.receptive_field.periodic_lines import PeriodicLine
from torchscan.ops.windows import (
    HERE,
    WHOLE,
    Along,
    At,
    Dim,
    Look,
    Note,
    Piece,
    Reshape,
    Step,
    Unfold,
    Way,
)


@dataclass(frozen=True, slots=True)
class Reason:
    """The operator by which everything is seen, and the path of the first module that called it."""

    operator: str
    path: str


class Sight(NamedTuple):  # a tuple, as it is hashed for every question that was not asked before
    """The field of all elements along one axis of one input.

    The envelopes are empty if the axis is seen only for the ``reasons``.
    """

    low: Envelope
    high: Envelope
    reasons: tuple[Reason, ...] = ()
    notes: frozenset[Note] = frozenset()
    #: dimension, start, stop: at other places there is padding, which sees nothing, though the envelopes go on
    inside: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_local(self) -> bool:
        """True if anything is seen locally."""
        return bool(self.low)


def identity(rank: int, dim: int) -> Sight:
    """The sight of the input itself: each element sees its own place."""
    rising, falling = (((0, PeriodicLine((0,), rise)),) for rise in (1, -1))
    low, high = (
        tuple(line if at == dim else None for at in range(rank)) for line in (rising, falling)
    )
    return Sight(low=(Term(0, low),), high=(Term(0, high),))


def moved(sight: Sight, low: int, high: int) -> Sight:
    """Return the sight with these numbers added to its envelopes."""
    return Sight(
        low=tuple([Term(term.base + low, term.dims) for term in sight.low]),
        high=tuple([Term(term.base + high, term.dims) for term in sight.high]),
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
    is_concerned = False
    for step in steps if piece else way.steps:
        is_concerned |= way.note is not None and _is_concerned(seen, shape, step)
        seen, shape = (
            _step(seen, shape, step, glance, is_bordered=way.note in ("wraps", "padded")),
            shape_after(shape, step),
        )
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
    stays = [_stays(how, size, step) for how, size in zip(step.dims, shape, strict=True)]
    return any(
        term.dims[dim] is not None
        for dim, stay in enumerate(stays)
        if not stay
        for term in (*sight.low, *sight.high)
    )


def _stays(how: Dim, size: int, step: Look) -> bool:
    """Return whether a dimension is read at the same places of one with the same size."""
    return isinstance(how, Along) and how.taps is HERE and step.shape[how.dim] == size


def only(note: Note) -> frozenset[Note]:
    """One note."""
    return frozenset((note,))


def everything(sight: Sight, shape: Shape, result: Shape, glance: Glance) -> Sight:
    """All of an operand in each element of a result of this shape."""
    return _step(sight, shape, Look((WHOLE,) * len(shape), result), glance)


def blind(sights: Sequence[Sight | None], reason: Reason) -> Sight | None:
    """Through an operator without a window rule."""
    seeing = [sight for sight in sights if sight is not None]
    notes = frozenset[Note]().union(*(sight.notes for sight in seeing))
    return (
        Sight(low=(), high=(), reasons=_with_reason(all_reasons(seeing), reason), notes=notes)
        if seeing
        else None
    )


def all_reasons(sights: Iterable[Sight]) -> tuple[Reason, ...]:
    """The reasons of several sights, each operator once."""
    reasons: tuple[Reason, ...] = ()
    for sight in sights:
        for reason in sight.reasons:
            reasons = _with_reason(reasons, reason)
    return reasons


def _step(
    sight: Sight, shape: Shape, step: Step, glance: Glance, *, is_bordered: bool = False
) -> Sight:
    """After a step; what is put around a map by a bordered one sees something, too."""
    if not sight.low or (isinstance(step, Look) and step.is_identity and step.shape == shape):
        return sight
    whole = (
        [dim for dim, how in enumerate(step.dims) if how is WHOLE] if isinstance(step, Look) else []
    )
    low, low_mixed = _apart_by(sight.low, whole)
    high, high_mixed = _apart_by(sight.high, whole)
    reasons, ends = sight.reasons, None
    if low_mixed and high_mixed:
        ends = envelopes_after((low_mixed, high_mixed), shape, step)
        slack = _slack((*low_mixed, *high_mixed))
        if _sees_all(
            ends[0][0],
            ends[1][0],
            shape_after(shape, step),
            slack,
            glance,
            wraps="wraps" in sight.notes,
        ):
            reasons = _with_reason(sight.reasons, glance.reason)
            glance.is_named |= reasons is not sight.reasons
            ends, low_mixed, high_mixed = None, (), ()
    if ends is None or low or high:
        ends = envelopes_after(((*low, *low_mixed), (*high, *high_mixed)), shape, step)
    (low, low_is_hull), (high, high_is_hull) = ends
    notes = sight.notes | only("hull") if low_is_hull or high_is_hull else sight.notes
    inside = () if is_bordered else _inside_after(sight, shape, step)
    return (
        Sight(low=(), high=(), reasons=reasons, notes=notes)
        if inside is None
        else Sight(low=low, high=high, reasons=reasons, notes=notes, inside=inside)
    )


def _inside_after(
    sight: Sight, shape: Shape, step: Step
) -> tuple[tuple[int, int, int], ...] | None:
    """Return the places that see anything after a step, or None if there are none.

    A window that has a part of them counts.
    """
    known = {dim: (start, stop) for dim, start, stop in sight.inside}
    if isinstance(step, Look):
        return _inside_look(known, shape, step)
    if isinstance(step, Reshape):
        kept = unchanged(shape, step.shape) if known else {}
        return tuple((kept[dim], *known[dim]) for dim in known if dim in kept)
    return tuple(
        each for each in sight.inside if not isinstance(step, Unfold) or each[0] != step.dim
    )


def _inside_look(
    known: Mapping[int, tuple[int, int]], shape: Shape, step: Look
) -> tuple[tuple[int, int, int], ...] | None:
    inside: list[tuple[int, int, int]] = []
    for dim, (how, size) in enumerate(zip(step.dims, shape, strict=True)):
        if dim not in known and (how is WHOLE or _stays(how, size, step)):
            continue
        start, stop = known.get(dim, (0, size))
        if isinstance(how, At) and not start <= how.index < stop:
            return None
        if (
            isinstance(how, Along)
            and len(how.taps.table) == len(how.taps.table[0]) == 1
            and how.taps.rise > 0
        ):
            first, rise, full = how.taps.table[0][0], how.taps.rise, step.shape[how.dim]
            start, stop = max(-((first - start) // rise), 0), min(-((first - stop) // rise), full)
            if start >= stop:
                return None
            if (start, stop) != (0, full):
                inside.append((how.dim, start, stop))
    return tuple(inside)


def _apart_by(envelope: Envelope, dims: Sequence[int]) -> tuple[Envelope, Envelope]:
    """The terms that are the same all along some dimensions, and those that are not."""
    if not dims:
        return envelope, ()
    varies = [any(term.dims[dim] is not None for dim in dims) for term in envelope]
    same = tuple(term for term, each in zip(envelope, varies, strict=True) if not each)
    return same, tuple(term for term, each in zip(envelope, varies, strict=True) if each)


def _sees_all(
    low: Envelope, high: Envelope, shape: Shape, slack: int, glance: Glance, *, wraps: bool
) -> bool:
    """Return whether the field covers the complete input and no longer moves.

    At its ends, strides may leave a remainder.
    """
    if not low or not high or follows((*low, *high)):
        return False
    glance.is_bound = True
    if never_above(low, shape, slack) and never_above(high, shape, slack + 1 - glance.size):
        return True
    span = 1 - max(top(term, shape) for term in low) - max(top(term, shape) for term in high)
    return wraps and span >= glance.size - slack  # as much as all of it, wherever it starts


def _with_reason(reasons: tuple[Reason, ...], reason: Reason) -> tuple[Reason, ...]:
    """Name each operator once, where it first occurred."""
    return (
        reasons if any(each.operator == reason.operator for each in reasons) else (*reasons, reason)
    )


def _slack(terms: Iterable[Term]) -> int:
    """Return the remainder that strides may leave at an end: less than one step between units."""
    lines = (line for term in terms for digits in term.dims if digits for _, line in digits if line)
    return max(max((-(-abs(line.rise) // len(line.table)) for line in lines), default=1) - 1, 0)
