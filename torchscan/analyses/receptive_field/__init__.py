"""The receptive field of the graph that ran: which part of each input one unit of each layer sees.

Window rules say how the result of an operator call looks at its operands (:mod:`torchscan.ops.windows`). Here, what the
operands see is followed through these rules, along each spatial axis of each input
(:mod:`~torchscan.analyses.receptive_field.sights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.pieces import dims_of_places
from torchscan.analyses.receptive_field.questions import Seen, Sights
from torchscan.analyses.receptive_field.receptive_field_result import (
    AxisField,
    LayerField,
    Places,
    ReceptiveField,
    axis_field,
    further,
)
from torchscan.analyses.receptive_field.sights import Reason, Sight
from torchscan.analyses.receptive_field.walk import Axis, State, Walk
from torchscan.errors import Argument, InputError
from torchscan.garbage import collected_later
from torchscan.trace.events import ModuleCall
from torchscan.trace.trace import Trace

__all__ = ["AxisField", "LayerField", "Reason", "ReceptiveField", "receptive_fields"]


@collected_later()
def receptive_fields(
    trace: Trace, *, strict_norm: bool = False, axes: Mapping[str, Sequence[int]] | None = None
) -> ReceptiveField:
    """The receptive field of each module call of a record.

    ``strict_norm`` counts the statistics of group and instance norms as seen, and ``axes`` names the spatial dimensions of
    inputs. By default, they are all except the batch and the channels; the first product sums over the channels.
    """
    inputs = _inputs(trace)
    given = _checked(
        axes or {},
        {trace.tensors[index].name: len(trace.tensors[index].spec.shape) for index in inputs},
    )
    tracked: list[Axis] = []
    undecided: set[int] = set()
    for index in inputs:
        record = trace.tensors[index]
        tracked += [
            (index, dim) for dim in given.get(record.name, range(1, len(record.spec.shape)))
        ]
        if record.name not in given and record.spec.is_arithmetic:
            undecided.add(index)
    walk = Walk(trace, tracked, undecided, strict_norm=strict_norm)
    seen = walk.outputs_by_call()
    spatial = [_is_spatial(trace, axis, walk.channels, given) for axis in tracked]
    describe = _Describer(trace, tracked, spatial, walk.sights)
    return ReceptiveField(tuple(describe.layer(call, seen[call.index]) for call in trace.modules))


def _inputs(trace: Trace) -> list[int]:
    found = {
        record.name: index
        for index, record in reversed(list(enumerate(trace.tensors)))
        if record.kind == "input"
    }
    return sorted(found.values())


def _checked(
    axes: Mapping[str, Sequence[int]], ranks: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    if not isinstance(axes, Mapping):
        raise InputError.of_value(
            "axes", axes, "give a dictionary of dimensions by input, {'args[0]': (2, 3)}"
        )
    for name, dims in axes.items():
        if name not in ranks:
            raise InputError(
                Argument("axes"),
                f" names {name!r}, which is not an input of this pass: choose from "
                f"{', '.join(ranks)}",
            )
        if not isinstance(dims, Sequence) or not all(isinstance(dim, int) for dim in dims):
            raise InputError(
                Argument("axes"), f" of {name!r} are {dims!r}: give a tuple of dimensions, (2, 3)"
            )
        if not all(-ranks[name] <= dim < ranks[name] for dim in dims):
            raise InputError(
                Argument("axes"),
                f" of {name!r} are {tuple(dims)}, and it has {ranks[name]} dimensions: give others",
            )
    return {name: tuple(dim % ranks[name] for dim in dims) for name, dims in axes.items()}


def _is_spatial(
    trace: Trace, axis: Axis, channels: Mapping[int, int | None], given: Mapping[str, Sequence[int]]
) -> bool:
    """The channels, if neither given nor found: dimension 1 of an input that has more than that."""
    tensor, dim = axis
    record = trace.tensors[tensor]
    if record.name in given or not record.spec.is_arithmetic:
        return True
    default = 1 if len(record.spec.shape) > 2 else None
    return dim != channels.get(tensor, default)


#: an axis, the number of a sight, the shape of the output, and its places
_Asked = tuple[Axis, int, Shape, Places]


class _Describer:
    """Says what layers see. Much of a model passes on what it is given, or sees the same a few places further on."""

    def __init__(
        self, trace: Trace, axes: Sequence[Axis], spatial: Sequence[bool], sights: Sights
    ) -> None:
        self._trace = trace
        self._axes = axes
        self._sights = sights
        self._spatial = [at for at, is_spatial in enumerate(spatial) if is_spatial]
        self._described: dict[tuple[Shape, State], tuple[AxisField, ...]] = {}
        #: by the number of a sight and a shape
        self._followed: dict[tuple[int, Shape], frozenset[int]] = {}
        #: of sights that start at zero
        self._fields: dict[_Asked, AxisField] = {}

    def layer(self, call: ModuleCall, states: Sequence[State]) -> LayerField:
        """Return the receptive fields of a layer: the spatial axes of each output."""
        shapes = [self._trace.tensors[tensor].spec.shape for tensor in call.outputs]
        outputs = tuple(
            [self._output(state, shape) for state, shape in zip(states, shapes, strict=True)]
        )
        return LayerField(call.path, call.type_name, call.call, outputs)

    def _output(self, state: State, shape: Shape) -> tuple[AxisField, ...]:
        key = (shape, state)
        if key not in self._described:
            kept = {self._axes[at]: state[at] for at in self._spatial}
            numbers = {axis: seen[0] for axis, seen in kept.items() if seen is not None}
            followed = {
                axis: self._dims_of_places(number, shape) for axis, number in numbers.items()
            }
            asked = {
                axis: (axis, number, shape, _places(axis, self._rank(axis), followed, shape))
                for axis, number in numbers.items()
            }
            self._described[key] = tuple(
                [self._axis(axis, seen, shape, asked) for axis, seen in kept.items()]
            )
        return self._described[key]

    def _rank(self, axis: Axis) -> int:
        return len(self._trace.tensors[axis[0]].spec.shape)

    def _dims_of_places(self, number: int, shape: Shape) -> frozenset[int]:
        key = (number, shape)
        if key not in self._followed:
            self._followed[key] = dims_of_places(self._sights[number, 0, 0], shape)
        return self._followed[key]

    def _axis(
        self, axis: Axis, seen: Seen | None, shape: Shape, asked: Mapping[Axis, _Asked]
    ) -> AxisField:
        if seen is None:
            return self._describe(axis, None, shape, _NOWHERE)
        number, low, high = seen
        key = asked[axis]
        if key not in self._fields:
            self._fields[key] = self._told_of_another_axis(key, asked) or self._describe(
                axis, self._sights[number, 0, 0], shape, key[-1]
            )
        field = self._fields[key]
        if None in field.starts:  # a unit that sees nothing has size zero, wherever the others are
            return self._describe(axis, self._sights[seen], shape, key[-1])
        return further(field, low, high)

    def _describe(self, axis: Axis, sight: Sight | None, shape: Shape, places: Places) -> AxisField:
        record = self._trace.tensors[axis[0]]
        return axis_field(record.name, axis[1], record.spec.shape[axis[1]], sight, shape, places)

    def _told_of_another_axis(self, key: _Asked, asked: Mapping[Axis, _Asked]) -> AxisField | None:
        """Return the field of another axis of the same length, if dimensions are only swapped."""
        (tensor, axis), number, shape, places = key
        sizes = self._trace.tensors[tensor].spec.shape
        for (of, other), like in asked.items():
            field = self._fields.get(like)
            if field is None or of != tensor or sizes[other] != sizes[axis]:
                continue
            turn = self._sights.turn(like[1], number)
            if (
                turn is not None
                and like[-1].turned(turn) == places
                and all(shape[to] == shape[dim] for dim, to in enumerate(turn))
            ):
                return field._replace(axis=axis, dim=None if field.dim is None else turn[field.dim])
        return None


_NOWHERE = Places(frozenset(), are_shared=False)


def _places(axis: Axis, rank: int, followed: Mapping[Axis, frozenset[int]], shape: Shape) -> Places:
    """The dimensions of an output that are places along an axis, and not channels that something of it went into.

    It is the axis's own, if the output has as many dimensions as the input; else those that no other axis shares. If all are
    shared, places of several axes are written one after the other there, as in a sequence of patches.
    """
    own = followed[axis]
    if axis[1] in own and len(shape) == rank:
        return Places(frozenset((axis[1],)), are_shared=False)
    others = (dims for each, dims in followed.items() if each != axis and each[0] == axis[0])
    unshared = own.difference(*others)
    return Places(unshared or own, are_shared=not unshared)
