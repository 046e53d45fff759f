"""The receptive field of the graph that ran: which part of each input one unit of each layer sees.

Window rules describe how the result of an operator call reads its operands
(:mod:`torchscan.ops.windows`). Here, what the operands see is followed through these rules, along
each spatial axis of each input (:mod:`~torchscan.analyses.receptive_field.sights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchscan.analyses.receptive_field.axis_fields import Places, axis_field, further
from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.analyses.receptive_field.followed_axes import FollowedAxes
from torchscan.analyses.receptive_field.pieces import dims_of_places
from torchscan.analyses.receptive_field.questions import Seen, Sights
from torchscan.analyses.receptive_field.receptive_field_result import (
    AxisField,
    LayerField,
    ReceptiveField,
)
from torchscan.analyses.receptive_field.result_states import Axis, State
from torchscan.analyses.receptive_field.sights import Reason, Sight
from torchscan.analyses.receptive_field.walk import Walk
from torchscan.garbage import collected_later
from torchscan.trace.events import ModuleCall
from torchscan.trace.trace import Trace

__all__ = ["AxisField", "LayerField", "Reason", "ReceptiveField", "receptive_fields"]


@collected_later()
def receptive_fields(
    trace: Trace, *, strict_norm: bool = False, axes: Mapping[str, Sequence[int]] | None = None
) -> ReceptiveField:
    """Return the receptive field of each module call of a trace.

    ``strict_norm`` counts the statistics of group and instance norms as seen, and ``axes`` names
    the spatial dimensions of inputs. By default, they are all except the batch and the channels;
    the first product sums over the channels.
    """
    _, fields = fields_by_axis(trace, strict_norm=strict_norm, axes=axes)
    return fields


def fields_by_axis(
    trace: Trace, *, strict_norm: bool, axes: Mapping[str, Sequence[int]] | None
) -> tuple[list[Axis], ReceptiveField]:
    """Return the spatial axes of the inputs, and the receptive fields in which they follow."""
    followed = FollowedAxes.of(trace, axes)
    results = followed.result_states(strict_norm=strict_norm)
    seen = Walk(trace, followed.tracked, results).outputs_by_call()
    spatial = followed.spatial(results.channels)
    describer = _Describer(trace, followed.tracked, spatial, results.sights)
    layers = [describer.layer(call, seen[call.index]) for call in trace.modules]
    return spatial, ReceptiveField(tuple(layers))


#: an axis, the number of a sight, the shape of the output, and its places
_Asked = tuple[Axis, int, Shape, Places]


class _Describer:
    """Describes what layers see.

    Much of a model passes on what it is given, or sees the same a few places further on.
    """

    def __init__(
        self, trace: Trace, axes: Sequence[Axis], spatial: Sequence[Axis], sights: Sights
    ) -> None:
        self._trace = trace
        self._sights = sights
        #: by spatial axis, its position in a state
        self._spatial = {axis: position for position, axis in enumerate(axes) if axis in spatial}
        self._described: dict[tuple[Shape, State], tuple[AxisField, ...]] = {}
        #: by the number of a sight and a shape
        self._followed: dict[tuple[int, Shape], frozenset[int]] = {}
        #: of sights that start at zero
        self._fields: dict[_Asked, AxisField] = {}

    def layer(self, call: ModuleCall, states: Sequence[State]) -> LayerField:
        """Return the receptive fields of a layer: the spatial axes of each output."""
        outputs = []
        for state, tensor in zip(states, call.outputs, strict=True):
            shape = self._trace.tensors[tensor].spec.shape
            if (shape, state) not in self._described:
                self._described[shape, state] = self._describe_output(state, shape)
            outputs.append(self._described[shape, state])
        return LayerField(call.path, call.type_name, call.call, tuple(outputs))

    def _describe_output(self, state: State, shape: Shape) -> tuple[AxisField, ...]:
        numbers: dict[Axis, int] = {}
        followed: dict[Axis, frozenset[int]] = {}
        for axis, position in self._spatial.items():
            seen = state[position]
            if seen is None:
                continue
            number, _, _ = seen
            numbers[axis] = number
            if (number, shape) not in self._followed:
                dims = dims_of_places(self._sights[number, 0, 0], shape)
                self._followed[number, shape] = dims
            followed[axis] = self._followed[number, shape]

        asked: dict[Axis, _Asked] = {}
        for axis, number in numbers.items():
            tensor, _ = axis
            rank = len(self._trace.tensors[tensor].spec.shape)
            asked[axis] = (axis, number, shape, _find_places(axis, rank, followed, shape))
        fields = [
            self._describe_axis(axis, state[position], shape, asked)
            for axis, position in self._spatial.items()
        ]
        return tuple(fields)

    def _describe_axis(
        self, axis: Axis, seen: Seen | None, shape: Shape, asked: Mapping[Axis, _Asked]
    ) -> AxisField:
        if seen is None:
            return self._describe(axis, None, shape, _NOWHERE)
        number, low, high = seen
        key = asked[axis]
        *_, places = key
        if key not in self._fields:
            field = self._copy_other_axis(key, asked)
            if field is None:
                field = self._describe(axis, self._sights[number, 0, 0], shape, places)
            self._fields[key] = field
        field = self._fields[key]
        if None in field.starts:  # a unit that sees nothing has size zero, wherever the others are
            return self._describe(axis, self._sights[seen], shape, places)
        return further(field, low, high)

    def _describe(self, axis: Axis, sight: Sight | None, shape: Shape, places: Places) -> AxisField:
        tensor, dim = axis
        record = self._trace.tensors[tensor]
        return axis_field(record.name, dim, record.spec.shape[dim], sight, shape, places)

    def _copy_other_axis(self, key: _Asked, asked: Mapping[Axis, _Asked]) -> AxisField | None:
        """Return the field of another axis of the same length, if dimensions are only swapped."""
        (tensor, dim), number, shape, places = key
        sizes = self._trace.tensors[tensor].spec.shape
        for (other_tensor, other_dim), other_key in asked.items():
            field = self._fields.get(other_key)
            if field is None or other_tensor != tensor or sizes[other_dim] != sizes[dim]:
                continue
            _, other_number, _, other_places = other_key
            turn = self._sights.turn(other_number, number)
            if turn is None or other_places.turned(turn) != places:
                continue
            if all(shape[to] == shape[each] for each, to in enumerate(turn)):
                turned_dim = None if field.dim is None else turn[field.dim]
                return field._replace(axis=dim, dim=turned_dim)
        return None


_NOWHERE = Places(frozenset(), are_shared=False)


def _find_places(
    axis: Axis, rank: int, followed: Mapping[Axis, frozenset[int]], shape: Shape
) -> Places:
    """Return the dimensions of an output that are places along an axis.

    Channels that something of it went into are not. It is the axis's own dimension if the output
    has as many dimensions as the input; else those that no other axis shares. If all are shared,
    places of several axes are written one after the other there, as in a sequence of patches.
    """
    tensor, dim = axis
    own = followed[axis]
    if dim in own and len(shape) == rank:
        return Places(frozenset((dim,)), are_shared=False)
    others = [dims for each, dims in followed.items() if each != axis and each[0] == tensor]
    unshared = own.difference(*others)
    return Places(unshared or own, are_shared=not unshared)
