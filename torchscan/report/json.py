"""A table as JSON: its values by the keys of their columns."""

from __future__ import annotations

import json
from typing import Any

from torchscan.plain import to_plain
from torchscan.report.table import Screen, Table, writes


@writes("json")
def json_of(table: Table, _: Screen | None = None) -> str:
    """Return JSON with rows, totals and notes."""
    return json.dumps(table_content(table), indent=2, allow_nan=False)


def table_content(table: Table) -> dict[str, Any]:
    """Return rows, totals and remarks as plain data."""
    rows = _rows(table)
    totals = [{"title": each.title, "rows": _rows(each)} for each in table.totals]
    content = {
        "title": table.title,
        "summary": list(table.summary),
        "rows": rows,
        "totals": totals,
        "remarks": list(table.remarks),
    }
    plain: dict[str, Any] = to_plain(content)
    return plain


def _rows(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    rows = []
    for row in table.rows:
        pairs = zip(keys, row.values, strict=True)
        rows.append(dict(pairs))
    return rows
