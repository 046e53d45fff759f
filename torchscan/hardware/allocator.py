"""A replay of torch's caching allocator for CUDA: the memory that it reserves for allocations.

A request is rounded up to 512 bytes. Up to 1 MiB it comes from a segment of 2 MiB, below 10 MiB
from a segment of 20 MiB, above that from a separate segment, rounded up to 2 MiB. The smallest free
block that is large enough is used, and split if the rest is worth keeping; free neighbors are
merged. Each stream has separate blocks: memory that one stream frees does not serve another. When
the device is full, segments that are completely free are released first, those of all streams.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

_MIB = 2**20
ROUNDING = 512
SMALL_REQUEST = _MIB
SMALL_SEGMENT = 2 * _MIB
LARGE_REQUEST = 10 * _MIB
LARGE_SEGMENT = 20 * _MIB
SEGMENT_ROUNDING = 2 * _MIB


class OutOfMemory(Exception):  # noqa: N818 - not a mistake: the device is too small
    """A request that the device cannot serve, because segments would then take ``demand`` bytes."""

    def __init__(self, demand: int) -> None:
        super().__init__(f"{demand} bytes in segments are more than the device has")
        self.demand = demand


@dataclass(eq=False, slots=True, kw_only=True)
class AllocatedBlock:
    """A part of a segment."""

    size: int
    is_small: bool
    #: stream whose requests it serves
    stream: int = 0
    #: neighbors in the same segment
    before: AllocatedBlock | None = None
    after: AllocatedBlock | None = None
    is_free: bool = False
    number: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: smaller blocks first, and older blocks first among equals."""
        return self.size, self.number


@dataclass(slots=True, kw_only=True)
class CachingAllocator:
    """The allocator of one device, with ``capacity`` bytes for it (None: unlimited)."""

    capacity: int | None = None
    #: bytes in segments, and their peak
    reserved: int = 0
    peak_reserved: int = 0
    #: bytes in blocks in use, including rounding, and their peak
    allocated: int = 0
    peak_allocated: int = 0
    #: free blocks by stream and by whether they are small, the smallest first
    _free: dict[tuple[int, bool], list[AllocatedBlock]] = field(default_factory=dict)
    _num_blocks: int = 0

    def allocate(self, size: int, stream: int = 0) -> AllocatedBlock | None:
        """Serve a request of a stream; one for zero bytes takes no block."""
        if size == 0:
            return None
        rounded = _round_up(size, ROUNDING)
        block = self._take(rounded, stream) or self._new_segment(rounded, stream)
        self._split(block, rounded)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: AllocatedBlock | None) -> None:
        """Keep a block that is no longer in use for later requests."""
        if block is None:
            return
        self.allocated -= block.size
        block.is_free = True
        for neighbor in (block.before, block.after):
            if neighbor is None or not neighbor.is_free:
                continue
            blocks = self._free[neighbor.stream, neighbor.is_small]
            del blocks[bisect.bisect_left(blocks, neighbor.order, key=lambda each: each.order)]
            _merge(block, neighbor)
        self._keep(block)

    def _take(self, size: int, stream: int) -> AllocatedBlock | None:
        blocks = self._free.get((stream, size <= SMALL_REQUEST), [])
        position = bisect.bisect_left(blocks, (size, 0), key=lambda block: block.order)
        if position == len(blocks):
            return None
        block = blocks.pop(position)
        block.is_free = False
        return block

    def _new_segment(self, size: int, stream: int) -> AllocatedBlock:
        is_small = size <= SMALL_REQUEST
        if is_small:
            segment = SMALL_SEGMENT
        elif size < LARGE_REQUEST:
            segment = LARGE_SEGMENT
        else:
            segment = _round_up(size, SEGMENT_ROUNDING)

        if self.capacity is not None and self.reserved + segment > self.capacity:
            self._release_free_segments()
            if self.reserved + segment > self.capacity:
                raise OutOfMemory(self.reserved + segment)
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self._block(segment, is_small, stream)

    def _release_free_segments(self) -> None:
        for pool, blocks in self._free.items():
            kept: list[AllocatedBlock] = []
            for block in blocks:
                if block.before is None and block.after is None:
                    self.reserved -= block.size
                else:
                    kept.append(block)
            self._free[pool] = kept

    def _split(self, block: AllocatedBlock, size: int) -> None:
        rest = block.size - size
        min_rest = ROUNDING if block.is_small else SMALL_REQUEST + 1
        if rest < min_rest:
            return
        other = self._block(rest, block.is_small, block.stream)
        other.before, other.after = block, block.after
        other.is_free = True
        if block.after is not None:
            block.after.before = other
        block.after = other
        block.size = size
        self._keep(other)

    def _block(self, size: int, is_small: bool, stream: int) -> AllocatedBlock:
        self._num_blocks += 1
        return AllocatedBlock(size=size, is_small=is_small, stream=stream, number=self._num_blocks)

    def _keep(self, block: AllocatedBlock) -> None:
        blocks = self._free.setdefault((block.stream, block.is_small), [])
        bisect.insort(blocks, block, key=lambda each: each.order)


def _merge(block: AllocatedBlock, neighbor: AllocatedBlock) -> None:
    """Merge a neighbor into ``block``."""
    block.size += neighbor.size
    if neighbor is block.before:
        block.before = neighbor.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = neighbor.after
        if block.after is not None:
            block.after.before = block


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
