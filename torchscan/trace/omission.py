"""A trace without some of its calls, such as those of a branch that is not taken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate

from torchscan.trace.events import ModuleCall, OpCall, StorageRecord, TensorRecord
from torchscan.trace.trace import Trace


def without_calls(trace: Trace, ops: Collection[int], modules: Collection[int]) -> Trace:
    """Return the trace without these operator calls and module calls, and what only they made.

    The trace is returned as it is if another call reads a tensor that one of them made.
    """
    made = {index for index, each in enumerate(trace.tensors) if each.producer in ops}
    if _are_read(trace, made, ops, modules):
        return trace
    return _Omission(trace, frozenset(ops), frozenset(modules), made).apply()


def _are_read(
    trace: Trace, tensors: Collection[int], ops: Collection[int], modules: Collection[int]
) -> bool:
    """Return whether a call that stays has one of these tensors."""
    calls: list[ModuleCall | OpCall] = []
    calls += [call for index, call in enumerate(trace.ops) if index not in ops]
    calls += [call for call in trace.modules if call.index not in modules]
    return any(index in tensors for call in calls for index in (*call.inputs, *call.outputs))


class _Omission:
    """The new numbers of the calls, tensors and storages that stay."""

    def __init__(
        self, trace: Trace, ops: Collection[int], modules: Collection[int], tensors: Collection[int]
    ) -> None:
        self._trace = trace
        self._ops, self._modules, self._tensors = ops, modules, tensors
        kept = {each.storage for index, each in enumerate(trace.tensors) if index not in tensors}
        made = {trace.tensors[index].storage for index in tensors}
        self._storages = made - kept
        self._new_op = _new_numbers(len(trace.ops), ops)
        self._new_module = _new_numbers(len(trace.modules), modules)
        self._new_tensor = _new_numbers(len(trace.tensors), tensors)
        self._new_storage = _new_numbers(len(trace.storages), self._storages)

    def apply(self) -> Trace:
        """Return the trace with what stays."""
        trace = self._trace
        storages = enumerate(trace.storages)
        tensors = enumerate(trace.tensors)
        parameters = [
            each._replace(storages=tuple(self._new_storage[index] for index in each.storages))
            for each in trace.parameters
        ]
        return replace(
            trace,
            ops=tuple(self._op(op) for i, op in enumerate(trace.ops) if i not in self._ops),
            modules=tuple(
                self._module(call) for call in trace.modules if call.index not in self._modules
            ),
            tensors=tuple(self._tensor(each) for i, each in tensors if i not in self._tensors),
            storages=tuple(self._storage(each) for i, each in storages if i not in self._storages),
            parameters=tuple(parameters),
        )

    def _op(self, op: OpCall) -> OpCall:
        return op._replace(
            inputs=self._renumber(op.inputs),
            outputs=self._renumber(op.outputs),
            module_call=self._new_module[op.module_call],
        )

    def _module(self, call: ModuleCall) -> ModuleCall:
        parent = None if call.parent is None else self._new_module[call.parent]
        children = [self._new_module[each] for each in call.children if each not in self._modules]
        return call._replace(
            index=self._new_module[call.index],
            parent=parent,
            children=tuple(children),
            inputs=self._renumber(call.inputs),
            outputs=self._renumber(call.outputs),
            ops=tuple(self._new_op[each] for each in call.ops if each not in self._ops),
            end=None if call.end is None else self._new_op[call.end],
        )

    def _tensor(self, tensor: TensorRecord) -> TensorRecord:
        producer = None if tensor.producer is None else self._new_op[tensor.producer]
        return tensor._replace(storage=self._new_storage[tensor.storage], producer=producer)

    def _storage(self, storage: StorageRecord) -> StorageRecord:
        return storage._replace(
            born=None if storage.born is None else self._new_op[storage.born],
            died=None if storage.died is None else self._new_op[storage.died],
        )

    def _renumber(self, tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._new_tensor[index] for index in tensors)


def _new_numbers(count: int, left_out: Collection[int]) -> list[int]:
    """Return how many stay before each of ``count`` entries, and before their end."""
    stays = [index not in left_out for index in range(count)]
    return list(accumulate(stays, initial=0))
