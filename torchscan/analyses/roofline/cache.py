"""Data that a call finds in the L2 cache because they were used recently."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from torchscan.analyses.roofline.constants import CACHE_KEPT
from torchscan.trace.trace import Trace

#: a block of memory as a whole, or the part of it that one tensor is
Piece = tuple[int, int | None]


def piece_of(trace: Trace, tensor: int) -> Piece:
    """The whole block if the tensor fills it; else this tensor's part, which is assumed to share nothing with other tensors."""
    record = trace.tensors[tensor]
    is_whole = record.spec.stored_bytes >= trace.storages[record.storage].size
    return record.storage, None if is_whole else tensor


def bytes_in_cache(
    trace: Trace, size: int | None, read: Sequence[int], appends: Collection[int] = ()
) -> list[tuple[int, int]]:
    """For each call, the bytes that it reads from the cache, and those that it writes and that never leave the cache.

    ``read``: how many bytes each call reads, which may be less than its operands are; ``appends``: the calls that write at the
    end of a block, whose other bytes they do not touch.

    Data stay until as many other bytes have been used as the cache has room for. What is written must go to memory unless it is
    freed before that. This models the second of two equal passes, so that a model that fits into the cache is found there.
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
        #: how many bytes had been used after this many calls
        self._used_until = [0, *accumulate([sum(sizes.values()) for sizes in self._sizes])]
        self._used = 0
        self._last: dict[Piece, int] = {}

    def step(self, index: int) -> tuple[int, int]:
        """The bytes that a call finds in the cache, and those that it leaves there for good."""
        sizes = self._sizes[index]
        if not sizes:
            return 0, 0
        op = self._trace.ops[index]
        read = sum(
            [
                sizes[tensor]
                for tensor in dict.fromkeys(op.inputs)
                if self._is_there(tensor, sizes[tensor])
            ]
        )
        written = sum(
            [
                sizes[tensor]
                for tensor in dict.fromkeys(op.outputs)
                if self._is_let_go(tensor, index)
            ]
        )
        self.use(index)
        return read, written

    def use(self, index: int) -> None:
        """Mark the tensors of a call as used most recently."""
        for tensor, size in self._sizes[index].items():
            self._used += size
            self._last[self._pieces[tensor]] = self._used

    def _sizes_of(self, index: int) -> dict[int, int]:
        """Bytes that a call uses of each tensor; of what it reads, no more than it reads in all."""
        op = self._trace.ops[index]
        if op.signature.is_view or index in self._appends:
            return {}
        read = self._read[index]
        return {tensor: min(self._stored[tensor], read) for tensor in op.inputs} | {
            tensor: self._stored[tensor] for tensor in op.outputs
        }

    def _is_there(self, tensor: int, size: int) -> bool:
        whole, piece = (self._pieces[tensor][0], None), self._pieces[tensor]
        last = max(self._last.get(whole, -1), self._last.get(piece, -1))
        return last >= 0 and self._used - last + size <= self._room

    def _is_let_go(self, tensor: int, index: int) -> bool:
        died = self._trace.storages[self._trace.tensors[tensor].storage].died
        return died is not None and self._used_until[died] - self._used_until[index] <= self._room
