"""What a call finds in the second-level cache, because it was used shortly before."""

from __future__ import annotations

from torchscan.analyses.roofline.constants import CACHE_KEPT
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace


def bytes_in_cache(trace: Trace, size: int | None) -> list[tuple[int, int]]:
    """For each call the bytes that it reads from the cache, and those that it writes and that stay there.

    What was used stays until as many bytes were used since as there is room for. Of two equal passes this is the second, so
    that a model that fits into the cache is found there.
    """
    if not size:
        return [(0, 0)] * len(trace.ops)
    walk = _Walk(trace, int(size * CACHE_KEPT))
    for op in trace.ops:
        walk.step(op)
    return [walk.step(op) for op in trace.ops]


class _Walk:
    """Counts the bytes that are used, and remembers for each block of memory when it was used last."""

    def __init__(self, trace: Trace, room: int) -> None:
        self._tensors = trace.tensors
        self._room = room
        self._used = 0
        self._last: dict[int, int] = {}

    def step(self, op: OpCall) -> tuple[int, int]:
        if op.signature.is_view:
            return 0, 0
        read = sum(self._touch(tensor) for tensor in dict.fromkeys(op.inputs))
        written = sum(self._touch(tensor, is_new=True) for tensor in dict.fromkeys(op.outputs))
        return read, written

    def _touch(self, tensor: int, *, is_new: bool = False) -> int:
        """The bytes of a tensor, if they are in the cache; what is written is if there is room for it."""
        record = self._tensors[tensor]
        size = record.spec.stored_bytes
        last = self._last.get(record.storage)
        since = 0 if is_new else self._used - last if last is not None else self._room
        self._used += size
        self._last[record.storage] = self._used
        return size if since + size <= self._room else 0
