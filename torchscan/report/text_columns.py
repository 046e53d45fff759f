"""Columns of a text: the texts of a tree, and which columns fit how wide."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchscan.escapes import printable
from torchscan.report.table import Column, Conclusion, Cut, Table
from torchscan.report.table_rows import MAX_LEVELS, Row

_ELLIPSIS = "…"
#: spaces between columns
GAP = 2
#: characters that terminals show two columns wide: Chinese, Japanese, Korean, and emoji
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)
#: characters that a truncated name keeps beside the branches of the tree
_MIN_NAME_WIDTH = 4
#: characters that wrapped words get at least
MIN_WRAP_WIDTH = 12


def column_texts(table: Table, width: int) -> list[list[str]]:
    """Return the texts of each column; names have the branches of the tree before them.

    There are none if the table has no rows.
    """
    if not table.rows:
        return []
    names = [row.name for row in table.rows]
    columns = [list(map(operator.add, _tree_branches(table.rows, width), names))]
    _, *cells_by_column = zip(*[row.shown for row in table.rows], strict=True)
    for cells in cells_by_column:
        texts = [cell.text for cell in cells]
        if not "".join(texts).isprintable():
            texts = list(map(printable, texts))
        columns.append(texts)
    return columns


def _tree_branches(rows: Sequence[Row], width: int) -> list[str]:
    """Return the branches before each name: a row hangs below the last shallower one above it.

    Deep trees stop indenting at two fifths of the width, so that names keep some room.
    """
    max_level = min(max(2, width // 5), MAX_LEVELS)
    depths_below: set[int] = set()  # of the rows below that hang below the same rows
    branches = []
    for row in reversed(rows):
        branch = ""
        for level in range(1, min(row.depth, max_level)):
            branch += "│ " if level in depths_below else "  "
        if row.depth > 0:
            branch += "├─" if row.depth in depths_below else "└─"
        branches.append(branch)
        # Deeper rows further down hang below another parent.
        depths_below = {depth for depth in depths_below if depth < row.depth}
        depths_below.add(row.depth)
    branches.reverse()
    return branches


def indent_of(text: str) -> int:
    """Return the number of characters of the branches before a name."""
    return len(text) - len(text.lstrip("│ └├─"))


# -- widths --------------------------------------------------------------------------------------


def fit_columns(table: Table, width: int) -> tuple[Table, list[list[str]]]:
    """Return the table without the columns that do not fit the width, and a remark on them.

    The texts of the other columns come with it.
    """
    if any(column.falls_below for column in table.columns):
        table = _let_fall(table, width)
    texts = column_texts(table, width)
    # Columns of a table without rows have no texts, and take no room.
    if not texts or table_width(map(max_text_width, table.columns, texts)) <= width:
        return table, texts

    return _hide_columns(table, texts, width)


def _hide_columns(
    table: Table, texts: Sequence[list[str]], width: int
) -> tuple[Table, list[list[str]]]:
    kept, hidden = _split_columns(table, texts, width)
    keys = {column.key for column in kept}
    pairs = zip(table.columns, texts, strict=True)
    kept_texts = [each for column, each in pairs if column.key in keys]
    shown = table.only([column for column in table.columns if column.key in keys])
    remarks = list(shown.remarks)
    headings = [column.heading for column in hidden if column.heading]
    if headings:
        has_conclusion = bool(remarks) and isinstance(remarks[-1], Conclusion)
        position = len(remarks) - 1 if has_conclusion else len(remarks)
        remarks.insert(position, f"Hidden columns: {', '.join(headings)}.")
    return replace(shown, columns=kept, remarks=remarks), kept_texts


def table_width(widths: Iterable[int]) -> int:
    """Return the width of columns with the gaps between them."""
    return sum(width + GAP for width in widths) - GAP


def _let_fall(table: Table, width: int) -> Table:
    """Move the texts of some columns below their rows if other columns would be hard to read.

    The other columns should keep twice their minimum width.
    """
    min_widths = []
    for column, texts in zip(table.columns, column_texts(table, width), strict=False):
        min_widths.append(_min_width(column, texts, 1 if column.falls_below else 2))
    if table_width(min_widths) <= width:
        return table

    fallen = [index for index, column in enumerate(table.columns) if column.falls_below]
    rows = []
    for row in table.rows:
        texts = [row.texts[index] for index in fallen]
        rows.append(row._replace(below=", ".join(filter(None, texts))))
    kept = [column for column in table.columns if not column.falls_below]
    return replace(table, rows=rows).only(kept)


def _split_columns(
    table: Table, texts: Sequence[Sequence[str]], width: int
) -> tuple[list[Column], list[Column]]:
    """Return the columns that fit the width, and the hidden ones.

    Columns with the largest priority number are hidden first; the name and one column stay.
    """
    min_widths: dict[str, int] = {}
    for column, texts_of_column in zip(table.columns, texts, strict=True):
        min_widths[column.key] = _min_width(column, texts_of_column)

    kept = list(table.columns)
    hidden: list[Column] = []
    while _is_too_wide(kept, min_widths, width):
        priority = max(column.priority for column in kept[1:])
        if priority == 0:
            last = _hide_last_columns(kept, min_widths, width)
            return kept, [*last, *hidden]
        hidden[:0] = [column for column in kept if column.priority == priority]
        kept = [column for column in kept if column.priority != priority]
    return kept, hidden


def _is_too_wide(columns: Sequence[Column], min_widths: Mapping[str, int], width: int) -> bool:
    widths = [min_widths[column.key] for column in columns]
    return len(columns) > 2 and table_width(widths) > width


def _hide_last_columns(kept: list[Column], min_widths: dict[str, int], width: int) -> list[Column]:
    """Narrow the name, and remove columns from the end until the others fit; return those."""
    # The values that are left say more than a long name.
    name = kept[0]
    if name.min_width is not None and min_widths[name.key] > MIN_WRAP_WIDTH:
        kept[0] = replace(name, min_width=MIN_WRAP_WIDTH)
        min_widths[name.key] = MIN_WRAP_WIDTH

    hidden: list[Column] = []
    while _is_too_wide(kept, min_widths, width):
        own = [column for column in kept[1:] if not column.is_added]
        last = own[-1] if own else kept[-1]
        kept.remove(last)
        hidden.insert(0, last)
    return hidden


def column_widths(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int
) -> list[int]:
    """Return how wide each column is drawn: as its widest text, if that fits the width.

    If it does not, columns that may be truncated give way, the one with most to spare first.
    """
    widths = list(map(max_text_width, columns, texts))
    excess = table_width(widths) - width
    if excess <= 0:
        return widths
    spare: dict[int, int] = {}
    for index, column in enumerate(columns):
        if column.min_width is not None:
            spare[index] = widths[index] - _min_width(column, texts[index])
    while excess > 0 and max(spare.values(), default=0) > 0:
        widest = max(spare, key=spare.__getitem__)
        widths[widest] -= 1
        spare[widest] -= 1
        excess -= 1
    return widths


def max_text_width(column: Column, texts: Sequence[str]) -> int:
    """Return the width that shows a column's heading and texts in full."""
    shown = [column.heading, *texts]
    if _WIDE.search("".join(shown)) is None:
        return max(map(len, shown))
    return max(map(text_width, shown))


def _min_width(column: Column, texts: Sequence[str], factor: int = 1) -> int:
    """Return how narrow a column can get without truncating more than it may."""
    max_width = max_text_width(column, texts)
    if column.min_width is None:
        return max_width
    deepest = max(map(indent_of, texts), default=0)
    min_width = max(factor * column.min_width, len(column.heading), deepest + _MIN_NAME_WIDTH)
    return min(min_width, max_width)


def distinct_width(rows: Sequence[Row], column: Column) -> int:
    """Return the narrowest width, from the minimum on, at which truncated names still differ."""
    names = {row.name: row.end for row in rows}
    for width in range(column.min_width or 1, max(map(len, names), default=0)):
        truncated = {
            truncate_text(name, width, column.truncate, suffix=end) for name, end in names.items()
        }
        if len(truncated) == len(names):
            return width
    return max(map(len, names), default=1)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; some characters take two."""
    if text.isascii():
        return len(text)
    return len(text) + len(_WIDE.findall(text))


def pad_texts(texts: Sequence[str], width: int, column: Column) -> list[str]:
    """Return texts with spaces up to the width, at the right or, for numbers, at the left."""
    pad = str.rjust if column.is_number else str.ljust
    if _WIDE.search("".join(texts)) is None:
        return [pad(text, width) for text in texts]
    return [pad(text, width + len(text) - text_width(text)) for text in texts]


def truncate_text(text: str, width: int, where: Cut, *, indent: int = 0, suffix: int = 0) -> str:
    """Shorten a text to the width with an ellipsis at its head, middle or tail.

    The first ``indent`` characters, the branches of a tree, and the last ``suffix`` ones stay.
    """
    if text_width(text) <= width:
        return text
    stop = len(text) - suffix
    head, body, end = text[:indent], text[indent:stop], text[stop:]
    room = max(width - indent - text_width(end) - len(_ELLIPSIS), 1)
    while True:  # once, unless some of the characters are wide
        tail = {"head": room, "tail": 0, "mid": room // 2}[where]
        body_start = body[: room - tail]
        body_end = body[len(body) - tail :]
        kept = body_start + _ELLIPSIS + body_end + end
        if room == 1 or indent + text_width(kept) <= width:
            return head + kept
        room -= 1
