"""Walks through a trace that follow what each position of an axis reaches, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchscan.analyses.projective_field.mask_sizes import TooManyPositionsError
from torchscan.analyses.projective_field.projective_field_result import (
    AxisReach,
    LayerReach,
    ProjectiveField,
)
from torchscan.analyses.projective_field.reach_counts import OutputCounts, count_reached
from torchscan.analyses.projective_field.reach_states import ReachStates
from torchscan.analyses.receptive_field import AxisField, fields_by_axis
from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.result_states import Axis
from torchscan.analyses.receptive_field.sights import Reason, joined_reasons
from torchscan.analyses.receptive_field.walk import Walk
from torchscan.trace.trace import Trace


def projective_fields(
    trace: Trace, *, strict_norm: bool = False, axes: Mapping[str, Sequence[int]] | None = None
) -> ProjectiveField:
    """Return the projective field at each module call of a trace.

    The arguments are those of :func:`~torchscan.analyses.receptive_field.receptive_fields`.
    """
    spatial, fields = fields_by_axis(trace, strict_norm=strict_norm, axes=axes)
    reached_by_axis: dict[Axis, _ReachOfAxis] = {}
    for axis in spatial:
        tensor, dim = axis
        length = trace.tensors[tensor].spec.shape[dim]
        reached_by_axis[axis] = _follow(trace, axis, range(length), strict_norm=strict_norm)

    layers: list[LayerReach] = []
    for call, field in zip(trace.modules, fields, strict=True):
        outputs = []
        for position, seen in enumerate(field.outputs):
            reached = {axis: each[call.index, position] for axis, each in reached_by_axis.items()}
            outputs.append(_describe_output(trace, call.outputs[position], reached, seen))
        layers.append(LayerReach(call.path, call.type_name, call.call, tuple(outputs)))
    return ProjectiveField(tuple(layers))


# -- one axis ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reached:
    """The part of one output that the positions of an axis reach."""

    shape: Shape
    counts: OutputCounts
    reasons: tuple[Reason, ...]
    notes: frozenset[str]

    def joined(self, other: _Reached) -> _Reached:
        """Return the same for these positions and, after them, for others."""
        counts = self.counts.joined(other.counts, self.shape)
        reasons = joined_reasons([self.reasons, other.reasons])
        return _Reached(self.shape, counts, reasons, self.notes | other.notes)


#: by the index of a call and the position of its output
_ReachOfAxis = Mapping[tuple[int, int], _Reached]


def _follow(trace: Trace, axis: Axis, positions: range, *, strict_norm: bool) -> _ReachOfAxis:
    """Return what these positions reach, in halves if they are too many for one walk."""
    try:
        return _walk(trace, axis, positions, strict_norm=strict_norm)
    except TooManyPositionsError:
        middle = len(positions) // 2
        halves = positions[:middle], positions[middle:]
        one, other = (_follow(trace, axis, half, strict_norm=strict_norm) for half in halves)
        return {key: each.joined(other[key]) for key, each in one.items()}


def _walk(trace: Trace, axis: Axis, positions: range, *, strict_norm: bool) -> _ReachOfAxis:
    results = ReachStates(trace, axis, positions, strict_norm=strict_norm)
    tensor, dim = axis
    rank = len(trace.tensors[tensor].spec.shape)
    known: dict[tuple[int | None, Shape], _Reached] = {}
    reached: dict[tuple[int, int], _Reached] = {}
    for call, position, state in Walk(trace, [axis], results).outputs_in_turn():
        shape = trace.tensors[trace.modules[call].outputs[position]].spec.shape
        own_dim = dim if len(shape) == rank else None
        key = results.number_of(state), shape
        if key not in known:
            reach = results.reach_of(state, len(shape))
            counts = count_reached(reach.mask, shape, len(positions), own_dim)
            known[key] = _Reached(shape, counts, reach.reasons, reach.notes)
        reached[call, position] = known[key]
    return reached


# -- one output ----------------------------------------------------------------------------------


def _describe_output(
    trace: Trace, tensor: int, reached: Mapping[Axis, _Reached], seen: Sequence[AxisField]
) -> tuple[AxisReach, ...]:
    """Return the axes of an output, of which ``seen`` are the receptive fields.

    If all positions reach all units, the dimension is that of the receptive field.
    """
    shape = trace.tensors[tensor].spec.shape
    followed = {axis: frozenset(each.counts.by_dim) for axis, each in reached.items()}
    axes: list[AxisReach] = []
    for (axis, each), field in zip(reached.items(), seen, strict=True):
        of_input, dim = axis
        record = trace.tensors[of_input]
        rank = len(record.spec.shape)
        elements = each.counts.elements
        is_reached = any(elements)
        described = AxisReach(
            input=record.name,
            axis=dim,
            length=record.spec.shape[dim],
            status=field.status if is_reached else "none",
            counts=tuple(map(int, map(bool, elements))),
            reasons=each.reasons,
            notes=tuple(sorted(each.notes)),
        )
        place = _find_place(axis, rank, followed, shape)
        if followed[axis]:
            described = described._replace(status="local")
        elif described.status != "none":
            place = field.dim
        if place is not None:
            described = _with_place(described, place, each.counts, shape)
        elif followed[axis]:
            numel = trace.tensors[tensor].spec.numel
            described = described._replace(units=numel, counts=elements)
        axes.append(described)
    return tuple(axes)


def _find_place(
    axis: Axis, rank: int, followed: Mapping[Axis, frozenset[int]], shape: Sequence[int]
) -> int | None:
    """Return the dimension of an output that follows an axis, if there is one."""
    tensor, dim = axis
    own = followed[axis]
    if dim in own and len(shape) == rank:
        return dim
    others = [dims for each, dims in followed.items() if each != axis and each[0] == tensor]
    unshared = own.difference(*others) if len(own) > 1 else own
    return next(iter(unshared)) if len(unshared) == 1 else None


def _with_place(
    reach: AxisReach, dim: int, counts: OutputCounts, shape: Sequence[int]
) -> AxisReach:
    along = counts.along(dim, shape)
    return reach._replace(
        dim=dim,
        units=shape[dim],
        first=_without_missing(along.first),
        last=_without_missing(along.last),
        counts=along.num_units,
    )


def _without_missing(units: Sequence[int]) -> tuple[int | None, ...]:
    if -1 not in units:
        return tuple(units)
    replaced: dict[int, int | None] = {-1: None}
    return tuple([replaced.get(unit, unit) for unit in units])
