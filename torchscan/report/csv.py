"""A table as comma-separated values: numbers in full."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from torchscan.report.table import Table, writes


@writes("csv")
def csv_of(table: Table, _: int = 0) -> str:
    """A header of keys, then the rows; values that are neither numbers nor text are written as JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.key for column in table.columns)
    writer.writerows([_plain(cell.value) for cell in row.cells] for row in table.rows)
    return out.getvalue().removesuffix("\n")


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value
