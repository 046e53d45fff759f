"""A model in stages, as a table: what each process holds, and how long it waits."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan import units
from torchscan.analyses.pipeline_schedule import PipelinePlan, PipelineRank
from torchscan.report.table import Cell, Column, FullRemark, Row, Table, totals_table
from torchscan.wrong_arguments import explain_wrong_types

#: columns that a narrow page leaves out first
_COLUMNS: Sequence[tuple[str, str, int]] = (
    ("process", "Process", 0),
    ("stages", "Stages", 1),
    ("params", "Parameters", 3),
    ("busy", "Computes", 2),
    ("bubble", "Waits", 0),
    ("in_flight", "In flight", 4),
    ("needed_bytes", "Memory", 0),
    ("fits", "Fits", 0),
)


@explain_wrong_types
def pipeline_table(plan: PipelinePlan) -> Table:
    """A process of the pipeline a row.

    Args:
        plan: of ``parallel.pipeline``.
    """
    return Table(
        title="Pipeline",
        columns=[
            Column(
                key=key,
                heading=heading,
                is_number=key not in ("stages", "fits"),
                priority=priority,
            )
            for key, heading, priority in _COLUMNS
        ],
        rows=[_row(plan, each) for each in plan.ranks],
        summary=[_question(plan)],
        totals=[_totals(plan)],
        remarks=_remarks(plan),
        noun="processes",
    )


def _question(plan: PipelinePlan) -> str:
    each = (
        ""
        if plan.mesh is None
        else f", each on {' × '.join(f'{name} {size:,}' for name, size in plan.mesh.items())}"
    )
    batch = "" if plan.batch_size is None else f" of batch size {plan.batch_size}"
    parts = f"{_several(len(plan.stages), 'stage')} in {_several(len(plan.ranks), 'process', 'es')}{each}"
    return f"{plan.schedule}: {parts}; {plan.microbatches} microbatches{batch} in a training step on {plan.device}"


def _several(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{plural if number > 1 else ''}"


def _row(plan: PipelinePlan, process: PipelineRank) -> Row:
    stages = ", ".join(map(str, process.stages))
    params = sum(plan.stages[each].plan.local_params for each in process.stages)
    return Row(
        cells=(
            Cell(process.rank, f"{process.rank}"),
            Cell(stages, stages),
            Cell(params, units.count(params)),
            Cell(process.busy, units.duration(process.busy)),
            Cell(process.bubble, units.share(process.bubble)),
            Cell(process.in_flight, f"{process.in_flight}"),
            Cell(process.needed_bytes, units.memory(process.needed_bytes)),
            Cell(process.fits, "yes" if process.fits else "no"),
        )
    )


def _totals(plan: PipelinePlan) -> Table:
    ideal = f"{units.share(plan.bubble)} ({units.share(plan.ideal_bubble)} if all stages took equally long)"
    sent = max(each.sent_bytes for each in plan.stages[:-1]) if len(plan.stages) > 1 else 0
    return totals_table(
        [
            [
                Cell("time_estimate", "Expected time"),
                Cell(plan.time_estimate, units.duration(plan.time_estimate)),
            ],
            [Cell("bubble", "Bubbles"), Cell(plan.bubble, ideal)],
            [
                Cell("sent_bytes", "Handed over"),
                Cell(sent, f"{units.memory(sent)} for each microbatch, at most"),
            ],
        ]
    )


def _remarks(plan: PipelinePlan) -> list[str]:
    roofline = plan.stages[0].plan.roofline
    timed = [] if roofline is None else [f"{roofline.error_margin.label}."]
    return [
        *(FullRemark(f"Warning: {text}.") for text in plan.warnings),
        *timed,
        *(f"Assumed {text}." for text in plan.assumptions),
    ]
