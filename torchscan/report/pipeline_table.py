"""A model in stages, as a table: memory of each rank, and how long it waits."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.pipeline_result import PipelinePlan, PipelineRank
from torchscan.report.make_table import (
    make_table,
    number,
    total,
    totals_table,
    words,
    yes_or_no,
)
from torchscan.report.table import Table
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def pipeline_table(plan: PipelinePlan) -> Table:
    """Return a table with a row for each rank of the pipeline.

    Args:
        plan: of ``parallel.pipeline``.
    """

    def stages(rank: PipelineRank) -> str:
        return ", ".join(map(str, rank.stages))

    def params(rank: PipelineRank) -> int:
        plans = [plan.stages[stage].plan for stage in rank.stages]
        return sum(each.local_params for each in plans)

    columns = [
        number("process", "Rank", "rank"),
        words("stages", "Stages", stages, priority=1),
        number("params", "Parameters", params, units.count, priority=3),
        number("busy", "Computing", text=units.duration, priority=2),
        number("bubble", "Bubble", text=units.share),
        number("in_flight", "In flight", priority=4),
        number("needed_bytes", "Memory", text=units.memory),
        words("fits", "Fits", text=yes_or_no),
    ]
    return make_table(
        "Pipeline",
        columns,
        plan.ranks,
        summary=[_question(plan)],
        totals=[_totals(plan)],
        remarks=_remarks(plan),
        noun="ranks",
    )


def _question(plan: PipelinePlan) -> str:
    stages, ranks = _several(len(plan.stages), "stage"), _several(len(plan.ranks), "rank")
    parts = f"{stages} on {ranks}"
    if plan.mesh is not None:
        mesh = " × ".join(f"{name} {size:,}" for name, size in plan.mesh.items())
        parts += f", each on {mesh}"
    microbatches = f"{plan.microbatches} microbatches"
    if plan.batch_size is not None:
        microbatches += f" of batch size {plan.batch_size}"
    return f"{plan.schedule}: {parts}; {microbatches} in a training step on {plan.device}"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}s" if number > 1 else f"{number} {noun}"


def _totals(plan: PipelinePlan) -> Table:
    ideal = f"{units.share(plan.ideal_bubble)} if all stages took the same time"
    bubble = f"{units.share(plan.bubble)} ({ideal})"
    sizes = [stage.sent_bytes for stage in plan.stages[:-1]]
    sent = max(sizes, default=0)
    sent_text = f"{units.memory(sent)} for each microbatch, at most"
    rows = [
        total("time_estimate", "Expected time", plan.time_estimate, units.duration),
        total("bubble", "Bubble", plan.bubble, bubble),
        total("sent_bytes", "Sent between stages", sent, sent_text),
    ]
    return totals_table(rows)


def _remarks(plan: PipelinePlan) -> list[str]:
    remarks = [f"Warning: {note}." for note in plan.warnings]
    roofline = plan.stages[0].plan.roofline
    if roofline is not None:
        remarks.append(f"{roofline.error_margin.label}.")
    remarks += [note.sentence for note in plan.assumptions]
    return remarks
