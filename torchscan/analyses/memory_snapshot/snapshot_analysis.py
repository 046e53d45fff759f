"""Attributes the memory of a snapshot to code, modules and kinds, and finds what would have helped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

from torchscan.analyses.memory_snapshot.allocator_history import (
    AllocatorHistory,
    FreeBlock,
    LiveBlock,
    SnapshotMoment,
)
from torchscan.analyses.memory_snapshot.block_owners import (
    KnownOwner,
    Owner,
    OwnerKind,
    python_frames,
)
from torchscan.analyses.memory_snapshot.module_paths import ModulePaths
from torchscan.analyses.memory_snapshot.snapshot_advice import suggest
from torchscan.analyses.memory_snapshot.snapshot_file import Frame, SnapshotData
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
    """Return what held the memory of a GPU; by default when a request failed, or at the peak.

    Args:
        data: the snapshot.
        device: its GPU.
        moment: one of those that the snapshot knows.
        modules: the model's, which then have rows.
        known_owners: owners of memory by its address, if more is known than stacks tell.
    """
    history = AllocatorHistory(data, device.index)
    state = history.state(history.moments[0] if moment is None else moment)
    owners = SnapshotOwners(history, modules, known_owners)
    blocks = owners.of_state(state)
    failure = state.failure
    device_free = device.free_bytes if failure is None else failure.device_free
    free = sum(block.size for block in state.free_blocks)
    by_kind: Counter[OwnerKind] = Counter()
    for owned in blocks:
        by_kind[owned.kind] += owned.block.size
    return MemorySnapshot(
        device=device.index,
        moment=state.moment,
        bytes_by_moment={each: history.state(each).requested_bytes for each in history.moments},
        requested_bytes=state.requested_bytes,
        rounding_bytes=max(0, state.reserved_bytes - free - state.requested_bytes),
        free_bytes=free,
        largest_free_bytes=max((block.size for block in state.free_blocks), default=0),
        reserved_bytes=state.reserved_bytes,
        failed_bytes=None if failure is None else failure.size,
        device_free_bytes=device_free,
        device_name=device.name,
        capacity_bytes=device.capacity_bytes,
        held=_group_blocks(blocks),
        by_kind=dict(by_kind.most_common()),
        free_pools=_group_free_blocks(state.free_blocks),
        suggestions=suggest(data, device, state, blocks, owners.running(state)),
        notes=tuple(_notes(data, history, blocks)),
    )


def _group_blocks(blocks: Iterable[OwnedBlock]) -> tuple[HeldMemory, ...]:
    """Return the blocks by kind, module and place, those that hold the most first."""
    groups: dict[tuple[OwnerKind, str, str], list[LiveBlock]] = defaultdict(list)
    for owned in blocks:
        groups[owned.kind, owned.path, owned.variable or place_of(owned.owner)].append(owned.block)
    held = []
    for (kind, path, place), members in groups.items():
        largest = max(members, key=lambda block: block.size)
        stack = python_frames(largest.origin)[:_MAX_STACK]
        held.append(
            HeldMemory(
                kind=kind,
                path=path,
                place=place,
                size=sum(block.size for block in members),
                blocks=len(members),
                stack=tuple(f"{each.filename}:{each.line} {each.name}" for each in stack),
            )
        )
    return tuple(sorted(held, key=lambda each: -each.size))


def place_of(owner: Owner) -> str:
    """Return a function with its file and line, and the module of torch that it calls."""
    if owner.frame is None:
        return ""
    via = f" ({owner.via})" if owner.via else ""
    return f"{format_frame(owner.frame)}{via}"


def format_frame(frame: Frame) -> str:
    """Return ``"model.py:31 forward"``."""
    return f"{PurePath(frame.filename).name}:{frame.line} {frame.name}"


def _group_free_blocks(blocks: Iterable[FreeBlock]) -> tuple[FreePool, ...]:
    groups: dict[tuple[int, bool, tuple[int, int]], list[int]] = defaultdict(list)
    for block in blocks:
        groups[block.stream, block.is_small, block.pool_id].append(block.size)
    pools = [
        FreePool(
            stream=stream,
            is_small=is_small,
            pool_id=pool_id,
            free_bytes=sum(sizes),
            largest_free_bytes=max(sizes),
            blocks=len(sizes),
        )
        for (stream, is_small, pool_id), sizes in groups.items()
    ]
    return tuple(sorted(pools, key=lambda pool: -pool.free_bytes))


def _notes(
    data: SnapshotData, history: AllocatorHistory, blocks: Sequence[OwnedBlock]
) -> Iterable[Note]:
    """Yield what could not be found out."""
    if not history.has_stacks:
        yield Note.of("snapshot-no-stacks")
    else:
        unknown = sum(each.block.size for each in blocks if each.kind == "unknown")
        if unknown:
            yield Note.of("snapshot-unknown", size=unknown)
        merged = sum(each.block.size for each in blocks if each.kind == "backward")
        if merged:
            yield Note.of("snapshot-backward", size=merged)
    pending = sum(each.block.size for each in blocks if each.block.is_pending)
    if pending:
        yield Note.of("snapshot-pending", size=pending)
    reserved: Counter[int] = Counter()
    for segment in data.segments:
        reserved[segment.device] += segment.total_size
    for device, size in sorted(reserved.items()):
        if device != history.device and size:
            yield Note.of("snapshot-other-device", device=device, size=size)
