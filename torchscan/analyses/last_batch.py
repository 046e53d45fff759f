"""The last batch of a trace in which several batches add up their gradients.

An earlier batch is recorded so that its gradients exist, at the places where they come about. What
it computes belongs to another batch of the loop, so costs and times are those of the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torchscan.trace.events import ModuleCall, OpCall, StorageRecord, TensorRecord
from torchscan.trace.trace import Trace


def last_batch(trace: Trace) -> Trace:
    """Return the trace from the last batch on; memory that is alive then stays."""
    start = _first_op_of_last_batch(trace)
    return _Cut(trace, start).trace() if start else trace


class _Cut:
    """A trace without what came before an operator call."""

    def __init__(self, trace: Trace, start: int) -> None:
        self._trace = trace
        self._start = start
        self._root = min(call.index for call in trace.modules if call.parent is None and (call.end is None or call.end > start))
        used = {trace.tensors[index].storage for op in trace.ops[self._start :] for index in op.inputs}
        storages = [number for number, each in enumerate(trace.storages) if number in used or not self._is_over(each)]
        self._new_storage = _positions(storages)
        self._new_tensor = _positions(index for index, each in enumerate(trace.tensors) if each.storage in self._new_storage)

    def trace(self) -> Trace:
        """Return the trace from that call on."""
        trace = self._trace
        ops = tuple(map(self._op, trace.ops[self._start :]))
        own: list[list[int]] = [[] for _ in trace.modules[self._root :]]
        for index, op in enumerate(ops):
            own[op.module_call].append(index)
        earlier = Counter(call.path for call in trace.modules[: self._root])
        modules = [
            self._module(call, indices, earlier[call.path])
            for call, indices in zip(trace.modules[self._root :], own, strict=True)
        ]
        return replace(
            trace,
            modules=tuple(modules),
            ops=ops,
            tensors=tuple(self._tensor(trace.tensors[index]) for index in self._new_tensor),
            storages=tuple(self._storage(trace.storages[number]) for number in self._new_storage),
            parameters=tuple(
                each._replace(storages=tuple(self._new_storage[number] for number in each.storages))
                for each in trace.parameters
            ),
        )

    def _is_over(self, storage: StorageRecord) -> bool:
        return storage.died is not None and storage.died <= self._start

    def _tensors(self, indices: Iterable[int]) -> tuple[int, ...]:
        return tuple([self._new_tensor[each] for each in indices])

    def _op(self, op: OpCall) -> OpCall:
        """Return a call with new indices; one outside of any module, such as a loss, belongs to the model's."""
        return op._replace(
            inputs=self._tensors(op.inputs),
            outputs=self._tensors(op.outputs),
            module_call=max(0, op.module_call - self._root),
        )

    def _module(self, call: ModuleCall, ops: Iterable[int], earlier_calls: int) -> ModuleCall:
        return call._replace(
            index=call.index - self._root,
            call=call.call - earlier_calls,
            parent=None if call.parent is None else call.parent - self._root,
            children=tuple([each - self._root for each in call.children]),
            inputs=self._tensors(call.inputs),
            outputs=self._tensors(call.outputs),
            ops=tuple(ops),
            end=None if call.end is None else call.end - self._start,
        )

    def _tensor(self, record: TensorRecord) -> TensorRecord:
        return record._replace(
            storage=self._new_storage[record.storage],
            producer=self._since_start(record.producer),
        )

    def _storage(self, record: StorageRecord) -> StorageRecord:
        died = None if record.died is None else record.died - self._start
        return record._replace(born=self._since_start(record.born), died=died)

    def _since_start(self, op: int | None) -> int | None:
        """Return the new index of a call; None for what an earlier batch produced."""
        return None if op is None or op < self._start else op - self._start


def _first_op_of_last_batch(trace: Trace) -> int:
    """Return the index at which a forward pass follows something else for the last time."""
    phases = [op.phase for op in trace.ops]
    indices = range(1, len(phases))
    starts = [index for index in indices if phases[index - 1] != "forward" == phases[index]]
    return max(starts, default=0)


def _positions(kept: Iterable[int]) -> dict[int, int]:
    return {before: now for now, before in enumerate(kept)}
