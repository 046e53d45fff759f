"""Equal calls, of which a compiler runs the first.

torch's compiler removes common subexpressions from the graph of the forward and the backward pass.
Results that are reduced to much less than what they were computed from are kept for the backward
pass; others are computed again there, because they would take memory. Conversions to a wider type
take place where their result is read, also in the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from torchscan.analyses.roofline.fused_traffic import kept_storages
from torchscan.analyses.roofline.fusible_calls import is_fusible
from torchscan.ops import OpCost
from torchscan.ops.communication import COLLECTIVES
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: a reduction whose result is this much smaller than its operands is not computed again
_MUCH_SMALLER = 4
#: views that a compiler's graph does not have
_IDENTITIES = frozenset({"aten.detach", "aten.alias"})


class MergedCalls(NamedTuple):
    """A trace whose calls read the results of the first of several equal calls."""

    trace: Trace
    #: indices of the calls that do not run: equal ones after the first, and what only these need
    left_out: frozenset[int]


def merge_equal_calls(trace: Trace, costs: Sequence[OpCost]) -> MergedCalls:
    """Return the trace with equal calls merged. No call is removed, so that indices stay."""
    merging = _Merging(trace, costs)
    ops = tuple(merging.take(index, op) for index, op in enumerate(trace.ops))
    merged = replace(merging.share_storages(), ops=ops)
    unread = _unread_calls(trace, ops, merging.left_out)
    return MergedCalls(merged, frozenset(merging.left_out | unread))


class _Merging:
    """Goes through the calls and numbers their results: equal values have equal numbers."""

    def __init__(self, trace: Trace, costs: Sequence[OpCost]) -> None:
        self._trace = trace
        self._costs = costs
        self.left_out: set[int] = set()
        #: by a tensor the number of its value, if another tensor had the value before
        self._value: dict[int, int] = {}
        #: by a tensor the one that is read in its place
        self._same: dict[int, int] = {}
        #: by a tensor of a wider type the one that was converted
        self._converted: dict[int, int] = {}
        #: by a storage the number of writes to it
        self._versions: Counter[int] = Counter()
        self._values_by_call: dict[Hashable, tuple[int, ...]] = {}
        #: by the phase and a value the tensor that has it
        self._tensors: dict[tuple[str, int], int] = {}
        #: values that are computed from those that a reduction has left alone
        self._reduced: set[int] = set()

    def take(self, index: int, op: OpCall) -> OpCall:
        """Return the call with the operands that it reads."""
        values = tuple(self._value.get(each, each) for each in op.inputs)
        inputs = [self._same.get(each, each) for each in op.inputs]
        if is_fusible(op, self._costs[index]) and not op.signature.is_view:
            inputs = [self._converted.get(each, each) for each in inputs]
        op = op._replace(inputs=tuple(inputs))
        if op.signature.op._schema.is_mutable:
            written = (self._trace.tensors[each].storage for each in (*op.inputs, *op.outputs))
            self._versions.update(set(written))
        elif op.signature.operator in _IDENTITIES:
            self._value[op.outputs[0]] = values[0]
            self._same[op.outputs[0]] = op.inputs[0]
        elif _has_one_value(op):
            self._merge(index, op, values)
        return op

    def _merge(self, index: int, op: OpCall, values: tuple[int, ...]) -> None:
        """Number the results of a call, and leave it out if tensors have these values already."""
        if op.signature.operator == "aten._to_copy" and not op.signature.is_view:
            (read,), (made,) = op.signature.inputs, op.signature.outputs
            if made.dtype.itemsize > read.dtype.itemsize:
                self._converted[op.outputs[0]] = op.inputs[0]
        storages = (self._trace.tensors[each].storage for each in op.inputs)
        key = id(op.signature), values, tuple(self._versions[each] for each in storages)
        results = self._values_by_call.setdefault(key, op.outputs)
        self._value.update(zip(op.outputs, results, strict=True))
        self._note_reduced(op, values, results)
        found = [self._find(op, each) for each in results]
        known = [each for each in found if each is not None]
        if len(known) < len(results):
            keys = [(op.phase, each) for each in results]
            self._tensors.update(zip(keys, op.outputs, strict=True))
            return
        self._same.update(zip(op.outputs, known, strict=True))
        if not op.signature.is_view:
            self.left_out.add(index)

    def share_storages(self) -> Trace:
        """Return the trace, in which equal results share memory."""
        tensors, storages = self._trace.tensors, list(self._trace.storages)
        storage_of: dict[int, int] = {}
        for own, other in self._same.items():
            storage_of[tensors[own].storage] = tensors[other].storage
        for own, other in storage_of.items():
            first, second = storages[own].died, storages[other].died
            died = None if first is None or second is None else max(first, second)
            storages[other] = storages[other]._replace(died=died)
        shared = tuple(
            each._replace(storage=storage_of.get(each.storage, each.storage)) for each in tensors
        )
        return replace(self._trace, tensors=shared, storages=tuple(storages))

    def _note_reduced(self, op: OpCall, values: Iterable[int], results: Iterable[int]) -> None:
        """Note the results of a reduction, and of calls on such results alone."""
        tensors = self._trace.tensors
        read = sum(tensors[each].spec.stored_bytes for each in op.inputs)
        made = sum(tensors[each].spec.stored_bytes for each in op.outputs)
        is_reduction = made * _MUCH_SMALLER < read and not op.signature.is_view
        if is_reduction or all(each in self._reduced for each in values):
            self._reduced.update(results)

    def _find(self, op: OpCall, value: int) -> int | None:
        """Return the tensor that has this value already, or None if it is computed again."""
        own = self._tensors.get((op.phase, value))
        if own is not None or op.phase != "backward" or op.origin == "checkpoint":
            return own
        if value in self._reduced or op.signature.is_view:
            return self._tensors.get(("forward", value))
        return None


def _has_one_value(op: OpCall) -> bool:
    """Return whether equal operands give equal results: not of random numbers and collectives."""
    if torch.Tag.nondeterministic_seeded in op.signature.op.tags:
        return False
    return bool(op.inputs and op.outputs) and op.signature.operator not in COLLECTIVES


def _unread_calls(trace: Trace, ops: tuple[OpCall, ...], left_out: Collection[int]) -> set[int]:
    """Return the calls whose results no call reads that runs."""
    kept = kept_storages(trace)
    was_read = {tensor for op in trace.ops for tensor in op.inputs}
    read: set[int] = set()
    unread: set[int] = set()
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        if index in left_out:
            continue
        made = set(op.outputs)
        is_kept = any(trace.tensors[each].storage in kept for each in made)
        # a checkpoint computes its results again, of which the backward pass reads a part
        may_be_unread = made <= was_read or op.origin == "checkpoint"
        is_unread = may_be_unread and not made & read
        if is_kept or not is_unread or not _has_one_value(op):
            read.update(op.inputs)
        elif not op.signature.is_view:
            unread.add(index)
    return unread
