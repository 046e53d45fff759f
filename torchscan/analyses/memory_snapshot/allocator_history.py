"""The state of torch's allocator at a moment of a snapshot: when it failed, at its peak, or last.

A snapshot has the blocks of the last moment, and the events that led to it. Earlier states are
found by undoing these events, so that the blocks that existed before the recording are included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from torchscan.analyses.memory_snapshot.snapshot_file import (
    NO_ORIGIN,
    Origin,
    SnapshotData,
    TraceEvent,
)
from torchscan.hardware.allocator import ROUNDING, SMALL_REQUEST, SMALL_SEGMENT

#: the last failed request, the most memory in use, or the end of the recording
SnapshotMoment = Literal["oom", "peak", "end"]
#: events that add memory to the allocator, and events that take it away
_GROWTH: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
#: largest number of ranges that are compared with events while the events are undone
_MAX_UNDO_WORK: Final = 10**7
#: events that change nothing
_MARKS: Final = frozenset({"snapshot", "oom"})


class LiveBlock(NamedTuple):
    """A block that is in use."""

    address: int
    #: requested bytes
    size: int
    origin: Origin
    #: index of the event that allocated it, or None if that was not recorded
    event: int | None
    #: True if it was freed, but is not reusable until another stream is done
    is_pending: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorState:
    """State of one GPU's allocator at a moment."""

    moment: SnapshotMoment
    #: number of events until then
    num_events: int
    blocks: tuple[LiveBlock, ...]
    free_blocks: tuple[FreeBlock, ...]
    reserved_bytes: int
    #: requested bytes of the blocks
    requested_bytes: int
    #: the failed request, or None at another moment
    failure: TraceEvent | None = None


class AllocatorHistory:
    """The events of one GPU that led to the blocks of the snapshot."""

    def __init__(self, data: SnapshotData, device: int) -> None:
        self.device = device
        self.segments = [each for each in data.segments if each.device == device]
        self.events: Sequence[TraceEvent] = ()
        if device < len(data.traces):
            self.events = data.traces[device]
        actions = {event.action for event in self.events}
        #: the event that ends a block
        self._free = "free_completed" if "free_completed" in actions else "free_requested"
        self._allocations = self._match_allocations()
        self._last = self._last_blocks()
        #: index of the last failed request, or None
        self.failed_at: int | None = None
        for index, event in enumerate(self.events):
            if event.action == "oom":
                self.failed_at = index
        self.peak_at, self.peak_bytes = self._find_peak()

    @property
    def moments(self) -> tuple[SnapshotMoment, ...]:
        """The moments that the snapshot can show, the most useful first."""
        known: list[SnapshotMoment] = []
        if self.failed_at is not None:
            known.append("oom")
        if self.events:
            known.append("peak")
        return (*known, "end")

    @property
    def has_stacks(self) -> bool:
        """True if stacks of allocations were recorded."""
        origins = [event.origin for event in self.events if event.action == "alloc"]
        return any(origins) or any(block.origin.frames for block in self._last.values())

    def state(self, moment: SnapshotMoment) -> AllocatorState:
        """Return the state at one of the moments."""
        num_events = len(self.events)
        failure = None
        if moment == "oom" and self.failed_at is not None:
            num_events, failure = self.failed_at, self.events[self.failed_at]
        elif moment == "peak":
            num_events = self.peak_at
        blocks = tuple(self._undo_blocks(num_events).values())
        is_last = all(event.action in _MARKS for event in self.events[num_events:])
        reserved = sum(segment.total_size for segment in self.segments)
        for event in self.events[num_events:]:
            reserved -= _GROWTH.get(event.action, 0) * event.size
        free = self._last_free_blocks() if is_last else self._find_gaps(num_events, blocks)
        return AllocatorState(
            moment=moment,
            num_events=num_events,
            blocks=blocks,
            free_blocks=tuple(free),
            reserved_bytes=max(reserved, 0),
            requested_bytes=sum(block.size for block in blocks),
            failure=failure,
        )

    def bytes_at(self, moment: SnapshotMoment) -> int:
        """Return the requested bytes of all blocks at one of the moments."""
        if moment == "peak":
            return self.peak_bytes
        num_events = len(self.events)
        if moment == "oom" and self.failed_at is not None:
            num_events = self.failed_at
        return sum(block.size for block in self._undo_blocks(num_events).values())

    # -- blocks ------------------------------------------------------------------------------------

    def _match_allocations(self) -> dict[int, int]:
        """Return the event that allocated each freed block, by the event that freed it."""
        allocations: dict[int, int] = {}
        open_at: dict[int, int] = {}
        for index, event in enumerate(self.events):
            if event.action == "alloc":
                open_at[event.address] = index
            elif event.action == self._free:
                allocated = open_at.pop(event.address, None)
                if allocated is not None:
                    allocations[index] = allocated
        self._open_at = open_at
        return allocations

    def _last_blocks(self) -> dict[int, LiveBlock]:
        """Return the blocks of the last moment by address."""
        blocks = {}
        for segment in self.segments:
            for block in segment.blocks:
                if block.state == "inactive":
                    continue
                is_pending = block.state == "active_pending_free"
                event = self._open_at.get(block.address)
                origin = block.origin
                if event is not None and not origin.frames:
                    origin = self.events[event].origin or origin
                blocks[block.address] = LiveBlock(
                    block.address, block.requested_size, origin, event, is_pending
                )
        return blocks

    def _undo_blocks(self, num_events: int) -> Mapping[int, LiveBlock]:
        """Return the blocks after so many events, by address."""
        blocks = dict(self._last)
        for index in range(len(self.events) - 1, num_events - 1, -1):
            event = self.events[index]
            if event.action == "alloc":
                blocks.pop(event.address, None)
            elif event.action == self._free:
                allocated = self._allocations.get(index)
                origin = NO_ORIGIN
                if allocated is not None:
                    origin = self.events[allocated].origin or NO_ORIGIN
                blocks[event.address] = LiveBlock(event.address, event.size, origin, allocated)
        return blocks

    def _find_peak(self) -> tuple[int, int]:
        """Return the number of events until the peak, and the bytes in use there."""
        total = sum(block.size for block in self._last.values())
        peak_at, peak = len(self.events), total
        for index in range(len(self.events) - 1, -1, -1):
            event = self.events[index]
            if event.action == "alloc":
                total -= event.size
            elif event.action == self._free:
                total += event.size
            if total >= peak:
                peak_at, peak = index, total
        return peak_at, peak

    # -- segments ----------------------------------------------------------------------------------

    def _last_free_blocks(self) -> list[FreeBlock]:
        return [
            FreeBlock(block.size, segment.stream, segment.is_small, segment.pool_id)
            for segment in self.segments
            for block in segment.blocks
            if block.state == "inactive"
        ]

    def _find_gaps(self, num_events: int, blocks: Sequence[LiveBlock]) -> list[FreeBlock]:
        """Return the free blocks of an earlier moment: reserved addresses that no block has.

        A small gap belongs to the block before it, because the allocator does not split it off.
        """
        ranges = self._undo_segments(num_events)
        live = sorted((block.address, block.size) for block in blocks)
        free: list[FreeBlock] = []
        index = 0
        for each in sorted(ranges):
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

    def _undo_segments(self, num_events: int) -> list[_Range]:
        """Return the reserved addresses after so many events, or none if that takes too long."""
        ranges = {
            each.address: _Range(
                each.address,
                each.address + each.total_size,
                each.stream,
                each.is_small,
                each.pool_id,
            )
            for each in self.segments
        }
        work = 0
        for event in reversed(self.events[num_events:]):
            growth = _GROWTH.get(event.action, 0)
            start, end = event.address, event.address + event.size
            if growth < 0:
                is_small = event.size <= SMALL_SEGMENT
                ranges[start] = _Range(start, end, event.stream, is_small, event.pool_id)
            elif growth > 0:
                known = ranges.pop(start, None)
                if known is None or known.end != end:  # mapped into an expandable segment
                    remaining = [*ranges.values(), *([] if known is None else [known])]
                    work += len(remaining)
                    ranges = {each.start: each for each in _without(remaining, start, end)}
            if work > _MAX_UNDO_WORK:
                return []
        return list(ranges.values())


def _free_block(size: int, place: _Range) -> FreeBlock:
    return FreeBlock(size, place.stream, place.is_small, place.pool_id)


def _without(ranges: Sequence[_Range], start: int, end: int) -> list[_Range]:
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
