"""Layers of a pass that has failed, up to the one that did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchscan.errors import RecordError
from torchscan.report.info_content import info_of, tree_order
from torchscan.report.layer_table import info_table
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell, Row

_COLUMNS = ("type", "input_shape", "output_shape", "params")


def unfinished_table(error: RecordError) -> Table | None:
    """Return the failed layer and what ran before it, or None if nothing was recorded."""
    if error.so_far is None or not error.so_far.modules or error.failed is None:
        return None
    table = info_table(info_of(error.so_far), _COLUMNS, fold_repeats=False)
    failed = tree_order(error.so_far).index(error.failed)
    rows = [*table.rows]
    name, *others = rows[failed].cells
    marked = Cell(name.value, f"{name.text} (failed)")
    rows[failed] = rows[failed]._replace(cells=[marked, *others])
    return replace(
        table,
        rows=list(_rows_near(rows, failed)),
        totals=(),
        remarks=["The pass failed in the marked layer; the error has the reason:"],
    )


def _rows_near(rows: Sequence[Row], failed: int) -> Iterator[Row]:
    """Yield the failed row and those around it, with the rows that these have called."""
    around = {failed}
    depth = rows[failed].depth
    for index in range(failed, -1, -1):
        if rows[index].depth < depth:
            around.add(index)
            depth = rows[index].depth
    # by depth, whether the last row there is around the failed one
    is_around = {-1: True}
    for index, row in enumerate(rows):
        if is_around.get(row.depth - 1, row.depth == 0):
            yield row
        is_around[row.depth] = index in around
