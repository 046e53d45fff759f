"""What the processes of a mesh hold, compute and send, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from torchscan import units
from torchscan.analyses.collectives import Collective
from torchscan.analyses.plan_result import Plan, RankPlan
from torchscan.errors import InputError
from torchscan.report.memory_table import closeness, memory_table
from torchscan.report.table import (
    Cell,
    Column,
    FullRemark,
    Row,
    Table,
    in_one_unit,
    in_words,
    totals_table,
)
from torchscan.wrong_arguments import explain_wrong_types

PlanRows = Literal["group", "layer"]


@explain_wrong_types
def plan_table(plan: Plan, by: PlanRows = "group") -> Table:
    """What a process holds, computes and sends; the rows are what it tells the others, by group of processes or by layer.

    Args:
        plan: of ``plan``.
        by: "group": a row for each kind, group and phase; "layer": also for each layer.
    """
    if by not in get_args(PlanRows):
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(PlanRows)))}")
    memory = memory_table(plan.memory)
    columns, cells = zip(
        *_written(_group_rows(plan.collectives, by), by, is_timed=plan.roofline is not None),
        strict=True,
    )
    return Table(
        title="Collectives",
        columns=columns,
        rows=[Row(cells=row) for row in zip(*cells, strict=True)],
        summary=[_question(plan), *memory.summary],
        totals=[_each(plan), *memory.totals, *([_ranks(plan)] if len(plan.ranks) > 1 else [])],
        totals_first=True,
        remarks=_remarks(plan),
        noun="collectives",
    )


def _question(plan: Plan) -> str:
    mesh = " × ".join(f"{name} {size:,}" for name, size in plan.mesh.items())
    what = "a training step" if plan.training else "an inference"
    batch = "" if plan.batch_size is None else f" of batch size {plan.batch_size}"
    number = f"{plan.num_ranks:,} process{'es' if plan.num_ranks > 1 else ''}"
    return f"{number} ({mesh}): {what}{batch} in each"


def _each(plan: Plan) -> Table:
    rank, roofline = plan.fullest, plan.roofline
    held = f"{units.count(rank.local_params)} of {units.count(plan.params)}"
    rows = [
        [Cell("local_params", "Parameters"), Cell(rank.local_params, held)],
        [Cell("macs", "MACs"), Cell(rank.macs, units.count(rank.macs))],
        [
            Cell("sent_bytes", "Sent to others"),
            Cell(rank.sent_bytes, units.memory(rank.sent_bytes)),
        ],
    ]
    if roofline is not None:
        time, waits = roofline.time_estimate, roofline.time_by_limiter.get("links", 0.0)
        share = units.share(roofline.time_share("links"))
        rows += [
            [Cell("time_estimate", "Expected time"), Cell(time, units.duration(time))],
            [
                Cell("waiting", "Waiting for links"),
                Cell(waits, f"{units.duration(waits)} ({share})"),
            ],
        ]
    return totals_table(rows, title=f"Process {rank.rank}: {_place(rank)}")


def _place(rank: RankPlan) -> str:
    return ", ".join(f"{name} {place}" for name, place in rank.place.items())


#: what processes are compared by
_COMPARED: Sequence[tuple[str, str, Callable[[RankPlan], float | None], Callable[[Any], str]]] = (
    ("local_params", "Parameters", lambda rank: rank.local_params, units.count),
    ("peak_bytes", "Peak memory", lambda rank: rank.memory.peak_bytes, units.memory),
    ("macs", "MACs", lambda rank: rank.macs, units.count),
    ("sent_bytes", "Sent to others", lambda rank: rank.sent_bytes, units.memory),
    (
        "time_estimate",
        "Expected time",
        lambda rank: None if rank.roofline is None else rank.roofline.time_estimate,
        units.duration,
    ),
)


def _ranks(plan: Plan) -> Table:
    """The least and the most of the processes that were planned, and which of them that is."""
    rows = [row for each in _COMPARED if (row := _compared(plan, *each)) is not None]
    return totals_table(rows, ("", "Least", "Most"), title=f"Of {len(plan.ranks):,} processes")


def _compared(
    plan: Plan,
    key: str,
    name: str,
    figure: Callable[[RankPlan], float | None],
    said: Callable[[Any], str],
) -> list[Cell] | None:
    found = [(value, each.rank) for each in plan.ranks if (value := figure(each)) is not None]
    if not found:
        return None
    least, most = min(found), max(found, key=lambda each: (each[0], -each[1]))
    ends = [least] if least[0] == most[0] else [least, most]
    cells = [
        Cell(value, said(value) + (f" (process {rank})" if len(ends) > 1 else ""))
        for value, rank in ends
    ]
    return [Cell(key, name), *cells, *([cells[0]] if len(ends) == 1 else [])]


#: the collectives that are one row
_Row = Sequence[Collective]


def _group_rows(collectives: Sequence[Collective], by: PlanRows) -> list[_Row]:
    """Those of one row, in the order of first call."""
    found: dict[tuple[object, ...], list[Collective]] = {}
    for each in collectives:
        key = (
            each.kind,
            each.group,
            each.num_ranks,
            each.phase,
            each.layer if by == "layer" else None,
        )
        found.setdefault(key, []).append(each)
    return [*found.values()]


def _written(
    rows: Sequence[_Row], by: PlanRows, *, is_timed: bool
) -> list[tuple[Column, list[Cell]]]:
    layer = Column(key="layer", heading="Layer", is_number=False, min_width=8)
    kind = Column(key="kind", heading="Collective", is_number=False)
    group = Column(key="group", heading="Along", is_number=False)
    processes = Column(key="processes", heading="Processes", is_shown=False)
    phase = Column(key="phase", heading="Phase", is_number=False, priority=1)
    calls = Column(key="calls", heading="Calls", priority=3)
    whole = Column(key="bytes", heading="Whole", unit="B", priority=4, summable=True)
    sent = Column(key="sent_bytes", heading="Sent", unit="B", summable=True)
    time = Column(key="seconds", heading="Time", unit="s", priority=2, summable=True)
    firsts = [row[0] for row in rows]
    return [
        *(
            [
                in_words(
                    layer, [each.layer for each in firsts], lambda path: path or "the model itself"
                )
            ]
            if by == "layer"
            else []
        ),
        in_words(kind, [each.kind for each in firsts]),
        (group, [Cell(each.group, _group(each)) for each in firsts]),
        in_words(processes, [each.num_ranks for each in firsts]),
        in_words(phase, [each.phase for each in firsts]),
        in_words(calls, [sum(each.calls for each in row) for row in rows], units.exact),
        in_one_unit(
            whole, [sum(each.bytes for each in row) for row in rows], units.scale_of_memory
        ),
        in_one_unit(
            sent, [sum(each.sent_bytes for each in row) for row in rows], units.scale_of_memory
        ),
        *(
            [in_one_unit(time, list(map(_seconds, rows)), units.scale_of_durations)]
            if is_timed
            else []
        ),
    ]


def _group(first: Collective) -> str:
    """``"dp (8)"``."""
    return f"{first.group} ({first.num_ranks:,})".strip()


def _seconds(row: _Row) -> float:
    return math.fsum(each.seconds or 0.0 for each in row)


def _remarks(plan: Plan) -> list[str]:
    timed = [] if plan.roofline is None else [f"{plan.roofline.error_margin.label}."]
    said = [*closeness(plan.memory.verdict), *(f"Assumed {text}." for text in plan.assumptions)]
    return [*(FullRemark(f"Warning: {text}.") for text in plan.warnings), *timed, *said]
