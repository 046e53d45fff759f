"""Symmetry of axes: the field along the width is often that along the height, dimensions swapped.

A turn swaps dimensions; applied twice, it changes nothing. An operator that treats swapped
dimensions alike maps a turned operand to a turned result, so that one answer serves for both axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.analyses.receptive_field.envelope_reshapes import blocks
from torchscan.analyses.receptive_field.envelope_steps import shape_after
from torchscan.analyses.receptive_field.envelopes import Envelope, Shape, Term
from torchscan.analyses.receptive_field.sights import Sight
from torchscan.ops.windows import Along, Look, Reshape, Step, Ways

Turn = tuple[int, ...]


def turned(sight: Sight, turn: Turn) -> Sight:
    """Return the sight with each dimension where the turn puts it."""
    inside = tuple(sorted((turn[dim], start, stop) for dim, start, stop in sight.inside))
    low, high = _turn_envelope(sight.low, turn), _turn_envelope(sight.high, turn)
    return sight._replace(low=low, high=high, inside=inside)


def _turn_envelope(envelope: Envelope, turn: Turn) -> Envelope:
    terms: list[Term] = []
    for term in envelope:
        dims = tuple([term.dims[dim] for dim in turn])
        terms.append(Term(term.base, dims))
    return tuple(terms)


def turn_between(one: Sight, other: Sight) -> Turn | None:
    """Return the turn from one sight to the other, or None if there is none."""
    if not one.low or not other.low:
        return None
    here, there = one.low[0].dims, other.low[0].dims
    turn = list(range(len(here)))
    for dim, digits in enumerate(here):
        if digits == there[dim] or turn[dim] != dim:
            continue
        for partner, other_digits in enumerate(there):
            if other_digits == digits and here[partner] == there[dim]:
                break
        else:
            return None
        if turn[partner] != partner:
            return None
        turn[dim], turn[partner] = partner, dim
    return tuple(turn) if turned(one, tuple(turn)) == other else None


def turn_through(ways: Ways, shape: Shape, result: Shape, turn: Turn) -> Turn | None:
    """Return the turn of a result if an operand of this shape is turned.

    None unless all ways look the same then.
    """
    if any(shape[dim] != shape[to] for dim, to in enumerate(turn)):
        return None
    if ways is None:
        return tuple(range(len(result)))
    turns = {_turn_through_steps(way.steps, shape, turn) for way in ways}
    return turns.pop() if len(turns) == 1 else None


def _turn_through_steps(steps: Sequence[Step], shape: Shape, turn: Turn) -> Turn | None:
    for step in steps:
        after = _turn_through_step(step, shape, turn)
        shape = shape_after(shape, step)
        if after is None:
            return None
        if any(after[to] != dim or shape[dim] != shape[to] for dim, to in enumerate(after)):
            return None
        turn = after
    return turn


def _turn_through_step(step: Step, shape: Shape, turn: Turn) -> Turn | None:
    if isinstance(step, Look):
        return _turn_through_look(step, turn)
    if isinstance(step, Reshape):
        return _turn_through_reshape(shape, step.shape, turn)
    if turn[step.dim] != step.dim:
        return None
    return turn if len(turn) == len(shape_after(shape, step)) else (*turn, len(turn))


def _turn_through_look(step: Look, turn: Turn) -> Turn | None:
    turn_by_dim: dict[int, int] = {}
    for dim, how in enumerate(step.dims):
        there = step.dims[turn[dim]]
        if isinstance(how, Along) and isinstance(there, Along) and how.taps == there.taps:
            if turn_by_dim.setdefault(how.dim, there.dim) != there.dim:
                return None
        elif how != there:
            return None
    return tuple([turn_by_dim.get(dim, dim) for dim in range(len(step.shape))])


def _turn_through_reshape(shape: Shape, new: Shape, turn: Turn) -> Turn | None:
    """Runs of dimensions that are joined and split are turned as a whole."""
    after = list(range(len(new)))
    runs = {tuple(olds): news for olds, news in blocks(shape, new) if olds}
    for olds, news in runs.items():
        there = runs.get(tuple(turn[dim] for dim in olds))
        if there is None or len(there) != len(news):
            return None
        for dim, to in zip(news, there, strict=True):
            after[dim] = to
    return tuple(after)
