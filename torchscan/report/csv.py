"""A table as comma-separated values: numbers in full."""

from __future__ import annotations

import csv
import json
import re
from types import SimpleNamespace
from typing import Any

from torchscan.report.table import Screen, Table, writes

#: what a spreadsheet takes for the beginning of a formula
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBERS = re.compile(r"[+-]?[\d.]+(?:, [+-]?[\d.]+)*")
#: what a terminal takes for the beginning of a command
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
#: halves of a character, which no file in UTF-8 can hold
_SURROGATE = re.compile("[\ud800-\udfff]")


@writes("csv")
def csv_of(table: Table, _: Screen | None = None, *, escape_formulas: bool = False) -> str:
    """Return a header of keys, then the rows; other values than numbers and texts are JSON.

    With ``escape_formulas``, texts that a spreadsheet would run have an apostrophe before them, and
    characters that a terminal would run are replaced.
    """
    lines: list[str] = []
    # lines end in \r\n first, so that the writer quotes texts with either of them
    writer = csv.writer(SimpleNamespace(write=lambda line: lines.append(line.removesuffix("\r\n"))))
    writer.writerow(column.key for column in table.columns)
    for row in table.rows:
        writer.writerow([_plain(value, escape_formulas) for value in row.values])
    return "\n".join(lines)


def _plain(value: Any, escape_formulas: bool) -> Any:
    if isinstance(value, str):
        text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
        if not escape_formulas:
            return text
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
        is_formula = _FORMULA.match(text) and not _NUMBERS.fullmatch(text)
        return f"'{text}" if is_formula else text
    return json.dumps(value) if isinstance(value, list | dict | bool) else value
