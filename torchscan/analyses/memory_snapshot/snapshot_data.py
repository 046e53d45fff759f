"""Content of a snapshot of torch's CUDA allocator, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

#: state of a block: used by a tensor; freed, but another stream may still use it; free
BlockState = Literal["active_allocated", "active_pending_free", "inactive"]


class Frame(NamedTuple):
    """A frame of a stack."""

    name: str
    filename: str
    line: int


class Origin(NamedTuple):
    """The stack of an allocation, innermost frame first."""

    frames: tuple[Frame, ...] = ()
    #: stack of the forward pass, for an allocation in the backward pass, if torch recorded it
    forward_frames: tuple[Frame, ...] = ()


NO_ORIGIN: Final = Origin()


class SegmentBlock(NamedTuple):
    """A part of a segment."""

    address: int
    size: int
    #: bytes before rounding
    requested_size: int
    state: BlockState
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Memory that the allocator has from CUDA."""

    device: int
    address: int
    total_size: int
    stream: int
    is_small: bool
    #: (0, 0) for the usual pool; CUDA graphs and ``MemPool`` have others
    pool_id: tuple[int, int] = (0, 0)
    is_expandable: bool = False
    blocks: tuple[SegmentBlock, ...]


class TraceEvent(NamedTuple):
    """An action of the allocator."""

    action: str
    address: int
    size: int
    stream: int
    #: bytes that CUDA reports as free, in an event "oom"
    device_free: int | None
    pool_id: tuple[int, int]
    #: None if no stack was recorded
    origin: Origin | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotData:
    """The content of a snapshot."""

    segments: tuple[Segment, ...]
    #: events of each GPU, in order
    traces: tuple[tuple[TraceEvent, ...], ...] = ()
    #: settings of the allocator, such as ``"expandable_segments"``
    settings: Mapping[str, Any] = field(default_factory=dict)
