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

    def params(rank: PipelineRank) -> int:
        return sum(plan.stages[stage].plan.local_params for stage in rank.stages)

    columns = [
        number("process", "Rank", "rank"),
        words("stages", "Stages", lambda rank: ", ".join(map(str, rank.stages)), priority=1),
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
    each = (
        ""
        if plan.mesh is None
        else f", each on {' × '.join(f'{name} {size:,}' for name, size in plan.mesh.items())}"
    )
    batch = "" if plan.batch_size is None else f" of batch size {plan.batch_size}"
    parts = f"{_several(len(plan.stages), 'stage')} on {_several(len(plan.ranks), 'rank')}{each}"
    return f"{plan.schedule}: {parts}; {plan.microbatches} microbatches{batch} in a training step on {plan.device}"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def _totals(plan: PipelinePlan) -> Table:
    ideal = f"{units.share(plan.bubble)} ({units.share(plan.ideal_bubble)} if all stages took the same time)"
    sent = max((stage.sent_bytes for stage in plan.stages[:-1]), default=0)
    handed = f"{units.memory(sent)} for each microbatch, at most"
    rows = [
        total("time_estimate", "Expected time", plan.time_estimate, units.duration),
        total("bubble", "Bubble", plan.bubble, ideal),
        total("sent_bytes", "Sent between stages", sent, handed),
    ]
    return totals_table(rows)


def _remarks(plan: PipelinePlan) -> list[str]:
    roofline = plan.stages[0].plan.roofline
    margin = [] if roofline is None else [f"{roofline.error_margin.label}."]
    return [
        *(f"Warning: {note}." for note in plan.warnings),
        *margin,
        *(note.sentence for note in plan.assumptions),
    ]
