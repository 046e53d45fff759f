"""On which meshes a model trains, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.mesh_search import MeshChoice, MeshSearch, format_mesh
from torchscan.notes import Note
from torchscan.report.make_table import make_table, number, words, yes_or_no
from torchscan.report.table import Cell, Table
from torchscan.wrong_arguments import explain_wrong_types


def _mesh_cell(choice: MeshChoice) -> Cell:
    sizes = ",".join(f"{name}={size}" for name, size in choice.mesh.items())
    return Cell(sizes, format_mesh(choice.mesh))


def _waiting_share(choice: MeshChoice) -> float:
    return choice.waiting / choice.time_estimate if choice.time_estimate else 0.0


_COLUMNS = (
    words("mesh", "Mesh", _mesh_cell),
    number("needed_bytes", "Memory", text=lambda size: units.memory(size, 1)),
    words("fits", "Fits", text=yes_or_no),
    number("time_estimate", "Step", text=units.duration, priority=1),
    number("waiting_share", "Waiting", _waiting_share, units.share, priority=2),
    number("sent_bytes", "Sent", text=lambda size: units.memory(size, 1), priority=3),
    number("tokens_per_second", "Tokens/s", text="{:,.0f}".format),
    number("mfu", "MFU", text=units.share),
)


@explain_wrong_types
def mesh_table(search: MeshSearch) -> Table:
    """A mesh a row, the fastest that fit first.

    Args:
        search: of ``parallel.search``.
    """
    return make_table(
        "Meshes",
        _COLUMNS,
        search.choices,
        summary=[
            f"{search.num_gpus:,} {search.device}, {units.count(search.params)} parameters; {_step(search)}, {_how(search)}"
        ],
        remarks=[
            *_left_out(search),
            *([] if search.error_margin is None else [f"Times: {search.error_margin.label}."]),
            *(note.sentence for note in search.assumptions),
            *_recording_remarks(search),
        ],
        noun="meshes",
    )


def _recording_remarks(search: MeshSearch) -> list[str]:
    replayed = [format_mesh(each.mesh) for each in search.choices if each.is_replayed]
    if not replayed:
        return [f"{search.num_traces} passes with few layers were recorded."]
    if len(replayed) == len(search.choices):
        return [f"{search.num_traces} passes were recorded."]
    meshes = ", ".join(replayed)
    return [
        f"{search.num_traces} passes were recorded: with all layers for the memory of {meshes}, with few layers for the rest."
    ]


def _left_out(search: MeshSearch) -> list[str]:
    """Return a sentence for each reason, with the meshes that it refuses."""
    meshes: dict[Note, list[str]] = {}
    for mesh, reason in search.refused.items():
        meshes.setdefault(reason, []).append(mesh)
    return [f"Left out: {', '.join(each)}: {reason}." for reason, each in meshes.items()]


def _step(search: MeshSearch) -> str:
    number = f"{search.sequences:,} sequence{'s' if search.sequences > 1 else ''}"
    return f"{number} of {search.length:,} tokens in a step"


def _how(search: MeshSearch) -> str:
    again = ", with activation checkpointing" if search.checkpoint else ""
    adapters = "" if search.lora is None else f", LoRA adapters of rank {search.lora}"
    return f"{search.precision}, {search.optimizer}{adapters}{again}"
