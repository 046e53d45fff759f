"""Weights that a pass unpacks: how many numbers the integers hold that a model stores them in.

A model that was quantised keeps a weight as integers of 8 to 32 bits, each of which holds one or several numbers, and makes the
weight of them before it is multiplied, or has a kernel that does. So what a pass computes from parameters and buffers alone is
followed up to the products that take it: the largest integers that went into an operand, or the part of them that was read,
hold as many numbers as it has. The smaller ones hold scales and zero points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import nn

from torchscan.notes import Note
from torchscan.ops import compute_cost
from torchscan.recording.bookkeeping.inventory import Slot
from torchscan.recording.execution.reads import ONLY_SPEC_MATTERS
from torchscan.recording.training.quantized_linear import QuantizedLinear
from torchscan.torch_versions import aten
from torchscan.trace.events import OpCall, ParameterRecord
from torchscan.trace.trace import Trace

#: what weights are packed in; indices, which are no weights, are of 64 bits
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})
#: operators that pick by an index: of a code book a number for each, which is a value; of a table a row, which is none
_LOOKUPS = frozenset(
    map(str, (aten.index, aten.embedding, aten.index_select, aten.gather, aten.take))
)


def with_quantized(
    records: Sequence[ParameterRecord], slots: Sequence[Slot], modules: Mapping[str, nn.Module]
) -> tuple[ParameterRecord, ...]:
    """Return records with the numbers of elements in torchscan's own packed layers.

    They are known, also if FSDP shards and all-gathers the weights before a product reads them.

    Args:
        records: the records of parameters and buffers, in the order of the slots.
        slots: the places of parameters and buffers.
        modules: the modules by path.
    """
    known = list(records)
    for at, slot in enumerate(slots):
        layer = modules.get(slot.owner)
        if isinstance(layer, QuantizedLinear) and slot.name == "weight":
            known[at] = _holding(known[at], layer.in_features * layer.out_features)
    return tuple(known)


def with_unpacked(trace: Trace, slots: Sequence[Slot], modules: Mapping[str, nn.Module]) -> Trace:
    """Return the trace with packed weights as parameters, with the number of elements they hold.

    Weights that cannot be read are reported.

    Args:
        trace: the trace, whose parameters are in the order of the slots.
        slots: the places of parameters and buffers.
        modules: the modules by path; of torchscan's own packed layers, the numbers are known.
    """
    packed = {
        trace.parameters[at].storages[0]: trace.parameters[at].identity
        for at, slot in enumerate(slots)
        if slot.tensor.dtype in _INTEGERS
        and slot.tensor.numel() > 1
        and trace.parameters[at].storages
        and not isinstance(modules.get(slot.owner), QuantizedLinear)
    }
    if not packed:
        return trace
    flow = _Flow(trace, packed)
    flow.follow()
    return _counted(trace, slots, flow)


#: by the position of a packed parameter or buffer, the tensors as which it was read: it, or views of it
_Sources = Mapping[int, frozenset[int]]


class _Flow:
    """The values computed from parameters and buffers alone, and the packed ones behind them."""

    def __init__(self, trace: Trace, packed: Mapping[int, int]) -> None:
        """``packed``: by storage the position of a parameter or buffer."""
        self._trace = trace
        self._packed = packed
        #: positions of packed parameters and buffers
        self.packed = frozenset(packed.values())
        kept = ("parameter", "buffer", "constant")
        self._sources: dict[int, _Sources] = {
            at: {} for at, each in enumerate(trace.storages) if each.kind in kept
        }
        #: by parameter how many numbers are in an element of it
        self._in_each: dict[int, Fraction] = {}
        #: those that went into an operator of which nobody knows what it does
        self.lost: set[int] = set()

    @property
    def held(self) -> dict[int, int]:
        """Number of elements in each packed parameter, also in parts that this pass did not use."""
        return {
            at: round(self._trace.parameters[at].numel * each) for at, each in self._in_each.items()
        }

    def follow(self) -> None:
        """All calls of the forward pass, in their order."""
        for op in self._trace.ops:
            if op.phase == "forward" and not op.signature.is_view:
                self._step(op)

    def _step(self, op: OpCall) -> None:
        is_constant = all(self._trace.tensors[each].storage in self._sources for each in _read(op))
        if not is_constant:
            self._consume(op)
        made = self._values(op) if is_constant else None
        for output in op.outputs:
            storage = self._trace.tensors[output].storage
            if made is None:
                self._sources.pop(storage, None)
            else:
                self._sources[storage] = _joined([self._sources.get(storage, {}), made])

    def _sources_of(self, tensor: int) -> _Sources:
        storage = self._trace.tensors[tensor].storage
        own = self._packed.get(storage)
        return self._sources.get(storage, {}) if own is None else {own: frozenset({tensor})}

    def _values(self, op: OpCall) -> _Sources:
        """The packed weights of which it has the values, not only the places."""
        is_lookup = op.signature.operator in _LOOKUPS
        size = op.signature.outputs[0].numel if op.signature.outputs else 0
        taken = (
            each
            for place, each in enumerate(_read(op))
            if not (is_lookup and place) or self._trace.tensors[each].spec.numel == size
        )
        return _joined(map(self._sources_of, taken))

    def _consume(self, op: OpCall) -> None:
        """An operator that also takes what depends on the inputs."""
        operands = [each for each in dict.fromkeys(op.inputs) if self._sources_of(each)]
        if not operands:
            return
        found = compute_cost(op.signature)
        if found.state == "unknown":
            self.lost.update(*map(self._sources_of, operands))
        elif found.cost.macs:
            self._multiplied(op, max(operands, key=self._bytes_of), found.cost.macs)

    def _multiplied(self, op: OpCall, operand: int, macs: int) -> None:
        """Note the numbers of an operand: its elements, or of a packed one those that a row multiplies."""
        storage, spec = self._trace.tensors[operand].storage, self._trace.tensors[operand].spec
        out = op.signature.outputs[0]
        whole = self._trace.storages[storage].size // spec.dtype.itemsize
        numbers = (
            whole if spec.dtype not in _INTEGERS else macs * out.shape[-1] // max(out.numel, 1)
        )
        sources = self._sources_of(operand)
        weight = max(sources, key=lambda at: self._trace.parameters[at].stored_bytes)
        in_each = Fraction(numbers, max(self._elements(weight, sources[weight]), 1))
        self._in_each[weight] = max(in_each, self._in_each.get(weight, in_each))

    def _elements(self, weight: int, views: frozenset[int]) -> int:
        """Return the number of elements that were read, at most all of them.

        Two views may be two parts, or twice the complete weight.
        """
        return min(
            self._trace.parameters[weight].numel,
            sum(self._trace.tensors[each].spec.stored_numel for each in views),
        )

    def _bytes_of(self, tensor: int) -> int:
        return self._trace.tensors[tensor].spec.stored_bytes


def _joined(sources: Iterable[_Sources]) -> _Sources:
    found: dict[int, frozenset[int]] = {}
    for each in sources:
        for at, views in each.items():
            found[at] = found.get(at, frozenset()) | views
    return found


def _read(op: OpCall) -> list[int]:
    """The inputs of which more matters than shape and type."""
    ignored = ONLY_SPEC_MATTERS.get(op.signature.op)
    return [each for place, each in enumerate(op.inputs) if place != ignored]


def _counted(trace: Trace, slots: Sequence[Slot], flow: _Flow) -> Trace:
    held = flow.held
    parameters = tuple(_holding(each, held.get(each.identity)) for each in trace.parameters)
    unknown = [
        at
        for at, slot in enumerate(slots)
        if at in flow.packed
        and at not in held
        and _may_hold_more(trace.parameters[at], at, slot, flow)
    ]
    notes = [
        Note.of("packing-unknown", path=slots[at].path, elements=trace.parameters[at].numel)
        for at in unknown
    ]
    unread = [Note.of("packed-numbers", path=slots[at].path) for at in unknown]
    before = trace.provenance
    provenance = replace(
        before,
        assumptions=(*before.assumptions, *notes),
        unreadable_weights=(*before.unreadable_weights, *unread),
    )
    return replace(trace, parameters=parameters, provenance=provenance)


def _holding(record: ParameterRecord, numbers: int | None) -> ParameterRecord:
    """Return the record of a parameter with so many elements, of which this rank has its share."""
    if numbers is None:
        return record
    local = round(Fraction(numbers * record.local_numel, max(record.numel, 1)))
    return record._replace(numel=numbers, local_numel=local, is_buffer=False)


def _may_hold_more(record: ParameterRecord, at: int, slot: Slot, flow: _Flow) -> bool:
    """A parameter of integers that no product has taken; a buffer is as a rule a place or a mask, unless a kernel takes it."""
    return record.identity == at and (
        at in flow.lost or (not slot.is_buffer and slot.tensor.dtype in _INTEGERS)
    )
