"""One step while it goes on, and what is known of it when it is over."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from torchscan.inspecting.call_memory import CallMemory
from torchscan.inspecting.call_shapes import CallShapes, sizes_of
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.exchanges import Clock, Exchange, Group, find_exchanges
from torchscan.inspecting.facts import COUNTED, InspectedCall, StepFacts, facts_of
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.graph_hooks import GraphHooks
from torchscan.inspecting.keyword_inputs import KeywordInputs
from torchscan.inspecting.nodes import NodeWatch
from torchscan.inspecting.step_labels import StepCounts, StepLabel
from torchscan.inspecting.step_timeline import Timeline, timeline_of
from torchscan.inspecting.timing import without_collections
from torchscan.measured import Key
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.module_calls import FAILED, Call, Given
from torchscan.torch_versions import next_node

_MEMORY = tuple(each.name for each in fields(CallMemory))
#: passes of a step in which only gradients of inputs are computed
_MAX_PASSES = 256


class Step:
    """Watches one step, from the model's call to its next one."""

    def __init__(self, nodes: NodeWatch, label: StepLabel, keywords: KeywordInputs) -> None:
        self._nodes = nodes
        self._keywords = keywords
        #: indices of calls whose keyword arguments were known at their start
        self._with_keywords: set[int] = set()
        self._hooks = GraphHooks(nodes)
        self.label = label
        self.times = nodes.times
        self._values = nodes.values
        self._memory = nodes.memory
        self._checks = nodes.checks
        self._shapes = CallShapes(nodes.memory)
        self._calls: tuple[Call, ...] = ()
        self._known_memory: dict[int, CallMemory] = {}
        #: the first node that a checkpoint can make when it runs a call again, by index
        self._run_again: dict[int, int] = {}
        #: of each pass that has a graph, what lives as long as the nodes of its results
        self._graphs: list[list[weakref.ref[object]]] = []
        #: True once gradients of the model's parameters are computed, or an optimizer has stepped
        self._has_trained = False
        #: passes that have ended, and those of them that an exception ended
        self._num_passes = self._num_failed = 0
        #: what modules made in the pass that goes on: not everything need be in its result
        self._output_nodes: list[Node] = []
        #: the number of the first node that the forward pass can make, and when it began
        self._oldest = self._began = 0

    @property
    def trains(self) -> bool:
        """True if gradients of the model's parameters were computed in it."""
        return self._has_trained

    @property
    def has_failed(self) -> bool:
        """True if exceptions ended all of its passes: it is neither a step nor an evaluation."""
        return 0 < self._num_passes == self._num_failed

    def count_in(self, counts: StepCounts) -> StepCounts:
        """Return the counts with this step added, unless exceptions ended all of its passes."""
        if self.has_failed:
            return counts
        return counts.add(trains=self._has_trained, is_evaluation=self.label.is_evaluation)

    @property
    def has_begun_backward(self) -> bool:
        """True if a node of the backward pass has run."""
        return self.times.has_begun_backward

    @property
    def can_train(self) -> bool:
        """True if gradients may still come, or a backward pass has used the graph of its passes.

        A program that only reads results may hold each of them until the next pass has returned:
        the results before that are gone.
        """
        if self.times.has_begun_backward:
            return self._num_passes < _MAX_PASSES
        for graph in self._graphs:
            if all(each() is None for each in graph):
                return False
        return bool(self._graphs)

    def is_known_finite(self, tensor: Tensor) -> bool:
        """Return whether a tensor was checked, and nothing was written to it since."""
        return self._values.is_known_finite(tensor)

    def note_training(self) -> None:
        """Note that gradients of the model's parameters are computed."""
        self._has_trained = True

    def note_pass_end(self, *, has_failed: bool) -> None:
        """Note that a forward pass has ended, perhaps by an exception."""
        self._num_passes += 1
        self._num_failed += has_failed

    def begin_pass(self) -> None:
        """Note that a forward pass begins."""
        self._oldest = next_node()
        self._began = self.times.begin()

    def note_start(self, call: Call, args: tuple[Any, ...]) -> None:
        """A call starts."""
        start = self.times.begin_looking(max(self._nodes.entered, self._began))
        try:
            if call.outer is None and call.parent is not None:
                self._run_again[call.index] = next_node()
            tensors = tensors_in(args)
            kwargs = self._keywords.find_at_start(call)
            if kwargs:
                self._with_keywords.add(call.index)
                tensors = [*tensors, *tensors_in(kwargs)]
            sizes = sizes_of(tensors)
            self._memory.note_start(call, sizes, self._values.let_go)
            self._values.note_start(call, (args, dict(kwargs)), tensors)
        finally:  # a listener may raise
            self.times.end_looking(start)
            self.times.note_start(call)

    def note_end(self, call: Call, given: Given, result: object) -> None:
        """A call has ended."""
        start = self.times.begin_looking(self._nodes.entered)
        try:
            self.times.note_end(call)
            args, kwargs = given
            inputs, outputs = tensors_in(args), tensors_in(result)
            missed: Sequence[Tensor] = ()
            if kwargs:
                given_by_name = tensors_in(kwargs)
                inputs = [*inputs, *given_by_name]
                if call.index not in self._with_keywords:
                    missed = given_by_name
            if given is not FAILED:
                self._keywords.note_end(call, kwargs)
            self._shapes.note_end(call, inputs, outputs)
            self._memory.note_end(call, inputs, outputs)
            for each in outputs:
                node = each.grad_fn
                if node is not None:
                    self._output_nodes.append(node)
            if call.outer is None:
                self._watch_graph(call, outputs)
            self._values.note_end(call, given, outputs, missed)
            self._checks.note_end(call, outputs)
        finally:
            self.times.end_looking(start)

    def _watch_graph(self, call: Call, result: Sequence[Tensor]) -> None:
        """The model has returned, or what a checkpoint has run again."""
        oldest = self._oldest if call.parent is None else self._run_again[call.index]
        with without_collections():
            alive = self._hooks.add(result, self._output_nodes, oldest)
            self._output_nodes.clear()
        if call.parent is None and alive:
            self._graphs.append(alive)

    def close(
        self,
        calls: Iterable[Call],
        modules: Iterable[tuple[str, nn.Module]],
        parameters: Mapping[str, Tensor],
        *,
        is_followed: bool,
    ) -> None:
        """The step is over, and another begins or not."""
        self.times.close(is_followed=is_followed)
        self._calls = tuple(calls)
        self._known_memory = self._memory.close_step()
        self._values.note_update(modules, is_followed=is_followed)
        self._checks.note_update(parameters)

    # -- afterwards --------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """True if reading the device's results no longer waits."""
        device = self.times.device
        return (device is None or device.is_over) and self._values.is_known

    def settle(self) -> None:
        """Wait for the device, and tell what was found."""
        if self.times.device is not None:
            self.times.device.read()
        self._values.settle()

    def facts(self, number: int, before: StepFacts | None) -> StepFacts:
        """Return the facts of the step. Values that equal those of the step before are shared."""
        if before is not None and self._has_calls(before.keys):
            keys = before.keys
        else:
            keys = tuple([(call.path, call.invocation) for call in self._calls])
        shapes = self._shapes.of_inputs(0)
        return facts_of(number, self._calls, keys, shapes, self.times, self._values)

    def _has_calls(self, keys: Sequence[Key]) -> bool:
        """Return whether the step has these calls. No tuples are made to find out."""
        if len(keys) != len(self._calls):
            return False
        for (path, invocation), call in zip(keys, self._calls, strict=True):
            if path != call.path or invocation != call.invocation:
                return False
        return True

    def exchanges(
        self, alike: Sequence[StepFacts], timeline: Timeline, group: Group
    ) -> tuple[Exchange, ...]:
        """Return the collectives of this step and of similar ones."""
        return find_exchanges(
            alike, timeline, Clock(Clock.ahead_now(), self.times.looked), self.times.zero, group
        )

    def timeline(self) -> Timeline:
        """When what ran in it, on the host."""
        return timeline_of(self._calls, self.times)

    @property
    def nonfinite(self) -> NonFinite | None:
        """The first producer of what is not finite, if anything is."""
        return None if self._values.first is None else self.label.put_on(self._values.first)

    @property
    def checked(self) -> Sequence[CheckResult]:
        """Results of the user's checks."""
        return [self.label.put_on(each) for each in self._checks.reports]

    def calls(self) -> tuple[InspectedCall, ...]:
        """Its calls, without their times."""
        return tuple(map(self._described, self._calls))

    def _described(self, call: Call) -> InspectedCall:
        index = call.index
        shapes = self._shapes.of_call(index, with_gradients=self.times.has_begun_backward)
        counts: dict[str, Any] = dict.fromkeys(COUNTED, 0)
        known_memory = self._known_memory[index]
        memory = {name: getattr(known_memory, name) for name in _MEMORY}
        parent = None if call.parent is None else call.parent.index
        return InspectedCall(
            **counts,
            **memory,
            **shapes._asdict(),
            path=call.path,
            type_name=type_name_of(call.module),
            invocation=call.invocation,
            depth=call.depth,
            parent=parent,
            is_again=index in self.times.again,
        )
