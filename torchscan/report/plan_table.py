"""Tables of a plan: memory, computation and communication of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Literal, get_args

from torchscan import units
from torchscan.analyses.collectives import Collective
from torchscan.analyses.plan_result import Plan
from torchscan.errors import InputError
from torchscan.report.make_table import (
    ColumnOf,
    durations,
    make_table,
    number,
    sizes,
    total,
    totals_table,
    words,
)
from torchscan.report.memory_table import closeness, layer_name, memory_table
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

PlanRows = Literal["group", "layer"]


@explain_wrong_types
def plan_table(plan: Plan, by: PlanRows = "group") -> Table:
    """Return memory and computation of a rank, with its collectives as rows.

    Args:
        plan: of ``plan``.
        by: "group": a row for each kind, group and phase; "layer": also for each layer.
    """
    if by not in get_args(PlanRows):
        raise InputError.of_choice("by", by, get_args(PlanRows))
    memory = memory_table(plan.memory)
    totals = [_totals_of_largest(plan), *memory.totals]
    if len(plan.ranks) > 1:
        totals.append(_range_over_ranks(plan))
    return make_table(
        "Collectives",
        _columns(by, is_timed=plan.roofline is not None),
        _group_rows(plan.collectives, by),
        summary=[_question(plan), *memory.summary],
        totals=totals,
        totals_first=True,
        remarks=_remarks(plan),
        noun="collectives",
    )


def _question(plan: Plan) -> str:
    mesh = " × ".join(f"{name} {size:,}" for name, size in plan.mesh.items())
    what = "a training step" if plan.training else "inference"
    batch = "" if plan.batch_size is None else f" of batch size {plan.batch_size}"
    ranks = "ranks" if plan.num_ranks > 1 else "rank"
    return f"{plan.num_ranks:,} {ranks} ({mesh}): {what}{batch} on each"


def _totals_of_largest(plan: Plan) -> Table:
    rank, roofline = plan.largest_rank, plan.roofline
    held = f"{units.count(rank.local_params)} of {units.count(plan.params)}"
    rows = [
        total("local_params", "Parameters", rank.local_params, held),
        total("macs", "MACs", rank.macs, units.count),
        total("sent_bytes", "Sent to others", rank.sent_bytes, units.memory),
    ]
    if roofline is not None:
        time, waits = roofline.time_estimate, roofline.time_by_limiter.get("links", 0.0)
        share = units.share(roofline.time_share("links"))
        waits_text = f"{units.duration(waits)} ({share})"
        rows.append(total("time_estimate", "Expected time", time, units.duration))
        rows.append(total("waiting", "Waiting for links", waits, waits_text))
    place = ", ".join(f"{name} {index}" for name, index in rank.place.items())
    return totals_table(rows, title=f"Rank {rank.rank}: {place}")


#: the values by which ranks are compared
_COMPARED = (
    number("local_params", "Parameters", text=units.count),
    number("peak_bytes", "Peak memory", "memory.peak_bytes", units.memory),
    number("macs", "MACs", text=units.count),
    number("sent_bytes", "Sent to others", text=units.memory),
    number(
        "time_estimate",
        "Expected time",
        lambda rank: None if rank.roofline is None else rank.roofline.time_estimate,
        units.duration,
    ),
)


def _range_over_ranks(plan: Plan) -> Table:
    """Return the minimum and maximum over the planned ranks, with the rank of each."""
    rows = []
    for column in _COMPARED:
        values = [(column.value(rank), rank.rank) for rank in plan.ranks]
        known = [(value, rank) for value, rank in values if value is not None]
        if known:
            name = Cell(column.column.key, column.column.heading)
            rows.append([name, *_range_cells(known, column.text)])
    return totals_table(rows, ("", "Min", "Max"), title=f"Range over {len(plan.ranks):,} ranks")


def _range_cells(values: Sequence[tuple[float, int]], text: Callable[[float], str]) -> list[Cell]:
    """Return the smallest and the largest value, each with the first rank that has it."""
    ends = min(values), max(values, key=lambda each: (each[0], -each[1]))
    (least, _), (most, _) = ends
    if least == most:
        cell = Cell(least, text(least))
        return [cell, cell]
    return [Cell(value, f"{text(value)} (rank {rank})") for value, rank in ends]


#: the collectives that are one row
_Row = Sequence[Collective]


def _group_rows(collectives: Sequence[Collective], by: PlanRows) -> list[_Row]:
    """Group the collectives of one row, in the order of their first call."""
    names = ["kind", "group", "num_ranks", "phase"]
    if by == "layer":
        names.append("layer")
    key_of = attrgetter(*names)
    rows: dict[tuple[object, ...], list[Collective]] = {}
    for each in collectives:
        rows.setdefault(key_of(each), []).append(each)
    return [*rows.values()]


def _columns(by: PlanRows, *, is_timed: bool) -> list[ColumnOf[_Row]]:

    def group(row: _Row) -> Cell:
        """Return ``"dp (8)"``."""
        first = row[0]
        return Cell(first.group, f"{first.group} ({first.num_ranks:,})".strip())

    def seconds(row: _Row) -> float:
        return math.fsum(each.seconds or 0.0 for each in row)

    columns = [
        words("kind", "Collective", _first("kind")),
        words("group", "Along", group),
        number("processes", "Ranks", _first("num_ranks"), is_shown=False),
        words("phase", "Phase", _first("phase"), priority=1),
        number("calls", "Calls", _sum("calls"), units.exact, priority=3),
        sizes("bytes", "Size", _sum("bytes"), priority=4, summable=True),
        sizes("sent_bytes", "Sent", _sum("sent_bytes"), summable=True),
    ]
    if by == "layer":
        columns.insert(0, words("layer", "Layer", _first("layer"), layer_name, min_width=8))
    if is_timed:
        columns.append(durations("seconds", "Time", seconds, priority=2, summable=True))
    return columns


def _first(name: str) -> Callable[[_Row], Any]:
    return lambda row: getattr(row[0], name)


def _sum(name: str) -> Callable[[_Row], int]:
    return lambda row: sum(getattr(each, name) for each in row)


def _remarks(plan: Plan) -> list[str]:
    remarks = [f"Warning: {note}." for note in plan.warnings]
    if plan.roofline is not None:
        remarks.append(f"{plan.roofline.error_margin.label}.")
    remarks += closeness(plan.memory.verdict)
    remarks += [note.sentence for note in plan.assumptions]
    return remarks
