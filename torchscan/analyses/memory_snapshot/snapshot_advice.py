"""Changes that would have helped a run that ran out of memory, derived from its snapshot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from torchscan.analyses.memory_snapshot.allocator_history import AllocatorState
from torchscan.analyses.memory_snapshot.block_owners import OwnerKind
from torchscan.analyses.memory_snapshot.free_blocks import FreeBlock
from torchscan.analyses.memory_snapshot.snapshot_data import Origin, SnapshotData, TraceEvent
from torchscan.analyses.memory_snapshot.snapshot_owners import OwnedBlock, RunningPass
from torchscan.analyses.memory_snapshot.snapshot_result import SnapshotDevice
from torchscan.hardware.allocator import LARGE_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT
from torchscan.notes import Note

#: blocks that are kept from at least so many earlier steps are a leak; two may be the last output
#: and the one before
_MIN_LEAKED_STEPS: Final = 3
#: smallest share of the reserved memory for which free blocks are reported if no request failed
_MIN_FREE_SHARE: Final = 0.1
#: share of a kind that a change saves. 8-bit states have one scale for 256 elements;
#: 16 instead of 32 bits save half of the parameters
_SAVED_SHARES: Final[dict[OwnerKind, float]] = {"optimizer": 0.75 - 1 / 256, "parameters": 0.5}
#: kinds that a change of the step makes smaller, whether they hold the most or not
_REDUCIBLE: Final = frozenset({"activations", "optimizer", "loss", "gradients"})
#: kinds that logits and their gradients have, if their size shows that they are logits: that of the
#: loss's largest block, or half of it in 16 bits
_KINDS_OF_LOGITS: Final = frozenset({"activations", "backward", "other", "loss"})
#: in the order in which they are suggested
_CHANGED: Final[Sequence[OwnerKind]] = (
    "activations",
    "recomputed",
    "loss",
    "optimizer",
    "parameters",
    "gradients",
    "gathered",
)


def suggest(
    data: SnapshotData,
    device: SnapshotDevice,
    state: AllocatorState,
    blocks: Sequence[OwnedBlock],
    running: RunningPass,
) -> tuple[Note, ...]:
    """Return the changes that would have helped, those that save most first.

    Args:
        data: the snapshot.
        device: its GPU.
        state: what the allocator of this GPU holds.
        blocks: the blocks of this state with their owners.
        running: the pass that runs at that moment.
    """
    found = [
        *_suggest_for_segments(data, state),
        *_suggest_for_leaks(blocks, running.step),
        *_suggest_for_kinds(state, blocks, running),
    ]
    found.sort(key=lambda note: -note.values["saves"])
    return (*found, *_suggest_for_device(device, state))


def _suggest_for_segments(data: SnapshotData, state: AllocatorState) -> Iterator[Note]:
    """Yield changes for free blocks that could not serve the request."""
    is_expandable = data.settings.get("expandable_segments") is True or any(
        segment.is_expandable for segment in data.segments
    )
    usual = [block for block in state.free_blocks if not any(block.pool_id)]
    if state.failure is not None:
        private = [block for block in state.free_blocks if any(block.pool_id)]
        yield from _suggest_for_failure(state.failure, usual, private, is_expandable=is_expandable)
        return
    free = _bytes_in(usual)
    is_much = free >= _MIN_FREE_SHARE * max(state.reserved_bytes, 1)
    if state.moment == "peak" and is_much and not is_expandable:
        largest = max(block.size for block in usual)
        yield Note.of("snapshot-free", saves=free, largest=largest, num=len(usual))


def _suggest_for_failure(
    failure: TraceEvent,
    usual: Sequence[FreeBlock],
    private: Sequence[FreeBlock],
    *,
    is_expandable: bool,
) -> Iterator[Note]:
    """Yield changes that would have let a failed request use free blocks."""
    request = failure.size
    in_private_pools = _bytes_in(private)
    if in_private_pools >= max(request, 1):
        yield Note.of("snapshot-private-pools", saves=in_private_pools)
    same = [block for block in usual if block.stream == failure.stream]
    free, elsewhere = _bytes_in(same), _bytes_in(usual) - _bytes_in(same)
    if free < request <= elsewhere + free:
        yield Note.of("snapshot-other-streams", saves=elsewhere, stream=failure.stream)
    if free < request or not same or is_expandable:
        return
    largest = max(block.size for block in same)
    num = len(same)
    if _has_pages(usual, failure):
        yield Note.of(
            "snapshot-fragmented", saves=free, free=free, largest=largest, num=num, request=request
        )
    else:
        yield Note.of(
            "snapshot-fragmented-finely",
            saves=free,
            free=free,
            largest=largest,
            num=num,
            request=request,
        )


def _has_pages(free: Iterable[FreeBlock], failure: TraceEvent) -> bool:
    """Return whether a request would be served if free blocks were in expandable segments.

    Expandable segments return complete pages within free blocks to CUDA, and map them elsewhere.
    """
    request = failure.size
    page = SMALL_SEGMENT if request <= SMALL_REQUEST else LARGE_SEGMENT
    available = failure.device_free or 0
    for block in free:
        available += block.size // page * page
    return available >= request


def _bytes_in(blocks: Iterable[FreeBlock]) -> int:
    return sum(block.size for block in blocks)


def _suggest_for_device(device: SnapshotDevice, state: AllocatorState) -> Iterator[Note]:
    """Yield changes for memory outside of torch, and for memory limits of the process."""
    failure = state.failure
    if failure is None or failure.device_free is None:
        return
    free = failure.device_free
    if free >= max(failure.size, LARGE_SEGMENT):
        yield Note.of("snapshot-process-limit", saves=free, request=failure.size)
    if device.capacity_bytes is not None:
        others = device.capacity_bytes - free - state.reserved_bytes
        if others >= failure.size:
            yield Note.of("snapshot-not-torch", saves=others)


def _suggest_for_leaks(blocks: Sequence[OwnedBlock], step: int) -> Iterator[Note]:
    """Yield changes for stacks that keep more blocks from step to step."""
    by_origin: dict[Origin, list[OwnedBlock]] = defaultdict(list)
    for owned in blocks:
        is_kept = owned.step is not None and owned.step < step
        if is_kept and owned.kind in ("activations", "loss", "other"):
            by_origin[owned.block.origin].append(owned)
    for leaked in by_origin.values():
        steps = {owned.step for owned in leaked}
        if len(steps) < _MIN_LEAKED_STEPS or step - 1 not in steps:
            continue
        frame = leaked[0].owner.frame
        place = "" if frame is None else f"{frame.filename}:{frame.line}"
        yield Note.of(
            "snapshot-leak",
            saves=sum(owned.block.size for owned in leaked),
            blocks=len(leaked),
            steps=len(steps),
            place=place,
        )


def _suggest_for_kinds(
    state: AllocatorState, blocks: Sequence[OwnedBlock], running: RunningPass
) -> Iterator[Note]:
    """Yield changes for the largest kind, and for kinds that would have freed enough."""
    request = None if state.failure is None else state.failure.size
    logits = _logits_by_kind(blocks, request if running.kind == "loss" else None)
    sizes = _sizes_by_kind(blocks)
    sizes.subtract(logits)
    sizes["loss"] += logits.total()
    if not running.is_forward:
        sizes["gradients"] = 0  # they are needed
    largest = max(_CHANGED, key=lambda kind: sizes[kind])
    for kind in _CHANGED:
        size = sizes[kind]
        saves = int(size * _SAVED_SHARES.get(kind, 1))
        is_enough = request is not None and saves >= request and kind in _REDUCIBLE
        if size and (kind == largest or is_enough):
            share = size / max(state.requested_bytes, 1)
            yield _change_for(kind, saves, size, share, logits)


def _change_for(
    kind: OwnerKind, saves: int, size: int, share: float, logits: Counter[OwnerKind]
) -> Note:
    """Return the change that makes a kind smaller, which has ``size`` bytes apart from logits."""
    match kind:
        case "activations":
            return Note.of(
                "snapshot-activations",
                saves=saves,
                size=size,
                share=share,
                logits=logits["activations"],
            )
        case "recomputed":
            return Note.of("snapshot-recomputed", saves=saves, size=size, share=share)
        case "loss":
            parts = logits.copy()
            parts["loss"] += size - logits.total()
            by_kind = {name: part for name, part in parts.most_common() if part}
            return Note.of("snapshot-logits", saves=saves, size=size, share=share, by_kind=by_kind)
        case "optimizer":
            return Note.of("snapshot-optimizer", saves=saves, size=size, share=share)
        case "parameters":
            return Note.of("snapshot-parameters", saves=saves, size=size, share=share)
        case "gradients":
            return Note.of("snapshot-held-gradients", saves=saves, size=size, share=share)
        case _:
            return Note.of("snapshot-gathered", saves=saves, size=size, share=share)


def _sizes_by_kind(blocks: Iterable[OwnedBlock]) -> Counter[OwnerKind]:
    """Return the bytes of each kind."""
    sizes: Counter[OwnerKind] = Counter()
    for owned in blocks:
        sizes[owned.kind] += owned.block.size
    return sizes


def _logits_by_kind(blocks: Sequence[OwnedBlock], failed_loss: int | None) -> Counter[OwnerKind]:
    """Return the bytes of logits and their gradients, by the kind that the table shows."""
    sizes_of_loss = [each.block.size for each in blocks if each.kind == "loss"]
    if failed_loss is not None:
        sizes_of_loss.append(failed_loss)
    logits_size = max(sizes_of_loss, default=0)
    sizes_of_logits = {logits_size, logits_size // 2} if logits_size >= LARGE_SEGMENT else set()
    return _sizes_by_kind(
        each
        for each in blocks
        if each.block.size in sizes_of_logits and each.kind in _KINDS_OF_LOGITS
    )
