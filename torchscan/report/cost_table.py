"""Table of the costs of a pass, by operator or by module."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

from torchscan.analyses.module_costs import call_costs, formula_problems, operators_without_formula
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
from torchscan.report.remarks import unknown_cost_texts, unrecorded_text
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
    ordered = [_CostRow(name, cost) for name, cost in costs.items() if name]
    ordered.sort(key=attrgetter("size"), reverse=True)
    shown = ordered[:top]
    total = _CostRow("total", total_cost(trace))
    remarks = []
    if by == "module":
        remarks.append("A module's costs include everything that it calls, so rows overlap.")
    if len(shown) < len(ordered):
        remarks.append(f"{len(shown)} of {len(ordered)} are shown; the total includes all.")
    unknown = operators_without_formula(trace, call_costs(trace))
    labels = {name: name for name in unknown}
    remarks += unknown_cost_texts(labels, formula_problems(trace, unknown))
    unrecorded = trace.provenance.unrecorded_modules
    if unrecorded:
        remarks.append(unrecorded_text(", ".join(unrecorded)))
    return make_table(
        f"Cost of one pass by {by}",
        _columns(by, total.cost.flops),
        [*shown, total],
        [{"is_total": row is total} for row in (*shown, total)],
        remarks=remarks,
        noun=f"{by}s",
    )


class _CostRow(NamedTuple):
    """Costs of an operator or module."""

    name: str
    cost: OpCost

    @property
    def size(self) -> tuple[float, float]:
        """FLOPs and bytes, by which rows are sorted."""
        return self.cost.flops, self.cost.bytes_read + self.cost.bytes_written

    @property
    def mark(self) -> str:
        """The sign before a lower bound."""
        return "" if self.cost.is_complete else "≥ "


def _columns(by: By, total_flops: float) -> list[ColumnOf[_CostRow]]:
    options: dict[str, Any] = {"summable": by == "operator"}
    bounded: dict[str, Any] = {**options, "mark": attrgetter("mark")}

    def share(row: _CostRow) -> float:
        return round(row.cost.flops / (total_flops or 1), 6)

    return [
        words(by, by.capitalize(), "name", min_width=16),
        counts("macs", "MACs", "cost.macs", priority=2, **bounded),
        counts("flops", "FLOPs", "cost.flops", **bounded),
        counts("dmas", "DMAs", "cost.dmas", priority=3, **bounded),
        sizes("bytes_read", "Read", "cost.bytes_read", priority=4, **bounded),
        sizes("bytes_written", "Written", "cost.bytes_written", priority=5, **bounded),
        number("share", "of FLOPs", share, share_text, bars="compute", priority=1, **options),
    ]
