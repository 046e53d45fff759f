"""Totals as text: small tables without rules."""

from __future__ import annotations

import textwrap

from tabulate import tabulate

from torchscan.escapes import printable
from torchscan.report.table import Table
from torchscan.report.text_columns import GAP, MIN_WRAP_WIDTH, max_text_width


def format_totals(table: Table, width: int) -> str:
    """Return a small table without rules, narrowed to the width.

    Figures in the last columns are dropped and texts wrapped until it fits. A single column of
    figures is aligned to the left, beside the names.
    """
    columns = table.columns
    while len(columns) > 2 and columns[-1].is_number and _min_totals_width(table) > width:
        table = table.only(columns[:-1])
        columns = table.columns
    rows = _wrap_totals(table, width)
    if table.has_headings:
        rows.insert(0, [column.heading for column in columns])
    alignment = ["left", "left"]
    if len(columns) != 2:
        sides = {True: "right", False: "left"}
        alignment = [sides[column.is_number] for column in columns]
    text = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=alignment)
    return f"{printable(table.title)}\n{text}" if table.title else text


def _min_totals_width(table: Table) -> int:
    """Return the width of a table of totals whose names are wrapped as much as they may be."""
    texts = [row.texts for row in table.rows]
    _, *figures = zip(*texts, strict=True)
    width = MIN_WRAP_WIDTH
    for column, column_texts in zip(table.columns[1:], figures, strict=True):
        width += GAP + max_text_width(column, column_texts)
    return width


def _wrap_totals(table: Table, width: int) -> list[list[str]]:
    """Return the texts of each row, with one column, or two if need be, wrapped to fit the width.

    Words in the last column are wrapped first, then names; if there are figures in the last
    column, names are wrapped first.
    """
    rows = [row.texts for row in table.rows]
    last = len(table.columns) - 1
    first_choice, second_choice = last, 0
    if table.columns[last].is_number:
        first_choice, second_choice = 0, last
    widths = []
    for index in range(len(table.columns)):
        longest = max((len(texts[index]) for texts in rows), default=0)
        widths.append(longest + GAP)

    room = width - sum(widths) + widths[first_choice]
    if room < MIN_WRAP_WIDTH:
        missing = MIN_WRAP_WIDTH - room
        second_room = max(widths[second_choice] - GAP - missing, MIN_WRAP_WIDTH)
        for texts in rows:
            texts[second_choice] = textwrap.fill(texts[second_choice], second_room)
        room = MIN_WRAP_WIDTH
    for texts in rows:
        texts[first_choice] = textwrap.fill(texts[first_choice], room)
    return rows
