"""Table of the meshes on which a model trains."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from torchscan import units
from torchscan.analyses.mesh_search import MeshChoice, MeshSearch, StepPart
from torchscan.notes import Note
from torchscan.report.make_table import ColumnOf, make_table, mark_best, number, words, yes_or_no
from torchscan.report.table import ColumnRemark, Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

#: rows of steps that fit, and of those that do not
_MAX_ROWS, _MAX_TOO_LARGE = 10, 3
#: steps whose time is explained
_NUM_EXPLAINED = 3
#: meshes that are named in a remark
_MAX_NAMED = 4
#: share of a step's time below which a part is not named
_MIN_SHARE = 0.01
_VERBS: dict[StepPart, str] = {
    "computing": "computes",
    "recomputing": "recomputes layers",
    "waiting": "waits for links",
    "bubble": "waits for other stages",
}


def format_sizes(choice: MeshChoice) -> str:
    """Return the mesh as the option ``--mesh`` takes it."""
    return ",".join(f"{name}={size}" for name, size in choice.mesh.items())


def format_checkpoint(choice: MeshChoice) -> str:
    """Return which layers are recomputed."""
    if isinstance(choice.checkpoint, bool):
        return "full" if choice.checkpoint else "none"
    is_number = isinstance(choice.checkpoint, int)
    return f"every {choice.checkpoint}" if is_number else str(choice.checkpoint)


def schedule_cell(choice: MeshChoice) -> Cell:
    """Return the schedule of the pipeline, with the stages of each rank."""
    if choice.schedule is None:
        return Cell(None, "–")
    stages = "" if choice.stages_per_rank == 1 else f" × {choice.stages_per_rank}"
    return Cell(choice.schedule, f"{choice.schedule}{stages}")


def batches_cell(choice: MeshChoice) -> Cell:
    """Return the number of micro batches, and their sequences."""
    text = f"{choice.num_microbatches} × {choice.batch_size}"
    return Cell(choice.num_microbatches, text)


def _share(part: StepPart) -> Callable[[MeshChoice], float]:
    """Return a function for the share of a part in the time of a step."""
    take = attrgetter(part)
    return lambda choice: take(choice) / choice.time_estimate


_COLUMNS = (
    words("mesh", "Mesh", format_sizes),
    words("sharding", "Sharding"),
    words("checkpoint", "Recompute", format_checkpoint),
    words("num_microbatches", "Batches", batches_cell, priority=1),
    words("schedule", "Schedule", schedule_cell, priority=5),
    number("needed_bytes", "GiB", text=lambda size: f"{size / 2**30:.1f}"),
    words("fits", "Fits", text=yes_or_no),
    number("time_estimate", "Step", text=units.duration),
    number("waiting_share", "Waiting", _share("waiting"), units.share, priority=3),
    number("bubble_share", "Bubble", _share("bubble"), units.share, priority=2),
    number("sent_bytes", "Sent", text=lambda size: units.memory(size, 1), priority=4),
    number("tokens_per_second", "Tokens/s", text="{:,.0f}".format),
    number("mfu", "MFU", text=units.share),
)


#: columns that only pipelines have
_OF_PIPELINES = ("schedule", "bubble_share")


@explain_wrong_types
def mesh_table(search: MeshSearch) -> Table:
    """Return a table with a row for each of the best steps, the fastest that fit first.

    Args:
        search: of ``parallel.search``.
    """
    rows = list(search.choices)
    if len(rows) > _MAX_ROWS:
        fitting = [each for each in rows if each.fits]
        too_large = [each for each in rows if not each.fits]
        rows = [*fitting[:_MAX_ROWS], *too_large[:_MAX_TOO_LARGE]]
    return make_table(
        "Meshes",
        _columns_of(rows),
        rows,
        mark_best(rows, search.best),
        summary=[_question(search)],
        remarks=_remarks(search, len(rows)),
        noun="steps",
    )


def _question(search: MeshSearch) -> str:
    """Return the model and its step, with the options that were given."""
    model = f"{search.num_gpus:,} {search.device}, {units.count(search.params)} parameters"
    noun = "sequences" if search.sequences > 1 else "sequence"
    step = f"{search.sequences:,} {noun} of {search.length:,} tokens in a step"
    precision = search.precision
    if search.float8 is not None:
        precision += f" with float8 ({search.float8})"
    options = [precision]
    if search.compiled:
        options.append("compiled")
    options.append(search.optimizer)
    if search.lora is not None:
        options.append(f"LoRA adapters of rank {search.lora}")
    return f"{model}; {step}, {', '.join(options)}"


def _remarks(search: MeshSearch, num_rows: int) -> list[str]:
    remarks = []
    if search.best is not None:
        remarks.append("* marks the fastest step that fits.")
    remarks += _reasons(search)
    refused: dict[Note, list[str]] = {}
    for mesh, reason in search.refused.items():
        refused.setdefault(reason, []).append(mesh)
    for reason, meshes in refused.items():
        names = ", ".join(meshes[:_MAX_NAMED])
        if len(meshes) > _MAX_NAMED:
            names += f" and {len(meshes) - _MAX_NAMED} more"
        remarks.append(f"Left out: {names}: {reason}.")
    counted = "all scores of attention, as PaLM and torchtitan do"
    if search.flops == "computed":
        counted = "the scores of attention that a causal mask leaves"
    remarks.append(ColumnRemark(f"MFU counts {counted}.", ["mfu"]))
    if search.error_margin is not None:
        remarks.append(f"Times: {search.error_margin.label}.")
    remarks += [note.sentence for note in search.assumptions]
    return [*remarks, *_recording_remarks(search, num_rows)]


def _columns_of(rows: list[MeshChoice]) -> list[ColumnOf[MeshChoice]]:
    """Return the columns in which rows can differ."""
    hidden: set[str] = set()
    if not any(each.schedule for each in rows):
        hidden.update(_OF_PIPELINES)
    if not any(map(_has_other_sharding, rows)):
        hidden.add("sharding")
    return [each for each in _COLUMNS if each.column.key not in hidden]


def _reasons(search: MeshSearch) -> list[str]:
    """Return a sentence for each of the best: what takes its time, or why it is slower."""
    sentences: list[str] = []
    for choice in search.choices[:_NUM_EXPLAINED]:
        loss = search.loss(choice)
        if not choice.fits:
            continue
        if loss is None:
            sentences.append(f"{_label(choice)} {_format_parts(choice)}.")
            continue
        slower = f"{_label(choice)} is {loss.share:.1%} slower".replace("%", " %")
        if loss.seconds > 0:
            slower += f": it {_VERBS[loss.part]} for {units.duration(loss.seconds)} longer"
        sentences.append(f"{slower}.")
    larger = search.fastest_too_large
    if larger is not None:
        sentences.append(
            f"{_label(larger)} would take {units.duration(larger.time_estimate)}, but needs "
            f"{units.memory(larger.needed_bytes, 1)}."
        )
    return sentences


def _label(choice: MeshChoice) -> str:
    sharding = f"{choice.sharding}, " if _has_other_sharding(choice) else ""
    return f"{format_sizes(choice)} ({sharding}{format_checkpoint(choice)})"


def _has_other_sharding(choice: MeshChoice) -> bool:
    return choice.sharding not in ("fsdp2", None)


def _format_parts(choice: MeshChoice) -> str:
    """Return what a step does for which share of its time, without shares below one percent."""
    shares: list[str] = []
    for part, verb in _VERBS.items():
        share = (getattr(choice, part) or 0.0) / choice.time_estimate
        if share >= _MIN_SHARE:
            of_the_step = "" if shares else " of the step"
            shares.append(f"{verb} for {units.share(share)}{of_the_step}")
    return ", ".join(shares)


def _recording_remarks(search: MeshSearch, num_rows: int) -> list[str]:
    recorded = [_label(each) for each in search.choices if each.is_recorded]
    short = [_label(each) for each in search.choices if each.is_recorded and not each.is_replayed]
    remarks = [
        f"{search.num_steps:,} steps were compared; {search.num_traces} passes were recorded."
    ]
    if len(search.choices) > num_rows:
        left = len(search.choices) - num_rows
        remarks.append(f"{left:,} further steps are in the JSON output.")
    if recorded and len(recorded) < len(search.choices):
        remarks.append(f"Recorded on the mesh itself: {', '.join(recorded)}; the rest is derived.")
    elif not recorded:
        remarks.append("All steps are derived from passes on one rank.")
    if short:
        remarks.append(f"Reserved memory follows from few layers for {', '.join(short)}.")
    return remarks
