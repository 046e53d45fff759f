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
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
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
    kinds = []
    for kind, size in snapshot.by_kind.items():
        share = size / max(snapshot.requested_bytes, 1)
        kinds.append([*total(kind, kind, size, units.memory), Cell(share, units.share(share))])
    totals = [_account(snapshot)]
    if kinds:
        totals.append(totals_table(kinds, ("", "", "")))
    remarks = _left_out(snapshot, len(shown))
    remarks += [f"Would help: {note}." for note in snapshot.suggestions]
    remarks += [note.sentence for note in snapshot.notes]
    return make_table(
        "Places that hold the most",
        _columns(snapshot),
        shown,
        summary=[_summary(snapshot)],
        totals=totals,
        totals_first=True,
        remarks=remarks,
        noun="places",
    )


def all_places_table(snapshot: MemorySnapshot) -> Table:
    """Return the table with all places, for CSV and pandas."""
    return snapshot_table(snapshot, None)


def _summary(snapshot: MemorySnapshot) -> str:
    requested = units.memory(snapshot.requested_bytes)
    others = []
    for moment, size in snapshot.bytes_by_moment.items():
        text = units.memory(size)
        if text != requested:
            others.append(f"{text} {_MOMENTS[moment]}")
    used = f"{requested} in use"
    if others:
        used += f" ({', '.join(others)})"
    gpu = f"cuda:{snapshot.device}"
    if snapshot.failed_bytes is None:
        return f"{gpu} {_MOMENTS[snapshot.moment]}: {used}"
    return f"{gpu}: a request of {units.memory(snapshot.failed_bytes)} failed with {used}"


def _account(snapshot: MemorySnapshot) -> Table:
    """Return the parts of the GPU's memory, those that are known."""
    names = {
        "requested_bytes": "Tensors and workspaces",
        "rounding_bytes": "Rounding",
        "free_bytes": "Free within segments",
        "reserved_bytes": "Reserved by torch",
        "other_bytes": "Not torch's",
        "device_free_bytes": "Free on the device",
        "capacity_bytes": f"Usable on {snapshot.device_name}",
    }
    rows = []
    for key, name in names.items():
        size = getattr(snapshot, key)
        if size is None:
            continue
        text = units.memory(size)
        if key == "free_bytes" and size:
            text += f" (largest {units.memory(snapshot.largest_free_bytes)})"
        rows.append(total(key, name, size, text))
    return totals_table(rows)


def _columns(snapshot: MemorySnapshot) -> list[ColumnOf[HeldMemory]]:
    requested = max(snapshot.requested_bytes, 1)

    def share(held: HeldMemory) -> float:
        return held.size / requested

    def place(held: HeldMemory) -> Cell:
        unknown = "" if held.path else _NO_PLACE.get(held.kind, "torch")
        return Cell(held.place, held.place or unknown)

    columns = [
        words("kind", "Kind", min_width=11, priority=1),
        number("blocks", "Blocks", text=units.exact, priority=3),
        sizes("size", "Size", summable=True),
        number("share", "Share", share, share_text, priority=2),
    ]
    has_places = any(held.place or not held.path for held in snapshot.held)
    if has_places:
        columns.insert(0, words("place", "Place", place, min_width=22))
    if any(held.path for held in snapshot.held):
        columns.insert(0, words("path", "Layer", min_width=12))
    return columns


def _left_out(snapshot: MemorySnapshot, num_shown: int) -> list[str]:
    rest = snapshot.held[num_shown:]
    if not rest:
        return []
    size = units.memory(sum(held.size for held in rest))
    places = f"{len(rest):,} more places hold"
    if len(rest) == 1:
        places = "1 more place holds"
    return [f"{places} {size}; the JSON output lists all, with stacks."]
