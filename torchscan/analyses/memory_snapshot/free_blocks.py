"""Memory that torch's allocator has reserved and no block uses, now or before some events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from torchscan.analyses.memory_snapshot.snapshot_data import Segment, TraceEvent
from torchscan.hardware.allocator import ROUNDING, SMALL_REQUEST, SMALL_SEGMENT

#: events that add memory to the allocator, and events that take it away
GROWTH: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
#: largest number of ranges that are compared with events while the events are undone
_MAX_UNDO_WORK: Final = 10**7


class FreeBlock(NamedTuple):
    """A block within segments that is not in use."""

    size: int
    stream: int
    is_small: bool
    pool_id: tuple[int, int]


class _Range(NamedTuple):
    """Reserved addresses."""

    start: int
    end: int
    stream: int
    is_small: bool
    pool_id: tuple[int, int]


def unused_blocks(segments: Iterable[Segment]) -> list[FreeBlock]:
    """Return the free blocks of these segments."""
    free: list[FreeBlock] = []
    for segment in segments:
        sizes = [block.size for block in segment.blocks if block.state == "inactive"]
        stream, is_small, pool_id = segment.stream, segment.is_small, segment.pool_id
        free.extend(FreeBlock(size, stream, is_small, pool_id) for size in sizes)
    return free


def find_gaps(
    segments: Iterable[Segment], later: Sequence[TraceEvent], blocks: Iterable[tuple[int, int]]
) -> list[FreeBlock]:
    """Return the free blocks of an earlier moment: reserved addresses that no block has.

    A small gap belongs to the block before it, because the allocator does not split it off.

    Args:
        segments: the segments of the last moment.
        later: the events since the earlier moment.
        blocks: address and size of each block at the earlier moment.
    """
    live = sorted(blocks)
    free: list[FreeBlock] = []
    index = 0
    for each in sorted(_undo_segments(segments, later)):
        min_gap = ROUNDING if each.is_small else SMALL_REQUEST + 1
        position = each.start
        while index < len(live) and live[index][0] < each.end:
            address, size = live[index]
            index += 1
            if address < each.start:
                continue
            if address - position >= (min_gap if position > each.start else ROUNDING):
                free.append(_free_block(address - position, each))
            rounded = -(-size // ROUNDING) * ROUNDING
            position = max(position, address + rounded)
        if each.end - position >= (min_gap if position > each.start else ROUNDING):
            free.append(_free_block(each.end - position, each))
    return free


def _free_block(size: int, place: _Range) -> FreeBlock:
    return FreeBlock(size, place.stream, place.is_small, place.pool_id)


def _undo_segments(segments: Iterable[Segment], later: Sequence[TraceEvent]) -> list[_Range]:
    """Return the reserved addresses before these events, or none if that takes too long."""
    ranges = {}
    for each in segments:
        end = each.address + each.total_size
        ranges[each.address] = _Range(each.address, end, each.stream, each.is_small, each.pool_id)
    work = 0
    for event in reversed(later):
        growth = GROWTH.get(event.action, 0)
        start, end = event.address, event.address + event.size
        if growth < 0:
            is_small = event.size <= SMALL_SEGMENT
            ranges[start] = _Range(start, end, event.stream, is_small, event.pool_id)
        elif growth > 0:
            known = ranges.pop(start, None)
            if known is None or known.end != end:  # mapped into an expandable segment
                remaining = list(ranges.values())
                if known is not None:
                    remaining.append(known)
                work += len(remaining)
                ranges = {each.start: each for each in _remove_range(remaining, start, end)}
        if work > _MAX_UNDO_WORK:
            return []
    return list(ranges.values())


def _remove_range(ranges: Sequence[_Range], start: int, end: int) -> list[_Range]:
    """Return ranges of addresses without those from ``start`` to ``end``."""
    left = []
    for each in ranges:
        if each.end <= start or end <= each.start:
            left.append(each)
            continue
        if each.start < start:
            left.append(each._replace(end=start))
        if end < each.end:
            left.append(each._replace(start=end))
    return left
