"""A memory snapshot as a table: what held the memory, how it is divided, and what would help."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.memory_snapshot.snapshot_result import HeldMemory, MemorySnapshot
from torchscan.report.make_table import (
    ColumnOf,
    make_table,
    number,
    share_text,
    sizes,
    total,
    totals_table,
    words,
)
from torchscan.report.table import Cell, FullRemark, Table
from torchscan.wrong_arguments import explain_wrong_types

_MOMENTS = {"oom": "when a request failed", "peak": "at the peak", "end": "at the end"}
#: names of places without code
_NO_PLACE = {"backward": "backward pass", "gradients": "backward pass", "unknown": "no stack"}
#: rows that people see
_ROWS = 12


@explain_wrong_types
def snapshot_table(snapshot: MemorySnapshot, top: int | None = _ROWS) -> Table:
    """Return the places that hold the most memory, at most ``top`` of them (None: all).

    The totals divide the memory of the GPU, and that of the blocks by kind. Below the table are the
    changes that would have helped.
    """
    shown = snapshot.held[:top]
    return make_table(
        "Places that hold the most",
        _columns(snapshot),
        shown,
        summary=[_summary(snapshot)],
        totals=[_account(snapshot), _by_kind(snapshot)],
        totals_first=True,
        remarks=[
            *_left_out(snapshot, len(shown)),
            *(FullRemark(f"Would help: {note}.") for note in snapshot.suggestions),
            *(FullRemark(note.sentence) for note in snapshot.notes),
        ],
        noun="places",
    )


def all_places_table(snapshot: MemorySnapshot) -> Table:
    """Return the table with all places, for CSV and pandas."""
    return snapshot_table(snapshot, None)


def _summary(snapshot: MemorySnapshot) -> str:
    others = [
        f"{units.memory(size)} {_MOMENTS[moment]}"
        for moment, size in snapshot.bytes_by_moment.items()
        if size != snapshot.requested_bytes
    ]
    also = f" ({', '.join(others)})" if others else ""
    used = f"{units.memory(snapshot.requested_bytes)} in use{also}"
    if snapshot.failed_bytes is not None:
        return f"cuda:{snapshot.device}: a request of {units.memory(snapshot.failed_bytes)} failed with {used}"
    return f"cuda:{snapshot.device} {_MOMENTS[snapshot.moment]}: {used}"


def _account(snapshot: MemorySnapshot) -> Table:
    """Return the parts of the GPU's memory."""
    free = units.memory(snapshot.free_bytes)
    if snapshot.free_bytes:
        free = f"{free} (largest {units.memory(snapshot.largest_free_bytes)})"
    rows = [
        total("requested_bytes", "Tensors and workspaces", snapshot.requested_bytes, units.memory),
        total("rounding_bytes", "Rounding", snapshot.rounding_bytes, units.memory),
        total("free_bytes", "Free within segments", snapshot.free_bytes, free),
        total("reserved_bytes", "Reserved by torch", snapshot.reserved_bytes, units.memory),
    ]
    more = {
        "other_bytes": ("Not torch's", snapshot.other_bytes),
        "device_free_bytes": ("Free on the device", snapshot.device_free_bytes),
        "capacity_bytes": (f"Usable on {snapshot.device_name}", snapshot.capacity_bytes),
    }
    for key, (name, size) in more.items():
        if size is not None:
            rows.append(total(key, name, size, units.memory))
    return totals_table(rows)


def _by_kind(snapshot: MemorySnapshot) -> Table:
    rows = []
    for kind, size in snapshot.by_kind.items():
        share = size / max(snapshot.requested_bytes, 1)
        rows.append([*total(kind, kind, size, units.memory), Cell(share, units.share(share))])
    return totals_table(rows, ("", "", ""))


def _columns(snapshot: MemorySnapshot) -> list[ColumnOf[HeldMemory]]:
    requested = max(snapshot.requested_bytes, 1)
    columns = [
        words("place", "Place", _place_cell, min_width=22),
        words("kind", "Kind", min_width=11, priority=1),
        number("blocks", "Blocks", text=units.exact, priority=3),
        sizes("size", "Size", summable=True),
        number("share", "Share", lambda held: held.size / requested, share_text, priority=2),
    ]
    if any(held.path for held in snapshot.held):
        columns.insert(0, words("path", "Layer", min_width=8))
    return columns


def _place_cell(held: HeldMemory) -> Cell:
    return Cell(held.place, held.place or _NO_PLACE.get(held.kind, "torch"))


def _left_out(snapshot: MemorySnapshot, num_shown: int) -> list[str]:
    rest = snapshot.held[num_shown:]
    if not rest:
        return []
    size = units.memory(sum(held.size for held in rest))
    places = "1 more place holds" if len(rest) == 1 else f"{len(rest):,} more places hold"
    return [f"{places} {size}; --format json and to_dict() list all, with stacks."]
