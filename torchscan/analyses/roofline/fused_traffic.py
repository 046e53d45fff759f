"""Memory traffic of kernels that a compiler fuses."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from torchscan.analyses.roofline.cache import Piece, piece_of
from torchscan.analyses.roofline.fusible_calls import begins_kernel, is_fusible
from torchscan.ops import OpCost
from torchscan.trace.trace import Trace


def kernel_traffic(
    trace: Trace, costs: tuple[OpCost, ...], kernels: list[int | None]
) -> tuple[tuple[OpCost, ...], list[int]]:
    """Return costs with the bytes that fused kernels move, and the bytes that each hands over.

    A kernel reads nothing twice and nothing that it computed, and it writes only results that are
    needed outside, once. A product hands its result over to the pointwise kernel after it.
    """
    needed = _Needed(trace, kernels)
    known: dict[int, set[Piece]] = defaultdict(set)
    fused: list[OpCost] = []
    for index, (cost, kernel) in enumerate(zip(costs, kernels, strict=True)):
        if kernel is None:
            fused.append(cost)
        else:
            fused.append(_with_outside_traffic(trace, index, cost, known[kernel], needed))
    return tuple(fused), _find_handed_over(trace, costs, kernels, needed)


def _find_handed_over(
    trace: Trace, costs: tuple[OpCost, ...], kernels: list[int | None], needed: _Needed
) -> list[int]:
    """Return the bytes that go from a product to the pointwise kernel after it, for both calls."""
    handed = [0] * len(costs)
    for index, cost in enumerate(costs):
        if not cost.macs or kernels[index] is None:
            continue
        reader = needed.next_kernel(index)
        if reader is None or not is_fusible(trace.ops[reader], costs[reader]):
            continue
        if not begins_kernel(trace.ops[reader]):
            output = trace.tensors[trace.ops[index].outputs[0]]
            handed[index] = handed[reader] = output.spec.stored_bytes
    return handed


class _Needed:
    """The results that must be written: those that outlive the pass or that another kernel reads.

    Of several writes to one place in a kernel only the last counts. Results without a reader cost
    nothing.
    """

    def __init__(self, trace: Trace, kernels: Sequence[int | None]) -> None:
        self._trace = trace
        self._kernels = kernels
        self._kept = kept_storages(trace)
        self._last_write: dict[tuple[int | None, Piece], int] = {}
        #: storage -> all calls that read it
        self._readers: dict[int, list[int]] = defaultdict(list)
        for index, (op, kernel) in enumerate(zip(trace.ops, kernels, strict=True)):
            if kernel is None:
                continue
            for tensor in op.outputs:
                self._last_write[kernel, piece_of(trace, tensor)] = index
            for tensor in op.inputs:
                self._readers[trace.tensors[tensor].storage].append(index)

    def writes(self, index: int, tensor: int) -> bool:
        """Return whether a call writes this result to memory."""
        kernel = self._kernels[index]
        if self._last_write[kernel, piece_of(self._trace, tensor)] != index:
            return False
        storage = self._trace.tensors[tensor].storage
        if storage in self._kept:
            return True
        return any(self._kernels[each] != kernel for each in self._read_later(index, storage))

    def next_kernel(self, index: int) -> int | None:
        """Return the first call that reads the first result of this one.

        None if there is none, or if such calls are in several kernels or in that of this call.
        """
        outputs = self._trace.ops[index].outputs
        if not outputs:
            return None
        later = self._read_later(index, self._trace.tensors[outputs[0]].storage)
        kernels = {self._kernels[each] for each in later}
        if len(kernels) != 1 or self._kernels[index] in kernels:
            return None
        return later[0]

    def _read_later(self, index: int, storage: int) -> list[int]:
        readers = self._readers.get(storage, [])
        return readers[bisect.bisect_right(readers, index) :]


def _with_outside_traffic(
    trace: Trace, index: int, cost: OpCost, known: set[Piece], needed: _Needed
) -> OpCost:
    """Return the cost of a call's reads that are new to its kernel, and of its needed writes."""
    op = trace.ops[index]
    read = written = 0
    for tensor in dict.fromkeys(op.inputs):
        piece = piece_of(trace, tensor)
        storage, _ = piece
        if piece not in known and (storage, None) not in known:
            read += trace.tensors[tensor].spec.stored_bytes
            known.add(piece)
    if not op.outputs:  # it writes to its operands, as those for lists of tensors do
        written = cost.bytes_written
    for tensor in dict.fromkeys(op.outputs):
        if needed.writes(index, tensor):
            written += trace.tensors[tensor].spec.stored_bytes
        known.add(piece_of(trace, tensor))
    return replace(
        cost,
        bytes_read=min(read, cost.bytes_read),
        bytes_written=min(written, cost.bytes_written),
        avoidable_bytes_read=max(0, min(read, cost.bytes_read) - cost.min_bytes_read),
    )


def kept_storages(trace: Trace) -> frozenset[int]:
    """Return the memory that outlives the pass, or existed before."""
    kept = {trace.tensors[tensor].storage for tensor in trace.root.outputs}
    for number, record in enumerate(trace.storages):
        if record.died is None or record.born is None or record.kind != "intermediate":
            kept.add(number)
    return frozenset(kept)
