"""Live memory at each moment of a recorded pass, by kind, and the layers behind the peak.

A moment is an operator call: the memory that is alive when it returns, including its operands. A
block is alive from the call that created it until its last tensor is freed, as recorded. Views are
not counted again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from torchscan.analyses.memory_blocks import KINDS, Block, MemoryKind
from torchscan.analyses.memory_compiled import compiled_blocks
from torchscan.once import once
from torchscan.trace.events import Phase
from torchscan.trace.records import StorageKind, StorageRecord
from torchscan.trace.trace import Trace

_STANDING: Mapping[StorageKind, MemoryKind] = {
    "parameter": "parameters",
    "gathered": "gathered",
    "buffer": "buffers",
    "constant": "buffers",
    "input": "inputs",
    "gradient": "gradients",
    "optimizer state": "optimizer",
    "cache": "cache",
}


class Moment(NamedTuple):
    """The live memory when an operator call returns."""

    operator: str
    #: path of the module that called the operator
    layer: str
    phase: Phase
    bytes_by_kind: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes alive."""
        return sum(self.bytes_by_kind)

    @property
    def by_kind(self) -> dict[MemoryKind, int]:
        """Bytes alive of each kind."""
        return dict(zip(KINDS, self.bytes_by_kind, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemory:
    """The memory of one module, including everything inside it."""

    path: str
    type_name: str
    depth: int
    #: bytes that the layer's forward pass produced and keeps for the backward pass or, without one,
    #: after its call
    activation_bytes: int
    #: largest number of live bytes, of any kind and layer, while one of the layer's operators runs
    peak_bytes: int


class MemoryTimeline:
    """The memory of a recorded pass over time.

    If a tensor was used twice, autograd sums its gradients in place where nothing else holds one of
    them. It doesn't while operators are being recorded, so a trace has a new block there. With
    ``in_place_sums`` it takes the old one's place. With ``compiled``, blocks are those of the
    compiled model, or of its ``layers`` if each is compiled by itself.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        in_place_sums: bool = True,
        compiled: bool = False,
        layers: Collection[str] = (),
    ) -> None:
        self._trace = trace
        self._layers = layers
        #: True if the blocks are those of the compiled model
        self.compiled = compiled
        self._in_place_sums = in_place_sums

    @once
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of memory with their lifetimes, in the order of ``trace.storages``."""
        after_end = len(self._trace.ops) + 1
        ends = [after_end] * len(self._trace.storages)
        for number, storage in enumerate(self._trace.storages):
            if storage.died is not None:
                ends[number] = storage.died
        if self._in_place_sums:
            _end_where_summed(self._trace, ends)
        pairs = zip(self._trace.storages, ends, strict=True)
        blocks = [
            Block(each.size, each.born or 0, end, self._kind(each, end)) for each, end in pairs
        ]
        if not self.compiled:
            return tuple(blocks)
        compiled = compiled_blocks(self._trace, blocks, self._layers)
        changed = zip(self._trace.storages, compiled, strict=True)
        return tuple([block._replace(kind=self._kind(each, block.end)) for each, block in changed])

    @once
    def moments(self) -> tuple[Moment, ...]:
        """The live memory at each operator call."""
        num_moments = len(self._trace.ops)
        changes_by_kind = {kind: [0] * (num_moments + 2) for kind in KINDS}
        for block in self.blocks:
            changes = changes_by_kind[block.kind]
            changes[block.first] += block.size
            changes[block.end] -= block.size
        columns = [accumulate(each[:num_moments]) for each in changes_by_kind.values()]
        paths = [call.path for call in self._trace.modules]
        rows = zip(self._trace.ops, zip(*columns, strict=True), strict=True)
        moments = [
            Moment(op.signature.operator, paths[op.module_call], op.phase, sizes)
            for op, sizes in rows
        ]
        return tuple(moments)

    @once
    def totals(self) -> tuple[int, ...]:
        """Bytes alive at each operator call."""
        return tuple([sum(moment.bytes_by_kind) for moment in self.moments])

    @once
    def layers(self) -> tuple[LayerMemory, ...]:
        """Every module that was called, in order of first call."""
        kept, peaks = self._kept_by_call(), self._peak_by_call()
        by_path: dict[str, LayerMemory] = {}
        for call in self._trace.modules:
            activation_bytes, peak_bytes = kept[call.index], peaks[call.index]
            known = by_path.get(call.path)
            if known is not None:
                activation_bytes += known.activation_bytes
                peak_bytes = max(peak_bytes, known.peak_bytes)
            by_path[call.path] = LayerMemory(
                path=call.path,
                type_name=call.type_name,
                depth=call.depth,
                activation_bytes=activation_bytes,
                peak_bytes=peak_bytes,
            )
        return tuple(by_path.values())

    def _kind(self, storage: StorageRecord, end: int) -> MemoryKind:
        if storage.kind in _STANDING:
            return _STANDING[storage.kind]
        if storage.born is not None and self._is_kept(storage.born, end):
            return "activations"
        return "temporary"

    def _is_kept(self, born: int, end: int) -> bool:
        """Return whether a block outlives the calls around it.

        It may come from the forward pass or from its recomputation.
        """
        ops = self._trace.ops
        made_by, last_seen_by = ops[born], ops[min(end, len(ops)) - 1]
        if made_by.origin == "checkpoint":
            return last_seen_by.origin != "checkpoint"
        if not self._trace.provenance.backward:
            return end > self._ends_of_calls[made_by.module_call]
        return made_by.phase == "forward" != last_seen_by.phase

    @once
    def _ends_of_calls(self) -> list[int]:
        """The moment after the last operator of the forward pass, by module call."""
        ends = [0] * len(self._trace.modules)
        for call in reversed(self._trace.modules):
            own = [index + 1 for index in call.ops if self._trace.ops[index].phase == "forward"]
            of_children = [ends[child] for child in call.children]
            ends[call.index] = max(own + of_children, default=0)
        return ends

    def _kept_by_call(self) -> list[int]:
        """Return for each module call the bytes that its forward pass created and kept."""
        kept = [0] * len(self._trace.modules)
        for storage, block in zip(self._trace.storages, self.blocks, strict=True):
            if block.kind == "activations" and storage.born is not None:
                op = self._trace.ops[storage.born]
                call = op.module_call if op.origin != "checkpoint" else None
                while call is not None and block.end > self._ends_of_calls[call]:
                    kept[call] += block.size
                    call = self._trace.modules[call].parent
        return kept

    def _peak_by_call(self) -> list[int]:
        totals = self.totals
        peaks = [0] * len(self._trace.modules)
        for call in self._trace.modules:
            peaks[call.index] = max([totals[index] for index in call.ops], default=0)
        for call in reversed(self._trace.modules):
            if call.parent is not None:
                peaks[call.parent] = max(peaks[call.parent], peaks[call.index])
        return peaks


def _end_where_summed(trace: Trace, ends: list[int]) -> None:
    """End the block of one operand at the sum if autograd adds gradients in place."""
    for index, op in enumerate(trace.ops):
        if op.origin != "engine":
            continue
        for tensor in op.inputs:
            if _is_free_to_write(trace, tensor, index, ends):
                ends[trace.tensors[tensor].storage] = index
                break


def _is_free_to_write(trace: Trace, tensor: int, sum_: int, ends: Sequence[int]) -> bool:
    """Return whether autograd may overwrite a tensor.

    It may if the tensor is freed with the sum and is not a view of a larger block.
    """
    record = trace.tensors[tensor]
    result = trace.tensors[trace.ops[sum_].outputs[0]]
    is_whole = trace.storages[record.storage].size == result.spec.stored_bytes
    is_view = record.producer is not None and trace.ops[record.producer].signature.is_view
    return is_whole and not is_view and ends[record.storage] == sum_ + 1
