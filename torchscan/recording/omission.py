"""A trace without some of its calls, such as those of a branch that is not taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from torchscan.notes import Note
from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.records import StorageRecord, TensorRecord
from torchscan.trace.trace import Trace

T = TypeVar("T")


def without_calls(trace: Trace, ops: Collection[int], modules: Collection[int]) -> Trace:
    """Return the trace without these operator calls and module calls, and what only they produced.

    If another call reads a tensor that one of them produced, all calls stay and a note says so: a
    branch may change a buffer in place.
    """
    made = {index for index, each in enumerate(trace.tensors) if each.producer in ops}
    kept_calls: list[ModuleCall | OpCall] = []
    kept_calls += _except(trace.ops, ops)
    kept_calls += _except(trace.modules, modules)
    is_read = any(not made.isdisjoint((*call.inputs, *call.outputs)) for call in kept_calls)
    if not is_read:
        return _Omission(trace, ops, modules, made).apply()

    provenance = trace.provenance
    others = [note for note in provenance.assumptions if note.code != "costliest-branch"]
    assumptions = (*others, Note.of("both-branches"))
    return replace(trace, provenance=replace(provenance, assumptions=assumptions))


class _Omission:
    """The new numbers of the calls, tensors and storages that stay."""

    def __init__(
        self, trace: Trace, ops: Collection[int], modules: Collection[int], tensors: Collection[int]
    ) -> None:
        self._trace = trace
        self._ops, self._modules, self._tensors = ops, modules, tensors
        kept = {tensor.storage for tensor in _except(trace.tensors, tensors)}
        made = {trace.tensors[index].storage for index in tensors}
        self._storages = made - kept
        self._new_op = _new_numbers(len(trace.ops), ops)
        self._new_module = _new_numbers(len(trace.modules), modules)
        self._new_tensor = _new_numbers(len(trace.tensors), tensors)
        self._new_storage = _new_numbers(len(trace.storages), self._storages)

    def apply(self) -> Trace:
        """Return the trace with what stays."""
        trace = self._trace
        parameters = []
        for parameter in trace.parameters:
            storages = [self._new_storage[index] for index in parameter.storages]
            parameters.append(parameter._replace(storages=tuple(storages)))
        return replace(
            trace,
            ops=self._renumber_ops(),
            modules=self._renumber_modules(),
            tensors=self._renumber_tensors(),
            storages=self._renumber_storages(),
            parameters=tuple(parameters),
        )

    def _renumber_ops(self) -> tuple[OpCall, ...]:
        kept = []
        for op in _except(self._trace.ops, self._ops):
            inputs = _renumber(op.inputs, self._new_tensor)
            outputs = _renumber(op.outputs, self._new_tensor)
            module = self._new_module[op.module_call]
            kept.append(op._replace(inputs=inputs, outputs=outputs, module_call=module))
        return tuple(kept)

    def _renumber_modules(self) -> tuple[ModuleCall, ...]:
        kept = []
        num_calls: Counter[str] = Counter()
        for call in _except(self._trace.modules, self._modules):
            children = [child for child in call.children if child not in self._modules]
            ops = [op for op in call.ops if op not in self._ops]
            renumbered = call._replace(
                index=self._new_module[call.index],
                call=num_calls[call.path],
                parent=_renumber_one(call.parent, self._new_module),
                children=_renumber(children, self._new_module),
                inputs=_renumber(call.inputs, self._new_tensor),
                outputs=_renumber(call.outputs, self._new_tensor),
                ops=_renumber(ops, self._new_op),
                end=_renumber_one(call.end, self._new_op),
            )
            num_calls[call.path] += 1
            kept.append(renumbered)
        return tuple(kept)

    def _renumber_tensors(self) -> tuple[TensorRecord, ...]:
        kept = []
        for tensor in _except(self._trace.tensors, self._tensors):
            producer = _renumber_one(tensor.producer, self._new_op)
            storage = self._new_storage[tensor.storage]
            kept.append(tensor._replace(storage=storage, producer=producer))
        return tuple(kept)

    def _renumber_storages(self) -> tuple[StorageRecord, ...]:
        kept = []
        for storage in _except(self._trace.storages, self._storages):
            born = _renumber_one(storage.born, self._new_op)
            died = _renumber_one(storage.died, self._new_op)
            kept.append(storage._replace(born=born, died=died))
        return tuple(kept)


def _except(entries: Sequence[T], left_out: Collection[int]) -> list[T]:
    """Return the entries whose index is not left out."""
    return [entry for index, entry in enumerate(entries) if index not in left_out]


def _renumber(numbers: Sequence[int], new_numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(new_numbers[number] for number in numbers)


def _renumber_one(number: int | None, new_numbers: Sequence[int]) -> int | None:
    return None if number is None else new_numbers[number]


def _new_numbers(count: int, left_out: Collection[int]) -> list[int]:
    """Return how many stay before each of ``count`` entries, and before their end."""
    stays = [index not in left_out for index in range(count)]
    return list(accumulate(stays, initial=0))
