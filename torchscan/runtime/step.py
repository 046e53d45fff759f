"""One step while it goes on, and what is known of it when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import FAILED, Call, CallTree, Given
from torchscan.runtime.checks import Checked, StepChecks
from torchscan.runtime.findings import NonFinite
from torchscan.runtime.finiteness import FINE
from torchscan.runtime.memory import CallMemory, MemoryWatch, Shapes
from torchscan.runtime.nodes import NodeWatch
from torchscan.runtime.timeline import Timeline, timeline_of
from torchscan.runtime.timing import LEAVES, StepTimes
from torchscan.runtime.values import Values
from torchscan.torch_versions import next_node

_LOOKS = ("forward", "grad_in", "grad_out")
#: the fields of a call that are counts of one step
COUNTED = tuple(f"{name}_{kind}" for name in _LOOKS for kind in ("nan", "inf"))
_MEMORY = tuple(each.name for each in fields(CallMemory))


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCall(CallMemory):
    """Which call of which module it was, and on what."""

    path: str
    type_name: str
    #: 0 for the first call of this module in a step, 1 for the second, …
    invocation: int
    depth: int
    #: index of the call it is in; None: it is the model's
    parent: int | None
    input_shapes: Shapes
    output_shapes: Shapes
    #: of the gradients of what it was given, and of what it returned
    grad_in_shapes: Shapes
    grad_out_shapes: Shapes
    #: whether a checkpoint ran it again in the backward pass
    is_again: bool
    #: values that are not finite: in its result; in the gradients of what it was given, and of its result
    forward_nan: int
    forward_inf: int
    grad_in_nan: int
    grad_in_inf: int
    grad_out_nan: int
    grad_out_inf: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts(InspectedCall):
    """A call as it was in one step. Times are in nanoseconds."""

    #: from the start of the step's first call
    started: int
    forward: int
    #: of the nodes that it made itself, not those of modules inside
    backward: int
    #: on the device; None: nothing runs on one
    device_forward: int | None
    device_backward: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One step: its calls in the order in which they started. Times are in nanoseconds."""

    calls: tuple[CallFacts, ...]
    #: from the start of the first node to the end of the last one
    backward_span: int
    #: storing gradients
    leaves: int
    #: what optimizers took
    optimizer: int
    #: from the start of this step to that of the next, and what of that came after everything else; None: there is no next one
    period: int | None
    between: int | None
    #: the first producer of what is not finite, if anything is
    nonfinite: NonFinite | None
    #: what checks of the user's said
    checked: tuple[Checked, ...]


class Step:
    """Watches one step, from the model's call to its next one."""

    def __init__(self, tree: CallTree, times: StepTimes, values: Values, memory: MemoryWatch, checks: StepChecks) -> None:
        self._times = times
        self._values = values
        self._memory = memory
        self._checks = checks
        self._nodes = NodeWatch(tree, times, values, memory, checks)
        #: of what was given and returned; of those that a gradient is computed for
        self._shapes: dict[int, tuple[Shapes, Shapes, Shapes, Shapes]] = {}
        self._calls: tuple[Call, ...] = ()
        self._known_memory: dict[int, CallMemory] = {}
        #: the first node that a checkpoint can make when it runs a call again, by index
        self._run_again: dict[int, int] = {}
        self._has_graph = False
        #: the number of the first node that the forward pass can make
        self._oldest = 0

    @property
    def is_complete(self) -> bool:
        """Whether a forward pass that begins now is one of another step: no gradients are to come in this one, or have come."""
        return self._times.has_begun_backward or not self._has_graph

    @property
    def looking(self) -> int:
        """Nanoseconds that were spent on looking."""
        return self._times.looking

    def begin_pass(self) -> None:
        """A forward pass begins."""
        self._oldest = next_node()
        self._times.begin()

    def note_optimizer(self, *, is_start: bool) -> None:
        """An optimizer starts its step, or has ended it."""
        self._times.note_optimizer(is_start=is_start)

    def note_start(self, call: Call, args: tuple[Any, ...]) -> None:
        """A call starts."""
        with self._times.standing_still():
            if call.outer is None and call.parent is not None:
                self._run_again[call.index] = next_node()
            tensors = tensors_in(args)
            self._memory.note_start(call, _shapes_of(tensors))
            self._values.note_start(call, args, tensors)
        self._times.note_start(call)

    def note_end(self, call: Call, given: Given, result: object) -> None:
        """A call has ended."""
        self._times.note_end(call)
        with self._times.standing_still():
            args, kwargs = given
            inputs, outputs = [*tensors_in(args), *(tensors_in(kwargs) if kwargs else ())], tensors_in(result)
            self._shapes[call.index] = (*_both_shapes(inputs), *_both_shapes(outputs))
            self._memory.note_end(call, inputs, outputs)
            if call.outer is None:
                self._watch_graph(call, outputs)
            self._values.note_end(call, given, outputs, has_failed=given is FAILED)
            self._checks.note_end(call, outputs)

    def _watch_graph(self, call: Call, result: Sequence[Tensor]) -> None:
        """The model has returned, or what a checkpoint has run again."""
        if call.parent is None:
            self._has_graph |= self._nodes.watch(result, self._oldest)
            self._nodes.watch_loss(result)
        else:
            self._nodes.watch(result, self._run_again[call.index])

    def close(
        self,
        calls: Iterable[Call],
        modules: Iterable[tuple[str, nn.Module]],
        parameters: Mapping[str, Tensor],
        *,
        is_followed: bool,
    ) -> None:
        """The step is over, and another begins or not."""
        self._times.close(is_followed=is_followed)
        self._calls = tuple(calls)
        self._nodes.forget_leaves()
        self._known_memory = self._memory.close_step()
        self._values.note_update(modules, is_followed=is_followed)
        self._checks.note_update(parameters)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether the device has got so far that nobody need wait for it."""
        return self._times.is_over and self._values.is_known

    def settle(self) -> None:
        """Wait for the device, and tell what was found."""
        self._times.read()
        self._values.settle()

    def facts(self) -> StepFacts:
        """What is known of it."""
        return StepFacts(
            calls=tuple(map(self._facts_of, self._calls)),
            backward_span=self._times.backward_span,
            leaves=self._times.backward.get(LEAVES, 0),
            optimizer=self._times.optimizer,
            period=self._times.period,
            between=self._times.between,
            nonfinite=self._values.first,
            checked=tuple(self._checks.said),
        )

    def timeline(self) -> Timeline:
        """When what ran in it, on the host."""
        return timeline_of(self._calls, self._times)

    def _facts_of(self, call: Call) -> CallFacts:
        times, index = self._times, call.index
        inputs, grad_in, outputs, grad_out = self._shapes.get(index, ((), (), (), ()))
        has_gradients = times.has_begun_backward
        start = times.started[index]
        values = (self._values.outputs, self._values.gradients_in, self._values.gradients_out)
        counts = [number for each in values for number in each.get(index, FINE)]
        return CallFacts(
            **dict(zip(COUNTED, counts, strict=True)),
            **{name: getattr(self._known_memory[index], name) for name in _MEMORY},
            path=call.path,
            type_name=type_name_of(call.module),
            invocation=call.invocation,
            depth=call.depth,
            parent=None if call.parent is None else call.parent.index,
            input_shapes=inputs,
            output_shapes=outputs,
            grad_in_shapes=grad_in if has_gradients else (),
            grad_out_shapes=grad_out if has_gradients else (),
            is_again=index in times.again,
            started=start - times.started[0],
            forward=times.ended.get(index, start) - start,
            backward=times.backward.get(index, 0),
            device_forward=times.device_forward.get(index) if times.is_on_device else None,
            device_backward=times.device_backward.get(index, 0) if times.is_on_device else None,
        )


def _both_shapes(tensors: Sequence[Tensor]) -> tuple[Shapes, Shapes]:
    """Of all tensors, and of those that require a gradient."""
    shapes = _shapes_of(tensors)
    return shapes, tuple(shape for shape, each in zip(shapes, tensors, strict=True) if each.requires_grad)


def _shapes_of(tensors: Sequence[Tensor]) -> Shapes:
    return tuple([tuple(tensor.shape) for tensor in tensors])
