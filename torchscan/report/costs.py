"""What a pass costs in all, by operator or by module, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torchscan import units
from torchscan.analyses.module_costs import call_costs, unpriced_operators
from torchscan.analyses.totals import by_module, by_operator, total_cost
from torchscan.errors import InputError
from torchscan.ops import OpCost
from torchscan.report.remarks import missed_text, unpriced_text
from torchscan.report.table import NONE, Cell, Column, Row, Table, in_one_unit, in_words
from torchscan.trace.trace import Trace
from torchscan.wrong_arguments import explain_wrong_types

By = Literal["operator", "module"]


@explain_wrong_types
def cost_table(trace: Trace, by: By = "operator", top: int | None = None) -> Table:
    """Costs, largest first; a module's include those of everything it calls. The last row is the whole pass."""
    if by not in get_args(By):
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(By)))}")
    costs = (
        by_operator(trace)
        if by == "operator"
        else {path: cost for path, cost in by_module(trace).items() if path}
    )
    ordered = sorted(
        costs.items(),
        key=lambda item: (item[1].flops, item[1].bytes_read + item[1].bytes_written),
        reverse=True,
    )
    shown, total = ordered[:top], total_cost(trace)
    hidden = (
        [f"{len(shown)} of {len(ordered)} are shown; the total is that of all."]
        if len(shown) < len(ordered)
        else []
    )
    unknown, missed = unpriced_operators(trace, call_costs(trace)), trace.provenance.missed
    bounds = [
        write(", ".join(names))
        for write, names in ((unpriced_text, unknown), (missed_text, missed))
        if names
    ]
    inside = (
        ["A module's costs include those of everything it calls: rows overlap."]
        if by == "module"
        else []
    )
    columns, rows = _written([*shown, ("total", total)], by)
    return Table(
        title=f"Cost of one pass by {by}",
        columns=columns,
        rows=rows,
        remarks=[*inside, *hidden, *bounds],
        noun=f"{by}s",
    )


def _written(costs: Sequence[tuple[str, OpCost]], by: By) -> tuple[list[Column], list[Row]]:
    """The last is the total, which shares are of."""
    names, figures = zip(*costs, strict=True)
    summable, whole = by == "operator", figures[-1].flops or 1
    marks = ["" if cost.is_complete else "≥ " for cost in figures]

    def counted(key: str, heading: str, priority: int = 0) -> tuple[Column, list[Cell]]:
        column = Column(key=key, heading=heading, summable=summable, priority=priority)
        return in_one_unit(
            column, [getattr(cost, key) for cost in figures], units.scale_of_counts, marks
        )

    def moved(key: str, heading: str, priority: int) -> tuple[Column, list[Cell]]:
        column = Column(key=key, heading=heading, unit="B", summable=summable, priority=priority)
        return in_one_unit(
            column, [getattr(cost, key) for cost in figures], units.scale_of_memory, marks
        )

    share = Column(key="share", heading="of FLOPs", summable=summable, bars="compute", priority=1)
    written = [
        in_words(Column(key=by, heading=by.capitalize(), is_number=False, min_width=16), names),
        counted("macs", "MACs", 2),
        counted("flops", "FLOPs"),
        counted("dmas", "DMAs", 3),
        moved("bytes_read", "Read", 4),
        moved("bytes_written", "Written", 5),
        in_words(
            share,
            [round(cost.flops / whole, 6) for cost in figures],
            lambda share: units.share(share) if share else NONE,
        ),
    ]
    columns, cells = zip(*written, strict=True)
    rows = [
        Row(cells=row, is_total=at == len(costs) - 1)
        for at, row in enumerate(zip(*cells, strict=True))
    ]
    return list(columns), rows
