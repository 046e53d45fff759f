"""Data that a call finds in the L2 cache because they were used recently."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from torchscan.analyses.roofline.constants import CACHE_KEPT
from torchscan.trace.trace import Trace

#: a complete block of memory, or the part of it that one tensor is
Piece = tuple[int, int | None]


def piece_of(trace: Trace, tensor: int) -> Piece:
    """Return the complete block if the tensor fills it, else this tensor's part.

    A part is assumed to share nothing with other tensors.
    """
    record = trace.tensors[tensor]
    is_whole = record.spec.stored_bytes >= trace.storages[record.storage].size
    return record.storage, None if is_whole else tensor


def bytes_in_cache(
    trace: Trace, size: int | None, read: Sequence[int], appends: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Return for each call the bytes read from the cache, and those written that never leave it.

    Data stay until as many other bytes have been used as the cache has room for. Written bytes must
    go to memory unless they are freed before that. This models the second of two equal passes, so
    that a model that fits into the cache is found there.

    Args:
        trace: the trace.
        size: bytes of the cache, or None.
        read: the bytes that each call reads, which may be less than its operands are.
        appends: the calls that write at the end of a block, whose other bytes they do not touch.
    """
    if not size:
        return [(0, 0)] * len(trace.ops)
    walk = _Walk(trace, int(size * CACHE_KEPT), read, appends)
    for index in range(len(trace.ops)):
        walk.use(index)
    return [walk.step(index) for index in range(len(trace.ops))]


class _Walk:
    """Counts the bytes used, and remembers when each piece of memory was last used."""

    def __init__(
        self, trace: Trace, room: int, read: Sequence[int], appends: Collection[int]
    ) -> None:
        self._trace = trace
        self._room = room
        self._read = read
        self._appends = appends
        self._pieces = [piece_of(trace, tensor) for tensor in range(len(trace.tensors))]
        distinct = {id(record.spec): record.spec for record in trace.tensors}
        stored = {number: spec.stored_bytes for number, spec in distinct.items()}
        #: bytes of each tensor, and those that each call uses of each
        self._stored = [stored[id(record.spec)] for record in trace.tensors]
        self._sizes = [self._sizes_of(index) for index in range(len(trace.ops))]
        #: number of bytes that had been used after this many calls
        self._used_until = [0, *accumulate([sum(sizes.values()) for sizes in self._sizes])]
        self._used = 0
        self._last: dict[Piece, int] = {}

    def step(self, index: int) -> tuple[int, int]:
        """Return the bytes that a call finds in the cache, and those that it leaves there for good.

        Results of the second kind are freed before they would go to memory.
        """
        sizes = self._sizes[index]
        if not sizes:
            return 0, 0
        op = self._trace.ops[index]
        read = 0
        for tensor in dict.fromkeys(op.inputs):
            size = sizes[tensor]
            storage, part = self._pieces[tensor]
            last = max(self._last.get((storage, None), -1), self._last.get((storage, part), -1))
            if last >= 0 and self._used - last + size <= self._room:
                read += size

        written = 0
        used_before = self._used_until[index]
        for tensor in dict.fromkeys(op.outputs):
            died = self._trace.storages[self._trace.tensors[tensor].storage].died
            if died is not None and self._used_until[died] - used_before <= self._room:
                written += sizes[tensor]
        self.use(index)
        return read, written

    def use(self, index: int) -> None:
        """Mark the tensors of a call as used most recently."""
        for tensor, size in self._sizes[index].items():
            self._used += size
            self._last[self._pieces[tensor]] = self._used

    def _sizes_of(self, index: int) -> dict[int, int]:
        """Return the bytes that a call uses of each tensor.

        Of a tensor that it reads, they are not more than it reads in total.
        """
        op = self._trace.ops[index]
        if op.signature.is_view or index in self._appends:
            return {}
        read = self._read[index]
        sizes = {tensor: min(self._stored[tensor], read) for tensor in op.inputs}
        sizes.update({tensor: self._stored[tensor] for tensor in op.outputs})
        return sizes
