"""The last batch of a trace in which several batches add up their gradients.

An earlier batch is recorded so that its gradients exist, at the places where they come about. What
it computes belongs to another batch of the loop, so costs and times are those of the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.trace import Trace


def last_batch(trace: Trace) -> Trace:
    """Return the trace from the last batch on; memory that is alive then stays."""
    phases = [op.phase for op in trace.ops]
    start = 0
    for index in range(1, len(phases)):
        if phases[index - 1] != "forward" and phases[index] == "forward":
            start = index
    return _Tail(trace, start).to_trace() if start else trace


class _Tail:
    """The part of a trace from an operator call on, under new indices."""

    def __init__(self, trace: Trace, start: int) -> None:
        self._trace = trace
        self._start = start
        models = [call for call in trace.modules if call.parent is None]
        # A call that runs no operator, because the model returns a parameter, begins and ends with
        # the part.
        self._root = min(call.index for call in models if call.end is None or call.end >= start)
        self._new_storage = self._number_storages()
        self._new_tensor: dict[int, int] = {}
        for index, tensor in enumerate(trace.tensors):
            if tensor.storage in self._new_storage:
                self._new_tensor[index] = len(self._new_tensor)

    def to_trace(self) -> Trace:
        """Return the part as a trace."""
        trace = self._trace
        ops = []
        for op in trace.ops[self._start :]:
            inputs, outputs = self._move_indices(op.inputs), self._move_indices(op.outputs)
            # what belongs to no module, such as a loss, belongs to the model's call
            module_call = max(0, op.module_call - self._root)
            ops.append(op._replace(inputs=inputs, outputs=outputs, module_call=module_call))
        modules = tuple(self._move_modules(ops))
        storages = []
        for number in self._new_storage:
            old = trace.storages[number]
            died = None if old.died is None else old.died - self._start
            storages.append(old._replace(born=self._since_start(old.born), died=died))
        tensors = []
        for index in self._new_tensor:
            tensor = trace.tensors[index]
            storage = self._new_storage[tensor.storage]
            producer = self._since_start(tensor.producer)
            tensors.append(tensor._replace(storage=storage, producer=producer))
        parameters = []
        for record in trace.parameters:
            numbers = tuple([self._new_storage[number] for number in record.storages])
            parameters.append(record._replace(storages=numbers))
        return replace(
            trace,
            modules=modules,
            ops=tuple(ops),
            tensors=tuple(tensors),
            storages=tuple(storages),
            parameters=tuple(parameters),
        )

    def _number_storages(self) -> dict[int, int]:
        """Return the new numbers of storages that are used, or alive when the part begins."""
        used: set[int] = set()
        for op in self._trace.ops[self._start :]:
            used.update(self._trace.tensors[index].storage for index in op.inputs)
        numbers: dict[int, int] = {}
        for number, storage in enumerate(self._trace.storages):
            is_over = storage.died is not None and storage.died <= self._start
            if number in used or not is_over:
                numbers[number] = len(numbers)
        return numbers

    def _move_modules(self, ops: Sequence[OpCall]) -> Iterator[ModuleCall]:
        """Yield the modules' calls, with the new indices of their operator calls."""
        before, kept = self._trace.modules[: self._root], self._trace.modules[self._root :]
        num_earlier = Counter(call.path for call in before)
        own: list[list[int]] = [[] for _ in kept]
        for index, op in enumerate(ops):
            own[op.module_call].append(index)
        for call, indices in zip(kept, own, strict=True):
            moved = self._move_module(call)
            yield moved._replace(call=call.call - num_earlier[call.path], ops=tuple(indices))

    def _move_module(self, call: ModuleCall) -> ModuleCall:
        root = self._root
        parent = None if call.parent is None else call.parent - root
        end = None if call.end is None else call.end - self._start
        children = tuple([each - root for each in call.children])
        moved = call._replace(index=call.index - root, parent=parent, children=children, end=end)
        inputs, outputs = self._move_indices(call.inputs), self._move_indices(call.outputs)
        return moved._replace(inputs=inputs, outputs=outputs)

    def _move_indices(self, indices: Iterable[int]) -> tuple[int, ...]:
        return tuple([self._new_tensor[each] for each in indices])

    def _since_start(self, op: int | None) -> int | None:
        """Return the new index of a call, or None for what an earlier batch produced."""
        return None if op is None or op < self._start else op - self._start
