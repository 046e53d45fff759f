"""Columns of a text: the texts of a tree, and which columns fit how wide."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchscan.report.table import Column, Conclusion, Cut, Table
from torchscan.report.table_rows import Row

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
    texts = [row.texts for row in table.rows]
    columns = [list(column) for column in zip(*texts, strict=True)]
    columns[0] = list(map(operator.add, _tree_branches(table.rows, width), columns[0]))
    return columns


def _tree_branches(rows: Sequence[Row], width: int) -> list[str]:
    """Return the branches before each name: a row hangs below the last shallower one above it.

    Deep trees stop indenting at two fifths of the width, so that names keep some room.
    """
    max_level = max(2, width // 5)
    has_next: dict[int, bool] = {}  # whether a sibling follows, by depth
    branches = []
    for row, is_last in zip(rows, _last_siblings(rows), strict=True):
        has_next[row.depth] = not is_last
        branch = ""
        for level in range(1, min(row.indent, max_level)):
            branch += "│ " if has_next.get(level) else "  "
        if row.depth > 0:
            branch += "└─" if is_last else "├─"
        branches.append(branch)
    return branches


def _last_siblings(rows: Sequence[Row]) -> list[bool]:
    """Return for each row whether it is the last of its siblings."""
    depths_below: set[int] = set()
    result = []
    for row in reversed(rows):
        result.append(row.depth not in depths_below)
        # Deeper rows further down hang below another parent.
        depths_below = {depth for depth in depths_below if depth < row.depth}
        depths_below.add(row.depth)
    result.reverse()
    return result


def indent_of(text: str) -> int:
    """Return the number of characters of the branches before a name."""
    return len(text) - len(text.lstrip("│ └├─"))


# -- widths --------------------------------------------------------------------------------------


def fit_columns(table: Table, width: int) -> tuple[Table, list[list[str]]]:
    """Return the table without the columns that do not fit the width, and a remark on them.

    The texts of the other columns come with it.
    """
    table = _let_fall(table, width)
    texts = column_texts(table, width)
    kept, hidden = _split_columns(table, texts, width)
    keys = {column.key for column in kept}
    texts_shown = [
        each for column, each in zip(table.columns, texts, strict=False) if column.key in keys
    ]
    shown = table.only([column for column in table.columns if column.key in keys])
    remarks = list(shown.remarks)
    headings = [column.heading for column in hidden if column.heading]
    if headings:
        remarks.append(f"Hidden columns: {', '.join(headings)}.")
    remarks.sort(key=lambda remark: isinstance(remark, Conclusion))
    return replace(shown, columns=kept, remarks=remarks), texts_shown


def _let_fall(table: Table, width: int) -> Table:
    """Move the texts of some columns below their rows if other columns would be hard to read.

    The other columns should keep twice their minimum width.
    """
    fallen = [index for index, column in enumerate(table.columns) if column.falls_below]
    if not fallen or not table.rows:
        return table
    table_width = -GAP
    for column, texts in zip(table.columns, column_texts(table, width), strict=True):
        table_width += GAP + _min_width(column, texts, 1 if column.falls_below else 2)
    if table_width <= width:
        return table

    rows = []
    for row in table.rows:
        texts = [row.texts[index] for index in fallen]
        rows.append(replace(row, below=", ".join(filter(None, texts))))
    kept = [column for column in table.columns if not column.falls_below]
    return replace(table, rows=rows).only(kept)


def _split_columns(
    table: Table, texts: Sequence[Sequence[str]], width: int
) -> tuple[list[Column], list[Column]]:
    """Return the columns that fit the width, and the hidden ones.

    Columns with the largest priority number are hidden first; the name and one column stay.
    """
    kept = list(table.columns)
    # Columns of a table without rows have no texts, and take no room.
    if not texts or sum(map(max_text_width, kept, texts)) + GAP * (len(kept) - 1) <= width:
        return kept, []

    min_widths: dict[str, int] = {}
    for column, texts_of_column in zip(table.columns, texts, strict=False):
        min_widths[column.key] = _min_width(column, texts_of_column)

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
    table_width = sum(min_widths.get(column.key, 0) + GAP for column in columns) - GAP
    return len(columns) > 2 and table_width > width


def _hide_last_columns(kept: list[Column], min_widths: dict[str, int], width: int) -> list[Column]:
    """Narrow the name, and remove columns from the end until the others fit; return those."""
    # The values that are left say more than a long name.
    name = kept[0]
    if name.min_width is not None and min_widths.get(name.key, 0) > MIN_WRAP_WIDTH:
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
    widths = [max_text_width(*each) for each in zip(columns, texts, strict=True)]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
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


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; some characters take two."""
    if text.isascii():
        return len(text)
    return len(text) + len(_WIDE.findall(text))


def pad_texts(texts: Sequence[str], width: int, column: Column) -> list[str]:
    """Return texts with spaces up to the width, at the right or, for numbers, at the left."""
    padded = []
    num_wide = 0
    has_wide = _WIDE.search("".join(texts)) is not None
    for text in texts:
        if has_wide:
            num_wide = text_width(text) - len(text)
        room = width - num_wide
        padded.append(text.rjust(room) if column.is_number else text.ljust(room))
    return padded


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
