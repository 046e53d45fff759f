"""Weights that a pass unpacks: the number of elements in the integers that a model stores.

A quantized model keeps a weight as integers of 8 to 32 bits, each of which holds one or several
elements, and unpacks them before a product, or in its kernel. So values that a pass computes from
parameters and buffers alone are followed up to the products that take them. The largest integers
behind an operand, or the part of them that was read, hold as many elements as the operand has.
Smaller ones hold scales and zero points.
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
from torchscan.trace.events import OpCall
from torchscan.trace.records import ParameterRecord
from torchscan.trace.trace import Trace

#: types that weights are packed in; indices, which are not weights, have 64 bits
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})
#: operators that pick by an index: from a code book an element for each, else rows of a table
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
    for index, slot in enumerate(slots):
        layer = modules.get(slot.owner)
        if isinstance(layer, QuantizedLinear) and slot.name == "weight":
            known[index] = _holding(known[index], layer.in_features * layer.out_features)
    return tuple(known)


def with_unpacked(trace: Trace, slots: Sequence[Slot], modules: Mapping[str, nn.Module]) -> Trace:
    """Return the trace with packed weights as parameters, with the number of elements they hold.

    Weights that cannot be read are reported.

    Args:
        trace: the trace, whose parameters are in the order of the slots.
        slots: the places of parameters and buffers.
        modules: the modules by path; of torchscan's own packed layers, the numbers are known.
    """
    packed = {}
    for index, slot in enumerate(slots):
        if slot.tensor.dtype not in _INTEGERS or slot.tensor.numel() <= 1:
            continue
        record = trace.parameters[index]
        if record.storages and not isinstance(modules.get(slot.owner), QuantizedLinear):
            packed[record.storages[0]] = record.identity
    if not packed:
        return trace
    flow = _Flow(trace, packed)
    flow.follow()
    return _counted(trace, slots, flow)


#: by the position of a packed parameter or buffer, the tensors that were read: it, or views of it
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
            index: {} for index, each in enumerate(trace.storages) if each.kind in kept
        }
        #: by parameter the number of weight elements in an element of it
        self._in_each: dict[int, Fraction] = {}
        #: parameters and buffers that went into an unknown operator
        self.lost: set[int] = set()

    @property
    def held(self) -> dict[int, int]:
        """Number of elements in each packed parameter, also in parts that this pass did not use."""
        parameters = self._trace.parameters
        return {
            index: round(parameters[index].numel * each) for index, each in self._in_each.items()
        }

    def follow(self) -> None:
        """Follow all calls of the forward pass, in their order."""
        for op in self._trace.ops:
            if op.phase == "forward" and not op.signature.is_view:
                self._step(op)

    def _step(self, op: OpCall) -> None:
        outputs = [self._trace.tensors[output].storage for output in op.outputs]
        is_constant = all(self._trace.tensors[each].storage in self._sources for each in _read(op))
        if not is_constant:
            self._consume(op)
            for storage in outputs:
                self._sources.pop(storage, None)
            return

        values = self._values(op)
        for storage in outputs:
            self._sources[storage] = _joined([self._sources.get(storage, {}), values])

    def _sources_of(self, tensor: int) -> _Sources:
        storage = self._trace.tensors[tensor].storage
        own = self._packed.get(storage)
        if own is None:
            return self._sources.get(storage, {})
        return {own: frozenset({tensor})}

    def _values(self, op: OpCall) -> _Sources:
        """Return the packed weights whose values are in a result, not only positions by them."""
        operands = _read(op)
        if op.signature.operator in _LOOKUPS:
            tensors = self._trace.tensors
            size = op.signature.outputs[0].numel if op.signature.outputs else 0
            operands = [
                each
                for place, each in enumerate(operands)
                if place == 0 or tensors[each].spec.numel == size
            ]
        return _joined(map(self._sources_of, operands))

    def _consume(self, op: OpCall) -> None:
        """Note the weights in an operator that also takes values that depend on the inputs."""
        operands = [each for each in dict.fromkeys(op.inputs) if self._sources_of(each)]
        if not operands:
            return
        found = compute_cost(op.signature)
        if found.state == "unknown":
            self.lost.update(*map(self._sources_of, operands))
        elif found.cost.macs:
            tensors = self._trace.tensors
            largest = max(operands, key=lambda each: tensors[each].spec.stored_bytes)
            self._multiplied(op, largest, found.cost.macs)

    def _multiplied(self, op: OpCall, operand: int, macs: int) -> None:
        """Note the elements of an operand, or of a packed one those that a row multiplies."""
        tensors, parameters = self._trace.tensors, self._trace.parameters
        storage, spec = tensors[operand].storage, tensors[operand].spec
        if spec.dtype in _INTEGERS:
            out = op.signature.outputs[0]
            elements = macs * out.shape[-1] // max(out.numel, 1)
        else:
            elements = self._trace.storages[storage].size // spec.dtype.itemsize

        sources = self._sources_of(operand)
        weight = max(sources, key=lambda index: parameters[index].stored_bytes)
        in_views = sum(tensors[each].spec.stored_numel for each in sources[weight])
        # Two views may be two parts, or twice the complete weight.
        num_read = min(parameters[weight].numel, in_views)
        in_each = Fraction(elements, max(num_read, 1))
        self._in_each[weight] = max(in_each, self._in_each.get(weight, in_each))


def _joined(sources: Iterable[_Sources]) -> _Sources:
    joined: dict[int, frozenset[int]] = {}
    for each in sources:
        for index, views in each.items():
            joined[index] = joined.get(index, frozenset()) | views
    return joined


def _read(op: OpCall) -> list[int]:
    """Return the inputs whose values matter, and not only shape and type."""
    ignored = ONLY_SPEC_MATTERS.get(op.signature.op)
    return [each for place, each in enumerate(op.inputs) if place != ignored]


def _counted(trace: Trace, slots: Sequence[Slot], flow: _Flow) -> Trace:
    held = flow.held
    parameters = tuple(_holding(each, held.get(each.identity)) for each in trace.parameters)
    notes = []
    unread = []
    for index, slot in enumerate(slots):
        record = trace.parameters[index]
        if index not in flow.packed or index in held or record.identity != index:
            continue
        # A product must have taken parameters. A buffer is as a rule a position or a mask, unless
        # a kernel takes it.
        if slot.is_buffer and index not in flow.lost:
            continue
        notes.append(Note.of("packing-unknown", path=slot.path, elements=record.numel))
        unread.append(Note.of("packed-numbers", path=slot.path))
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
