"""A table as JSON: its values by the keys of their columns."""

from __future__ import annotations

import json
from typing import Any

from torchscan.plain import to_plain
from torchscan.report.table import Screen, Table, writes


@writes("json")
def json_of(table: Table, _: Screen | None = None) -> str:
    """Rows, totals, and all that is said beside them."""
    content = {
        "title": table.title,
        "summary": list(table.summary),
        "rows": _rows(table),
        "totals": [{"title": each.title, "rows": _rows(each)} for each in table.totals],
        "remarks": list(table.remarks),
    }
    return json.dumps(to_plain(content), indent=2, allow_nan=False)


def _rows(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, [cell.value for cell in row.cells], strict=True)) for row in table.rows]
