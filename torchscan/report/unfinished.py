"""The layers of a pass that has failed, up to the one that did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchscan.errors import RecordError
from torchscan.report.export import info_table
from torchscan.report.info import info_of, tree_order
from torchscan.report.table import Cell, Row, Table

_COLUMNS = ("type", "input_shape", "output_shape", "params")


def unfinished_table(error: RecordError) -> Table | None:
    """The layer that failed, and what ran before it, as far down as it takes; None: nothing was recorded."""
    if error.so_far is None or not error.so_far.modules or error.failed is None:
        return None
    table = info_table(info_of(error.so_far), _COLUMNS, fold_repeats=False)
    failed = tree_order(error.so_far).index(error.failed)
    return replace(
        table,
        rows=list(_rows_near(table.rows, failed)),
        totals=(),
        remarks=["The pass failed in the marked layer; the error has the reason:"],
    )


def _rows_near(rows: Sequence[Row], failed: int) -> Iterator[Row]:
    """It and those around it, with what they have called."""
    around = {failed}
    depth = rows[failed].depth
    for at in range(failed, -1, -1):
        if rows[at].depth < depth:
            around.add(at)
            depth = rows[at].depth
    shown = {-1: True}  # by depth, whether the last row there is around it
    for at, row in enumerate(rows):
        if shown.get(row.depth - 1, row.depth == 0):
            yield _failed(row) if at == failed else row
        shown[row.depth] = at in around


def _failed(row: Row) -> Row:
    name, *others = row.cells
    return replace(row, cells=[Cell(name.value, f"{name.text} (failed)"), *others])
