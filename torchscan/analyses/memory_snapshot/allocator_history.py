"""The state of torch's allocator at a moment of a snapshot: when it failed, at its peak, or last.

A snapshot has the blocks of the last moment, and the events that led to it. Earlier states are
found by undoing these events, so that the blocks that existed before the recording are included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from torchscan.analyses.memory_snapshot.free_blocks import (
    GROWTH,
    FreeBlock,
    find_gaps,
    unused_blocks,
)
from torchscan.analyses.memory_snapshot.snapshot_data import (
    NO_ORIGIN,
    Origin,
    SnapshotData,
    TraceEvent,
)

#: the last failed request, the most memory in use, or the end of the recording
SnapshotMoment = Literal["oom", "peak", "end"]
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
        later = self.events[num_events:]
        is_last = all(event.action in _MARKS for event in later)
        reserved = sum(segment.total_size for segment in self.segments)
        for event in later:
            reserved -= GROWTH.get(event.action, 0) * event.size
        if is_last:
            free = unused_blocks(self.segments)
        else:
            live = [(block.address, block.size) for block in blocks]
            free = find_gaps(self.segments, later, live)
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
