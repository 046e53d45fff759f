"""Attribution of a snapshot's memory to code, modules and kinds, with suggestions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

from torchscan.analyses.memory_snapshot.allocator_history import (
    AllocatorHistory,
    LiveBlock,
    SnapshotMoment,
)
from torchscan.analyses.memory_snapshot.block_owners import (
    KnownOwner,
    Owner,
    OwnerKind,
    python_frames,
)
from torchscan.analyses.memory_snapshot.free_blocks import FreeBlock
from torchscan.analyses.memory_snapshot.module_paths import ModulePaths
from torchscan.analyses.memory_snapshot.snapshot_advice import suggest
from torchscan.analyses.memory_snapshot.snapshot_data import SnapshotData
from torchscan.analyses.memory_snapshot.snapshot_owners import OwnedBlock, SnapshotOwners
from torchscan.analyses.memory_snapshot.snapshot_result import (
    FreePool,
    HeldMemory,
    MemorySnapshot,
    SnapshotDevice,
)
from torchscan.notes import Note

#: functions of a stack that results hold
_MAX_STACK: Final = 40


def analyze_snapshot(
    data: SnapshotData,
    device: SnapshotDevice,
    moment: SnapshotMoment | None = None,
    modules: ModulePaths | None = None,
    known_owners: Mapping[int, KnownOwner] = MappingProxyType({}),
) -> MemorySnapshot:
    """Return the memory of a GPU by its owners; by default when a request failed, or at the peak.

    Args:
        data: the snapshot.
        device: its GPU.
        moment: one of the moments that the snapshot can show.
        modules: the model's modules, which then have rows.
        known_owners: owners of memory by its address, if more is known than the stacks show.
    """
    history = AllocatorHistory(data, device.index)
    state = history.state(history.moments[0] if moment is None else moment)
    owners = SnapshotOwners(history, modules, known_owners)
    blocks = owners.of_state(state)

    bytes_by_moment = {}
    for each in history.moments:
        bytes_by_moment[each] = history.bytes_at(each)
    free_sizes = [block.size for block in state.free_blocks]
    free_bytes = sum(free_sizes)
    rounding = state.reserved_bytes - free_bytes - state.requested_bytes
    suggestions = suggest(data, device, state, blocks, owners.running(state))
    failed, device_free = None, device.free_bytes
    if state.failure is not None:
        failed, device_free = state.failure.size, state.failure.device_free
    reserved = state.reserved_bytes
    notes = _notes(data, history, blocks, device, reserved, has_owners=bool(known_owners))
    return MemorySnapshot(
        device=device.index,
        moment=state.moment,
        bytes_by_moment=bytes_by_moment,
        requested_bytes=state.requested_bytes,
        rounding_bytes=max(0, rounding),
        free_bytes=free_bytes,
        largest_free_bytes=max(free_sizes, default=0),
        reserved_bytes=reserved,
        failed_bytes=failed,
        device_free_bytes=device_free,
        device_name=device.name,
        capacity_bytes=device.capacity_bytes,
        held=_group_blocks(blocks),
        by_kind=dict(_sum_by_kind(blocks).most_common()),
        free_pools=_group_free_blocks(state.free_blocks),
        suggestions=suggestions,
        notes=tuple(notes),
    )


def _sum_by_kind(blocks: Iterable[OwnedBlock]) -> Counter[OwnerKind]:
    """Return the bytes of blocks by the kind of their owner."""
    by_kind: Counter[OwnerKind] = Counter()
    for owned in blocks:
        by_kind[owned.kind] += owned.block.size
    return by_kind


def _group_blocks(blocks: Iterable[OwnedBlock]) -> tuple[HeldMemory, ...]:
    """Return the blocks by kind, module and place, those that hold the most first."""
    groups: dict[tuple[OwnerKind, str, str], list[LiveBlock]] = defaultdict(list)
    for owned in blocks:
        place = owned.variable or place_of(owned.owner)
        groups[owned.kind, owned.path, place].append(owned.block)
    held = []
    for (kind, path, place), members in groups.items():
        held.append(_held_by(kind, path, place, members))
    held.sort(key=lambda each: -each.size)
    return tuple(held)


def _held_by(kind: OwnerKind, path: str, place: str, blocks: Sequence[LiveBlock]) -> HeldMemory:
    largest = max(blocks, key=lambda block: block.size)
    stack = python_frames(largest.origin)[:_MAX_STACK]
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in stack]
    return HeldMemory(
        kind=kind,
        path=path,
        place=place,
        size=sum(block.size for block in blocks),
        blocks=len(blocks),
        stack=tuple(lines),
    )


def place_of(owner: Owner) -> str:
    """Return a function with its file and line, and the module of torch that it calls."""
    frame = owner.frame
    if frame is None:
        return ""
    file = PurePath(frame.filename).name
    place = f"{file}:{frame.line} {frame.name}"
    if owner.via:
        place += f" ({owner.via})"
    return place


def _group_free_blocks(blocks: Iterable[FreeBlock]) -> tuple[FreePool, ...]:
    groups: dict[tuple[int, bool, tuple[int, int]], list[int]] = defaultdict(list)
    for block in blocks:
        groups[block.stream, block.is_small, block.pool_id].append(block.size)
    pools = []
    for (stream, is_small, pool_id), sizes in groups.items():
        pool = FreePool(
            stream=stream,
            is_small=is_small,
            pool_id=pool_id,
            free_bytes=sum(sizes),
            largest_free_bytes=max(sizes),
            blocks=len(sizes),
        )
        pools.append(pool)
    pools.sort(key=lambda pool: -pool.free_bytes)
    return tuple(pools)


def _notes(
    data: SnapshotData,
    history: AllocatorHistory,
    blocks: Sequence[OwnedBlock],
    device: SnapshotDevice,
    reserved: int,
    *,
    has_owners: bool,
) -> Iterable[Note]:
    """Yield a note for each fact that the snapshot does not show, or that contradicts it."""
    if device.capacity_bytes is not None and reserved > device.capacity_bytes:
        yield Note.of(
            "snapshot-larger-than-device",
            size=reserved,
            capacity=device.capacity_bytes,
            device=device.name,
        )
    sizes = _sum_by_kind(blocks)
    unknown = sizes["unknown"]
    if blocks and not history.has_stacks:
        if not has_owners:
            yield Note.of("snapshot-no-stacks")
        elif unknown:
            yield Note.of("snapshot-no-owner", size=unknown)
        unknown = 0
    pending = sum(owned.block.size for owned in blocks if owned.block.is_pending)
    for note in (
        Note.of("snapshot-unknown", size=unknown),
        Note.of("snapshot-backward", size=sizes["backward"]),
        Note.of("snapshot-pending", size=pending),
    ):
        if note.values["size"]:
            yield note
    yield from _other_devices(data, history.device)


def _other_devices(data: SnapshotData, device: int) -> Iterable[Note]:
    """Yield a note for each further GPU of which memory is reserved."""
    reserved: Counter[int] = Counter()
    for segment in data.segments:
        reserved[segment.device] += segment.total_size
    for other, size in sorted(reserved.items()):
        if other != device and size:
            yield Note.of("snapshot-other-device", device=other, size=size)
