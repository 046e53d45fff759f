"""Columns of a text: the texts of a tree, and which columns fit how wide."""

from __future__ import annotations

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
    """Return the texts of each column; names have the branches of the tree before them."""
    texts = [row.texts for row in table.rows]
    columns = [list(column) for column in zip(*texts, strict=True)]
    branches = _tree_branches(table.rows, width)
    columns[0] = [branch + row.name for branch, row in zip(branches, table.rows, strict=True)]
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


def fit_columns(table: Table, width: int) -> Table:
    """Return the table without the columns that the width has no room for, and a remark on them."""
    kept, hidden = _split_columns(table, width)
    if hidden:
        keys = {column.key for column in kept}
        table = table.only([column for column in table.columns if column.key in keys])
    remarks = [each for each in table.remarks if not isinstance(each, Conclusion)]
    headings = [column.heading for column in hidden if column.heading]
    if headings:
        remarks.append(f"Hidden columns: {', '.join(headings)}.")
    remarks += [each for each in table.remarks if isinstance(each, Conclusion)]
    return replace(table, columns=kept, remarks=remarks)


def _split_columns(table: Table, width: int) -> tuple[list[Column], list[Column]]:
    """Return the columns that fit the width, and the hidden ones.

    Columns with the largest priority number are hidden first; the name and one column stay.
    """
    kept = list(table.columns)
    if not table.rows:  # columns take no room
        return kept, []
    texts_by_column = column_texts(table, width)
    widths = list(map(max_text_width, table.columns, texts_by_column))
    if sum(widths) + GAP * (len(widths) - 1) <= width:
        return kept, []

    min_widths: dict[str, int] = {}
    for column, texts in zip(table.columns, texts_by_column, strict=True):
        min_widths[column.key] = _min_width(column, texts)
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


def _min_width(column: Column, texts: Sequence[str]) -> int:
    """Return how narrow a column can get without truncating more than it may."""
    max_width = max_text_width(column, texts)
    if column.min_width is None:
        return max_width
    deepest = max(map(indent_of, texts), default=0)
    min_width = max(column.min_width, len(column.heading), deepest + _MIN_NAME_WIDTH)
    return min(min_width, max_width)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; some characters take two."""
    if text.isascii():
        return len(text)
    return len(text) + len(_WIDE.findall(text))


def pad(text: str, width: int, column: Column) -> str:
    """Return a text with spaces up to the width, at the right or, for numbers, at the left."""
    padding = " " * (width - text_width(text))
    return padding + text if column.is_number else text + padding


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
