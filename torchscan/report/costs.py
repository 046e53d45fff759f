"""What a pass costs in all, by operator or by module, as a table."""

from __future__ import annotations

from typing import Literal, get_args

from torchscan import units
from torchscan.analyses.module_costs import call_costs, unpriced_operators
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.errors import InputError
from torchscan.ops import OpCost
from torchscan.report.columns import NONE
from torchscan.report.remarks import missed_text, unpriced_text
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.trace.trace import Trace

By = Literal["operator", "module"]


def cost_table(trace: Trace, by: By = "operator", top: int | None = None) -> Table:
    """Costs, largest first; a module's include those of everything it calls. The last row is the whole pass."""
    if by not in get_args(By):
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(By)))}")
    costs = by_operator(trace) if by == "operator" else {path: cost for path, cost in by_module(trace).items() if path}
    ordered = sorted(costs.items(), key=lambda item: (item[1].flops, item[1].bytes_read + item[1].bytes_written), reverse=True)
    shown, total = ordered[:top], total_cost(trace)
    hidden = [f"{len(shown)} of {len(ordered)} are shown; the total is that of all."] if len(shown) < len(ordered) else []
    unknown, missed = unpriced_operators(trace, call_costs(trace)), trace.provenance.missed
    bounds = [write(", ".join(names)) for write, names in ((unpriced_text, unknown), (missed_text, missed)) if names]
    inside = ["A module's costs include those of everything it calls: rows overlap."] if by == "module" else []
    return Table(
        title=f"Cost of one pass by {by}",
        columns=_columns(by),
        rows=[*(_row(name, cost, total) for name, cost in shown), _row("total", total, total, is_total=True)],
        remarks=[*inside, *hidden, *bounds],
        noun=f"{by}s",
    )


def _columns(by: By) -> list[Column]:
    figures = [("macs", "MACs", "", 1), ("flops", "FLOPs", "", 0), ("share", "Share", "", 0), ("dmas", "DMAs", "", 2)]
    figures += [("bytes_read", "Read", "B", 3), ("bytes_written", "Written", "B", 4)]
    return [
        Column(key=by, heading=by.capitalize(), is_number=False, narrowest=16),
        *(
            Column(key=key, heading=heading, unit=unit, adds_up=by == "operator", dispensable=grade)
            for key, heading, unit, grade in figures
        ),
    ]


def _row(name: str, cost: OpCost, total: OpCost, *, is_total: bool = False) -> Row:
    bound = "" if cost.is_complete else "≥ "
    share = cost.flops / total.flops if total.flops else 0.0
    cells = [
        Cell(name, name),
        *(Cell(value, f"{bound}{units.count(value)}" if value or bound else NONE) for value in (cost.macs, cost.flops)),
        Cell(round(share, 6), f"{100 * share:.1f} %"),
        Cell(cost.dmas, f"{bound}{units.count(cost.dmas)}"),
        *(Cell(value, f"{bound}{units.memory(value)}") for value in (cost.bytes_read, cost.bytes_written)),
    ]
    return Row(cells=cells, is_total=is_total)
