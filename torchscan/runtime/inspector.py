"""Watches real steps of a model: which calls there were in each, and what they took."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from torchscan.errors import InputError
from torchscan.recording.bookkeeping.containers import copy_arguments, tensors_in
from torchscan.recording.bookkeeping.inventory import modules_of, type_name_of
from torchscan.recording.bookkeeping.tensors import own_copy
from torchscan.recording.call_tree import Call, CallTree, Given, with_autograd_threads
from torchscan.runtime.timing import LEAVES, NodeWatch, StepTimes
from torchscan.torch_versions import next_node

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


class Inspector:
    """Follows the calls of one model while it is started. It puts nothing on the model."""

    def __init__(self, model: nn.Module) -> None:
        #: with the modules, whose identity others could have after them
        self._paths = {id(module): (path, module) for path, module in modules_of(model)}
        self._tree = CallTree(self._path_of, with_autograd_threads())
        self._steps: list[StepFacts] = []
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
        known = self._paths.get(id(module))
        return None if known is None else known[0]

    def _begin(self) -> None:
        self._tree.reset()
        self._times = StepTimes()
        self._shapes: dict[int, tuple[Shapes, Shapes]] = {}
        self._nodes = NodeWatch(self._tree, self._times)
        self._has_graph = False
        #: the number of the first node that the pass can make
        self._oldest = 0

    def _begin_step(self) -> None:
        """A forward pass begins. It is in the step of the one before if that one's gradients are still to come."""
        if self._times.has_begun_backward or not self._has_graph:
            self._close_step()
        self._oldest = next_node()

    def _close_step(self) -> None:
        if self._tree.calls:
            self._steps.append(self._facts())
        self._nodes.forget_leaves()
        self._begin()

    def _note_start(self, call: Call) -> None:
        self._times.note_start(call)

    def _note_end(self, call: Call, given: Given, result: object) -> None:
        self._times.note_end(call)
        self._shapes[call.index] = _shapes_of(given), _shapes_of(result)
        if call.outer is None and call.parent is None:
            if self.example is None:
                self.example = copy_arguments(given, lambda tensor: own_copy(tensor, on_meta=True))
            self._has_graph |= self._nodes.watch(result, self._oldest)

    def _facts(self) -> StepFacts:
        times = self._times
        calls = tuple(map(self._call_facts, self._tree.calls))
        return StepFacts(calls=calls, backward_span=times.backward_span, leaves=times.backward.get(LEAVES, 0))

    def _call_facts(self, call: Call) -> CallFacts:
        inputs, outputs = self._shapes.get(call.index, ((), ()))
        start = self._times.started[call.index]
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
        )


def _shapes_of(value: object) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors_in(value))
