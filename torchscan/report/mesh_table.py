"""On which meshes a model trains, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan import units
from torchscan.analyses.mesh_search import MeshChoice, MeshSearch, format_mesh
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.wrong_arguments import explain_wrong_types

#: columns that a narrow page leaves out first
_COLUMNS: Sequence[tuple[str, str, int]] = (
    ("mesh", "Mesh", 0),
    ("needed_bytes", "Memory", 0),
    ("fits", "Fits", 0),
    ("time_estimate", "Step", 1),
    ("waiting_share", "Waiting", 2),
    ("sent_bytes", "Sent", 3),
    ("tokens_per_second", "Tokens/s", 0),
    ("mfu", "MFU", 0),
)


@explain_wrong_types
def mesh_table(search: MeshSearch) -> Table:
    """A mesh a row, the fastest that fit first.

    Args:
        search: of ``parallel.search``.
    """
    return Table(
        title="Meshes",
        columns=[
            Column(
                key=key,
                heading=heading,
                is_number=key not in ("mesh", "fits"),
                priority=priority,
            )
            for key, heading, priority in _COLUMNS
        ],
        rows=[_row(each) for each in search.choices],
        summary=[
            f"{search.num_gpus:,} {search.device}, {units.count(search.params)} parameters; {_step(search)}, {_how(search)}"
        ],
        remarks=[
            *_left_out(search),
            *([] if search.error_margin is None else [f"Times: {search.error_margin.label}."]),
            *(f"Assumed {text}." for text in search.assumptions),
            *_recording_remarks(search),
        ],
        noun="meshes",
    )


def _recording_remarks(search: MeshSearch) -> list[str]:
    replayed = [format_mesh(each.mesh) for each in search.choices if each.is_replayed]
    if not replayed:
        return [f"{search.num_traces} passes of few layers were recorded."]
    if len(replayed) == len(search.choices):
        return [f"{search.num_traces} passes were recorded."]
    meshes = ", ".join(replayed)
    return [
        f"{search.num_traces} passes were recorded: of all layers for the memory of {meshes}, of few layers for the rest."
    ]


def _left_out(search: MeshSearch) -> list[str]:
    """By the reason."""
    meshes: dict[str, list[str]] = {}
    for mesh, reason in search.refused.items():
        meshes.setdefault(reason, []).append(mesh)
    return [f"Left out: {', '.join(each)}: {reason}." for reason, each in meshes.items()]


def _step(search: MeshSearch) -> str:
    number = f"{search.sequences:,} sequence{'s' if search.sequences > 1 else ''}"
    return f"{number} of {search.length:,} tokens in a step"


def _how(search: MeshSearch) -> str:
    again = ", layers computed again in the backward pass" if search.checkpoint else ""
    adapters = "" if search.lora is None else f", adapters of rank {search.lora}"
    return f"{search.precision}, {search.optimizer}{adapters}{again}"


def _row(choice: MeshChoice) -> Row:
    share = choice.waiting / choice.time_estimate if choice.time_estimate else 0.0
    return Row(
        cells=(
            Cell(
                ",".join(f"{name}={size}" for name, size in choice.mesh.items()),
                format_mesh(choice.mesh),
            ),
            Cell(choice.needed_bytes, units.memory(choice.needed_bytes, 1)),
            Cell(choice.fits, "yes" if choice.fits else "no"),
            Cell(choice.time_estimate, units.duration(choice.time_estimate)),
            Cell(share, units.share(share)),
            Cell(choice.sent_bytes, units.memory(choice.sent_bytes, 1)),
            Cell(choice.tokens_per_second, f"{choice.tokens_per_second:,.0f}"),
            Cell(choice.mfu, units.share(choice.mfu)),
        )
    )
