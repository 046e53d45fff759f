"""Watches real steps of a model: which calls there were in each, and what they took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchscan.errors import InputError
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.bookkeeping.inventory import modules_of, type_name_of
from torchscan.recording.bookkeeping.tensors import own_copy
from torchscan.recording.call_tree import FAILED, Call, CallTree, Given, with_autograd_threads
from torchscan.recording.undo import is_recording
from torchscan.runtime.findings import NonFinite
from torchscan.runtime.finiteness import FINE
from torchscan.runtime.timing import LEAVES, NodeWatch, StepTimes
from torchscan.runtime.values import Memory, StepValues
from torchscan.torch_versions import next_node

_COUNTS = tuple((f"{name}_nan", f"{name}_inf") for name in ("forward", "grad_in", "grad_out"))
#: the fields of a call that are counts of one step
COUNTED = tuple(name for names in _COUNTS for name in names)
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedCall:
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

    forward: int
    #: of the nodes that it made itself, not those of modules inside
    backward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One step: its calls in the order in which they started. Times are in nanoseconds."""

    calls: tuple[CallFacts, ...]
    #: from the start of the first node to the end of the last one
    backward_span: int
    #: storing gradients
    leaves: int
    #: the first producer of what is not finite, if anything is
    nonfinite: NonFinite | None


class Inspector:
    """Follows the calls of one model while it is started. It puts nothing on the model."""

    def __init__(self, model: nn.Module, listener: Callable[[NonFinite], None]) -> None:
        #: with the modules, whose identity others could have after them
        self._paths = {id(module): (path, module) for path, module in modules_of(model)}
        self._tree = CallTree(self._path_of, with_autograd_threads())
        self._steps: list[StepFacts] = []
        self._listener = listener
        self._memory = Memory()
        #: what the model was called with first, without data
        self.example: Given | None = None
        self._is_started = False
        self._begin()

    def start(self) -> None:
        """Follow what the model does from now on."""
        if self._is_started:
            raise InputError("this inspection has been started: finish it first")
        self._is_started = True
        self._tree.start(self._note_end, at_start=self._note_start, at_root=self._begin_step)

    def finish(self) -> tuple[StepFacts, ...]:
        """Follow it no longer; what was seen, step by step."""
        self._tree.stop()
        self._is_started = False
        self._close_step()
        self._paths.clear()
        return tuple(self._steps)

    def _path_of(self, module: nn.Module) -> str | None:
        if is_recording():  # a pass of torchscan's own, of the same model
            return None
        known = self._paths.get(id(module))
        return None if known is None else known[0]

    def _begin(self) -> None:
        self._tree.reset()
        self._times = StepTimes()
        self._shapes: dict[int, tuple[Shapes, Shapes]] = {}
        self._values = StepValues(len(self._steps), self._tree, self._memory, self._listener)
        self._nodes = NodeWatch(self._tree, self._times, self._values)
        #: the first node that a checkpoint can make when it runs a call again, by index
        self._run_again: dict[int, int] = {}
        self._has_graph = False
        #: the number of the first node that the pass can make
        self._oldest = 0

    def _begin_step(self) -> None:
        """A forward pass begins. It is in the step of the one before if that one's gradients are still to come."""
        if self._times.has_begun_backward or not self._has_graph:
            self._close_step()
        self._oldest = next_node()

    def _close_step(self) -> None:
        self._nodes.forget_leaves()
        try:
            if self._tree.calls:
                self._values.note_update(self._paths.values())
        finally:  # whoever is told may raise
            if self._tree.calls:
                self._steps.append(self._facts())
            self._begin()

    def _note_start(self, call: Call, arguments: tuple[Any, ...]) -> None:
        with self._times.standing_still():
            if call.outer is None and call.parent is not None:
                self._run_again[call.index] = next_node()
            self._values.note_start(call, arguments)
        self._times.note_start(call)

    def _note_end(self, call: Call, given: Given, result: object) -> None:
        self._times.note_end(call)
        with self._times.standing_still():
            self._shapes[call.index] = _shapes_of(given), _shapes_of(result)
            if call.outer is None and call.parent is None:
                self._note_result(given, result)
            elif call.outer is None:
                self._nodes.watch(result, self._run_again[call.index])
            self._values.note_end(call, given, result, has_failed=given is FAILED)

    def _note_result(self, given: Given, result: object) -> None:
        """The model has returned."""
        if self.example is None:
            self.example = copy_arguments(given, lambda tensor: own_copy(tensor, on_meta=True))
        self._has_graph |= self._nodes.watch(result, self._oldest)
        self._nodes.watch_loss(result)

    def _facts(self) -> StepFacts:
        times = self._times
        calls = tuple(map(self._call_facts, self._tree.calls))
        return StepFacts(
            calls=calls, backward_span=times.backward_span, leaves=times.backward.get(LEAVES, 0), nonfinite=self._values.first
        )

    def _call_facts(self, call: Call) -> CallFacts:
        inputs, outputs = self._shapes.get(call.index, ((), ()))
        start = self._times.started[call.index]
        values = self._values
        looks = [each.get(call.index, FINE) for each in (values.outputs, values.gradients_in, values.gradients_out)]
        return CallFacts(
            path=call.path,
            type_name=type_name_of(call.module),
            invocation=call.invocation,
            depth=call.depth,
            parent=None if call.parent is None else call.parent.index,
            input_shapes=inputs,
            output_shapes=outputs,
            forward=self._times.ended.get(call.index, start) - start,
            backward=self._times.backward.get(call.index, 0),
            is_again=call.index in self._times.again,
            **{
                name: number
                for names, look in zip(_COUNTS, looks, strict=True)
                for name, number in zip(names, look, strict=True)
            },
        )


def _shapes_of(value: object) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors_in(value))
