"""What the processes of a mesh hold, compute and send, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torchscan import units
from torchscan.analyses.collectives import Collective
from torchscan.analyses.plan import Plan, RankPlan
from torchscan.errors import InputError
from torchscan.report.memory import memory_table
from torchscan.report.table import NONE, Cell, Column, Row, Table, totals_table

PlanRows = Literal["group", "layer"]


def plan_table(plan: Plan, by: PlanRows = "group") -> Table:
    """What a process holds, computes and sends; the rows are what it tells the others, by group of processes or by layer.

    Args:
        plan: of ``plan``.
        by: "group": a row for each kind, group and phase; "layer": also for each layer.
    """
    if by not in get_args(PlanRows):
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(PlanRows)))}")
    memory = memory_table(plan.memory)
    return Table(
        title="Collectives",
        columns=[
            *([Column(key="layer", heading="Layer", is_number=False, narrowest=8)] if by == "layer" else []),
            Column(key="kind", heading="Collective", is_number=False),
            Column(key="group", heading="Among", is_number=False),
            Column(key="phase", heading="Phase", is_number=False, dispensable=1),
            Column(key="calls", heading="Calls"),
            Column(key="bytes", heading="Whole", unit="B", dispensable=2),
            Column(key="sent_bytes", heading="Sent", unit="B"),
            *([Column(key="seconds", heading="Time", unit="s")] if plan.roofline is not None else []),
        ],
        rows=[_row(each, by, is_timed=plan.roofline is not None) for each in _together(plan.collectives, by)],
        summary=[_question(plan), *memory.summary],
        totals=[_each(plan), *memory.totals, *([_ranks(plan)] if len(plan.ranks) > 1 else [])],
        totals_first=True,
        remarks=_remarks(plan, memory.remarks),
        noun="collectives",
    )


def _question(plan: Plan) -> str:
    mesh = " × ".join(f"{size:,} {name}" for name, size in plan.mesh.items())
    what = "a training step" if plan.training else "an inference"
    batch = "" if plan.batch_size is None else f" of batch size {plan.batch_size}"
    return f"{plan.processes:,} processes, {mesh}: {what}{batch} in each"


def _each(plan: Plan) -> Table:
    rank, roofline = plan.fullest, plan.roofline
    held = f"{units.count(rank.local_params)} of {units.count(plan.params)}"
    rows = [
        [Cell("local_params", "Parameters"), Cell(rank.local_params, held)],
        [Cell("macs", "MACs"), Cell(rank.macs, units.count(rank.macs))],
        [Cell("sent_bytes", "Sent to others"), Cell(rank.sent_bytes, units.memory(rank.sent_bytes))],
    ]
    if roofline is not None:
        time, waits = roofline.time_estimate, roofline.time_by_limiter.get("links", 0.0)
        rows += [
            [Cell("time_estimate", "Expected time"), Cell(time, units.duration(time))],
            [Cell("waiting", "Of that for links"), Cell(waits, f"{units.duration(waits)}{_share(waits, time)}")],
        ]
    return totals_table(rows, title=f"Process {rank.rank}: {_place(rank)}")


def _share(part: float, whole: float) -> str:
    return f" ({units.share(part / whole)})" if whole else ""


def _place(rank: RankPlan) -> str:
    return ", ".join(f"{name} {place}" for name, place in rank.place.items())


def _ranks(plan: Plan) -> Table:
    """A process a row."""
    rows = [
        [
            Cell(each.rank, f"Process {each.rank}: {_place(each)}"),
            Cell(each.local_params, units.count(each.local_params)),
            Cell(each.memory.peak_bytes, units.memory(each.memory.peak_bytes)),
        ]
        for each in plan.ranks
    ]
    return totals_table(rows, ("", "Parameters", "Peak memory"))


def _together(collectives: Sequence[Collective], by: PlanRows) -> list[list[Collective]]:
    """Those of one row, in the order of first call."""
    found: dict[tuple[object, ...], list[Collective]] = {}
    for each in collectives:
        key = (each.kind, each.group, each.processes, each.phase, each.layer if by == "layer" else None)
        found.setdefault(key, []).append(each)
    return list(found.values())


def _row(some: Sequence[Collective], by: PlanRows, *, is_timed: bool) -> Row:
    first = some[0]
    among = f"{first.processes:,} {first.group}".strip()
    cells = [
        *([Cell(first.layer, first.layer or "(the model)")] if by == "layer" else []),
        Cell(first.kind, first.kind),
        Cell(among, among),
        Cell(first.phase, first.phase),
        _sum(some, lambda each: each.calls, "{:,}".format),
        _sum(some, lambda each: each.bytes, units.memory),
        _sum(some, lambda each: each.sent_bytes, units.memory),
        *([_time(some)] if is_timed else []),
    ]
    return Row(cells=tuple(cells))


def _sum(some: Sequence[Collective], figure: Callable[[Collective], int], text: Callable[[int], str]) -> Cell:
    total = sum(map(figure, some))
    return Cell(total, text(total))


def _time(some: Sequence[Collective]) -> Cell:
    seconds = math.fsum(each.seconds or 0.0 for each in some)
    return Cell(seconds, units.duration(seconds) if seconds else NONE)


def _remarks(plan: Plan, of_memory: Sequence[str]) -> list[str]:
    timed = [] if plan.roofline is None else [f"{plan.roofline.spread.said}."]
    said = [*of_memory, *(f"Assumed {text}." for text in plan.assumptions)]
    return [*(f"Warning: {text}." for text in plan.warnings), *timed, *dict.fromkeys(said)]
