"""Facts of a finished step. Times are arrays, so that thousands of steps can be kept."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torchscan.inspecting.call_memory import CallMemory, Shapes
from torchscan.inspecting.device_times import DeviceTimes
from torchscan.inspecting.finiteness import FINE, NonFiniteCount
from torchscan.inspecting.timing import LEAVES, StepTimes
from torchscan.inspecting.values import Values
from torchscan.measured import Key
from torchscan.recording.module_calls import Call

_LOOKS = ("forward", "grad_in", "grad_out")
#: the fields of a call that are counts of one step
COUNTED = tuple(f"{name}_{kind}" for name in _LOOKS for kind in ("nan", "inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCall(CallMemory):
    """A call of a module, with its shapes and its non-finite values."""

    path: str
    type_name: str
    #: 0 for the first call of this module in a step, 1 for the second, …
    invocation: int
    depth: int
    #: index of the enclosing call, or None for the model's call
    parent: int | None
    input_shapes: Shapes
    output_shapes: Shapes
    #: shapes of the gradients of the inputs
    grad_in_shapes: Shapes
    #: shapes of the gradients of the outputs
    grad_out_shapes: Shapes
    #: True if a checkpoint recomputed the call in the backward pass
    is_again: bool
    #: NaN in the output, or None if they were not counted
    forward_nan: int | None
    #: Inf in the output, or None if they were not counted
    forward_inf: int | None
    #: NaN in the gradients of the inputs, or None if they were not counted
    grad_in_nan: int | None
    #: Inf in the gradients of the inputs, or None if they were not counted
    grad_in_inf: int | None
    #: NaN in the gradients of the outputs, or None if they were not counted
    grad_out_nan: int | None
    #: Inf in the gradients of the outputs, or None if they were not counted
    grad_out_inf: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Times on the device: of each call, and of the backward pass."""

    forward: array[int]
    backward: array[int]
    backward_span: int
    owned: int
    leaves: int
    #: how long the device had done all that it was given, and of how much time
    waiting: int
    whole: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One step: its calls in the order in which they started. Times are in nanoseconds."""

    #: 0 is the first that was watched
    number: int
    #: which calls, and which others they are in (-1: none)
    keys: tuple[Key, ...]
    #: of what the model was given
    shapes: Shapes
    parents: array[int]
    forward: array[int]
    #: of the nodes that each call made, and calls in it
    backward: array[int]
    #: None: nothing runs on a device
    device: DeviceFacts | None
    #: from the start of the first node to the end of the last one, and what of that belongs to
    #: calls
    backward_span: int
    owned: int
    #: storing gradients
    leaves: int
    #: number of autograd nodes, and what they took together
    num_nodes: int
    in_nodes: int
    #: what optimizers took
    optimizer: int
    #: when it began and was over, in nanoseconds since 1970
    began: int
    over: int
    #: from the start of this step to that of the next, and what of that came after everything else;
    #: None: there is no next one
    period: int | None
    between: int | None
    #: what is not finite, by index of a call, in the order of :data:`COUNTED`
    counts: Mapping[int, tuple[int, ...]]
    #: False if there is something that was not counted
    is_counted: bool

    @property
    def rest(self) -> int | None:
        """Return the time in the step that no pass and no optimizer took, or None if not known."""
        if self.period is None or self.between is None:
            return None
        parts = self.of_model(self.forward) + self.backward_span + self.optimizer
        return max(0, self.period - self.between - parts)

    def of_model(self, times: array[int]) -> int:
        """Return the sum over the model's own calls."""
        return sum(took for took, parent in zip(times, self.parents, strict=True) if parent < 0)


def facts_of(
    number: int,
    calls: Sequence[Call],
    keys: tuple[Key, ...],
    shapes: Shapes,
    times: StepTimes,
    values: Values,
) -> StepFacts:
    """Return the facts of a step."""
    parents = array("q")
    for call in calls:
        parents.append(-1 if call.parent is None else call.parent.index)
    starts = [times.started[index] for index in range(len(calls))]
    # A call whose end was not noticed took no time.
    ends = map(times.ended.get, range(len(calls)), starts)
    forward = array("q", map(operator.sub, ends, starts))
    own = _in_order(times.backward, len(calls))
    on_device = None
    if times.device is not None:
        on_device = _on_device(times.device, parents)
    return StepFacts(
        number=number,
        keys=keys,
        shapes=shapes,
        parents=parents,
        forward=forward,
        backward=_with_inside(own, parents),
        device=on_device,
        backward_span=times.backward_span,
        owned=sum(own),
        leaves=times.backward.get(LEAVES, 0),
        num_nodes=times.num_nodes,
        in_nodes=times.in_nodes,
        optimizer=times.optimizer,
        began=times.began_at,
        over=times.over_at,
        period=times.period,
        between=times.between,
        counts=_counts(values),
        is_counted=values.is_counted,
    )


def _on_device(times: DeviceTimes, parents: array[int]) -> DeviceFacts:
    own = _in_order(times.backward, len(parents))
    return DeviceFacts(
        forward=array("q", _in_order(times.forward, len(parents))),
        backward=_with_inside(own, parents),
        backward_span=times.backward_span,
        owned=sum(own),
        leaves=times.backward.get(LEAVES, 0),
        waiting=times.waiting,
        whole=times.whole,
    )


def _in_order(times: Mapping[int, int], count: int) -> list[int]:
    """Return times as a list, by the index of a call."""
    return [times.get(index, 0) for index in range(count)]


def _with_inside(own: Sequence[int], parents: Sequence[int]) -> array[int]:
    """Add to each call the times of the calls inside it, which come after it."""
    whole = array("q", own)
    for index in range(len(whole) - 1, -1, -1):
        if parents[index] >= 0:
            whole[parents[index]] += whole[index]
    return whole


def _counts(values: Values) -> dict[int, tuple[int, ...]]:
    looks: tuple[Mapping[int, NonFiniteCount], ...] = (
        values.outputs,
        values.gradients_in,
        values.gradients_out,
    )
    counts = {}
    for index in set().union(*looks):
        of_call = [each.get(index, FINE) for each in looks]
        counts[index] = tuple(chain.from_iterable(of_call))
    return counts
