"""Table of the costs of a pass, by operator or by module."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.errors import InputError
from torchscan.ops import OpCost
from torchscan.report.make_table import (
    ColumnOf,
    counts,
    make_table,
    number,
    share_text,
    sizes,
    words,
)
from torchscan.report.remarks import unknown_cost_text, unrecorded_text
from torchscan.report.table import Table
from torchscan.trace.trace import Trace
from torchscan.wrong_arguments import explain_wrong_types

By = Literal["operator", "module"]


@explain_wrong_types
def cost_table(trace: Trace, by: By = "operator", top: int | None = None) -> Table:
    """Return a table of costs, the largest first, with the total in the last row.

    A module's costs include those of everything that it calls.
    """
    if by not in get_args(By):
        raise InputError.of_choice("by", by, get_args(By))
    if top is not None and top < 1:
        raise InputError.of_value("top", top, "give a positive number of rows")
    costs = by_operator(trace) if by == "operator" else by_module(trace)
    named = [(name, cost) for name, cost in costs.items() if name]
    ordered = sorted(named, key=_size_of, reverse=True)
    shown, total = ordered[:top], total_cost(trace)
    remarks = []
    if by == "module":
        remarks.append("A module's costs include everything that it calls, so rows overlap.")
    if len(shown) < len(ordered):
        remarks.append(f"{len(shown)} of {len(ordered)} are shown; the total includes all.")
    unknown = operators_without_formula(trace, call_costs(trace))
    if unknown:
        remarks.append(unknown_cost_text(", ".join(unknown)))
    unrecorded = trace.provenance.unrecorded_modules
    if unrecorded:
        remarks.append(unrecorded_text(", ".join(unrecorded)))
    return make_table(
        f"Cost of one pass by {by}",
        _columns(by, total.flops),
        [*shown, ("total", total)],
        [*({} for _ in shown), {"is_total": True}],
        remarks=remarks,
        noun=f"{by}s",
    )


def _size_of(row: tuple[str, OpCost]) -> tuple[float, float]:
    """Return FLOPs and bytes of a row, by which rows are sorted."""
    _, cost = row
    return cost.flops, cost.bytes_read + cost.bytes_written


def _columns(by: By, total_flops: float) -> list[ColumnOf[tuple[str, OpCost]]]:
    options: dict[str, Any] = {"summable": by == "operator"}
    bounded = {**options, "mark": lambda row: "" if row[1].is_complete else "≥ "}

    def share(row: tuple[str, OpCost]) -> float:
        return round(row[1].flops / (total_flops or 1), 6)

    return [
        words(by, by.capitalize(), lambda row: row[0], min_width=16),
        counts("macs", "MACs", lambda row: row[1].macs, priority=2, **bounded),
        counts("flops", "FLOPs", lambda row: row[1].flops, **bounded),
        counts("dmas", "DMAs", lambda row: row[1].dmas, priority=3, **bounded),
        sizes("bytes_read", "Read", lambda row: row[1].bytes_read, priority=4, **bounded),
        sizes("bytes_written", "Written", lambda row: row[1].bytes_written, priority=5, **bounded),
        number("share", "of FLOPs", share, share_text, bars="compute", priority=1, **options),
    ]
