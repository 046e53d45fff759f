"""A table as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import DataRow, Line, TableFormat, tabulate

from torchscan.report.table import Column, Cut, Row, Table, printable, writes

_ELLIPSIS = "…"
_GAP = 2
#: lines that a remark may take; a page has room for more
_MOST_LINES = 6
_RULES = TableFormat(
    lineabove=Line("", "─", "──", ""),
    linebelowheader=None,
    linebetweenrows=None,
    linebelow=Line("", "─", "──", ""),
    headerrow=None,
    datarow=DataRow("", "  ", ""),
    padding=0,
    with_header_hide=None,
)


@writes("text")
def text_of(table: Table, width: int) -> str:
    """The rows with the totals right below them, or the totals first, in paragraphs of their own."""
    summary, remarks = paragraphs(table.summary, width), paragraphs(table.remarks, width)
    totals = [totals_of(each, width) for each in table.totals]
    rows = [grid(table, width)] if table.rows else []
    if table.totals_first:
        return "\n\n".join([*summary, *totals, *rows, *remarks])
    rule = [each.partition("\n")[0] for each in rows]
    return "\n".join([*summary, *rows, *(line for each in totals for line in (each, *rule)), *remarks])


def paragraphs(texts: Sequence[str], width: int) -> list[str]:
    """Each wrapped to the width."""
    return [textwrap.fill(textwrap.shorten(printable(text), _MOST_LINES * width), width) for text in texts]


# -- rows ----------------------------------------------------------------------------------------------------------------


def grid(table: Table, width: int) -> str:
    """The headings and rows, between rules."""
    table = _needed(table, width)
    by_column = _texts(table)
    widths = _fitting_widths(table.columns, by_column, width)
    fitted = [
        [cut(text, size, column.cut, _indent_of(text) if number == 0 else 0) for text in texts]
        for number, (column, texts, size) in enumerate(zip(table.columns, by_column, widths, strict=True))
    ]
    text = tabulate(
        [[column.heading for column in table.columns], *zip(*fitted, strict=True)],  # headings of its own would be wider
        tablefmt=_RULES,
        colalign=_sides(table.columns),
        disable_numparse=True,
        preserve_whitespace=True,
    )
    rule, heading, *rows = text.split("\n")
    return "\n".join([rule, heading, rule, *rows])


def _texts(table: Table) -> list[list[str]]:
    """Column by column."""
    by_column = [list(column) for column in zip(*(row.texts for row in table.rows), strict=True)]
    by_column[0] = [f"{lines}{row.name}" for lines, row in zip(_branches(table.rows), table.rows, strict=True)]
    return by_column


def _needed(table: Table, width: int) -> Table:
    """Without columns that may be left out, as long as the others are too wide."""
    grades = sorted({column.dispensable for column in table.columns} - {0})
    sizes = list(map(_narrowest, table.columns, _texts(table))) if grades else []
    while grades and sum(size + _GAP for size in sizes) - _GAP > width:
        least_needed = grades.pop()
        sizes = [size for size, column in zip(sizes, table.columns, strict=True) if column.dispensable != least_needed]
        table = table.only([column for column in table.columns if column.dispensable != least_needed])
    return table


def _narrowest(column: Column, texts: Sequence[str]) -> int:
    """How wide it is at least."""
    size = _widest(column, texts)
    return size if column.narrowest is None else min(size, column.narrowest)


def _widest(column: Column, texts: Sequence[str]) -> int:
    return max(len(column.heading), *map(len, texts))


def _sides(columns: Sequence[Column]) -> list[str]:
    return ["right" if column.is_number else "left" for column in columns]


def _branches(rows: Sequence[Row]) -> list[str]:
    """The lines of a tree: each row hangs below the last shallower one before it."""
    open_at: dict[int, bool] = {}
    drawn = []
    for row, is_last in zip(rows, _last_of_siblings(rows), strict=True):
        open_at[row.depth] = not is_last
        lines = "".join("│ " if open_at.get(level) else "  " for level in range(1, row.indent))
        drawn.append(lines + ("" if row.depth == 0 else "└─" if is_last else "├─"))
    return drawn


def _last_of_siblings(rows: Sequence[Row]) -> list[bool]:
    """Whether each row is the last of its siblings, read from the end."""
    following: set[int] = set()
    last = []
    for row in reversed(rows):
        last.append(row.depth not in following)
        following = {level for level in following if level < row.depth} | {row.depth}
    return last[::-1]


def _indent_of(text: str) -> int:
    return len(text) - len(text.lstrip("│ └├─"))


def _fitting_widths(columns: Sequence[Column], by_column: Sequence[Sequence[str]], width: int) -> list[int]:
    """Columns as wide as their texts; if that is too wide, those that may be cut give way, widest first."""
    widths = list(map(_widest, columns, by_column))
    spare = {at: widths[at] - each.narrowest for at, each in enumerate(columns) if each.narrowest is not None}
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    while excess > 0 and max(spare.values(), default=0) > 0:
        widest = max(spare, key=lambda at: spare[at])
        widths[widest] -= 1
        spare[widest] -= 1
        excess -= 1
    return widths


def cut(text: str, width: int, where: Cut, indent: int = 0) -> str:
    """Shorten a text to ``width``, but keep the branches of the tree before it."""
    if len(text) <= width:
        return text
    prefix, text = text[:indent], text[indent:]
    room = max(width - indent - 1, 1)
    if where == "head":
        return f"{prefix}{_ELLIPSIS}{text[len(text) - room :]}"
    if where == "tail":
        return f"{prefix}{text[:room]}{_ELLIPSIS}"
    tail = room // 2
    return f"{prefix}{text[: room - tail]}{_ELLIPSIS}{text[len(text) - tail :]}"


# -- totals --------------------------------------------------------------------------------------------------------------


def totals_of(table: Table, width: int) -> str:
    """A small table without rules. A single column of figures is aligned to the left, beside the names."""
    headings = [[column.heading for column in table.columns]] if table.has_headings else []
    sides = ["left"] * 2 if len(table.columns) == 2 else _sides(table.columns)
    rows = [_wrapped(row.texts, table, width) for row in table.rows]
    text = tabulate([*headings, *rows], tablefmt="plain", disable_numparse=True, colalign=sides)
    return f"{printable(table.title)}\n{text}" if table.title else text


def _wrapped(texts: list[str], table: Table, width: int) -> list[str]:
    """Words at the end of a row wrap within the width."""
    if table.columns[-1].is_number:
        return texts
    before = sum(max(len(row.texts[at]) for row in table.rows) + _GAP for at in range(len(texts) - 1))
    return [*texts[:-1], textwrap.fill(texts[-1], max(width - before, 10))]
