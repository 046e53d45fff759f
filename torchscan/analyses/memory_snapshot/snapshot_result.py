"""Result of a memory snapshot: what held the memory, and what would have helped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchscan.analyses.memory_snapshot.allocator_history import SnapshotMoment
from torchscan.analyses.memory_snapshot.block_owners import OwnerKind
from torchscan.notes import Note
from torchscan.results import RowsResult
from torchscan.units import memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDevice:
    """The GPU of a snapshot."""

    index: int
    name: str | None = None
    capacity_bytes: int | None = None
    #: what CUDA reports as free now, or None if only the snapshot knows
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Blocks that one place of the code, or one module, holds."""

    kind: OwnerKind
    #: path of the module, with a star for the numbers of equal blocks, or "" if it is not known
    path: str
    #: innermost function outside of torch, such as ``"model.py:31 forward"``; "" without a stack
    place: str
    #: requested bytes
    size: int
    #: number of blocks
    blocks: int
    #: stack of the largest block, innermost function first
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FreePool:
    """Free blocks within segments that can serve the same requests.

    A request is served only by blocks of its stream, its pool and its size class.
    """

    stream: int
    #: True for requests up to 1 MiB
    is_small: bool
    #: (0, 0), or the pool of CUDA graphs or of a ``MemPool``
    pool_id: tuple[int, int]
    free_bytes: int
    largest_free_bytes: int
    #: number of free blocks
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot(RowsResult):
    """Memory of one GPU at a moment of a snapshot. All sizes are bytes."""

    #: index of the GPU
    device: int
    #: "oom": when a request failed; "peak": when most memory was in use; "end": when the snapshot
    #: was taken
    moment: SnapshotMoment
    #: requested bytes at each moment that the snapshot knows
    bytes_by_moment: Mapping[SnapshotMoment, int]
    #: requested bytes of all blocks in use
    requested_bytes: int
    #: bytes by which blocks are larger than their requests
    rounding_bytes: int
    #: free blocks within segments
    free_bytes: int
    #: largest free block
    largest_free_bytes: int
    #: all segments: requests, rounding and free blocks
    reserved_bytes: int
    #: the request that failed, or None
    failed_bytes: int | None = None
    #: what CUDA reported as free when the request failed, or None
    device_free_bytes: int | None = None
    #: name and memory of the device, or None if they are not known
    device_name: str | None = None
    capacity_bytes: int | None = None
    held: tuple[HeldMemory, ...]
    by_kind: Mapping[OwnerKind, int]
    free_pools: tuple[FreePool, ...] = ()
    #: changes that would have helped, those that save most first
    suggestions: tuple[Note, ...] = ()
    #: what could not be found out, and why
    notes: tuple[Note, ...] = field(default=())

    @property
    def other_bytes(self) -> int | None:
        """Memory of the device that is not torch's: contexts, NCCL, other processes.

        None if the device's memory is not known, or is smaller than torch's.
        """
        if self.capacity_bytes is None or self.device_free_bytes is None:
            return None
        if self.reserved_bytes > self.capacity_bytes:
            return None
        return max(0, self.capacity_bytes - self.device_free_bytes - self.reserved_bytes)

    def __repr__(self) -> str:
        """Return a short description: there may be thousands of places."""
        size = memory(self.requested_bytes)
        return f"<MemorySnapshot: {size} at the {self.moment} on cuda:{self.device}>"
