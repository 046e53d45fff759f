"""A table as text for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tabulate import tabulate

from torchscan.report.colours import in_colour, in_weight
from torchscan.report.table import Column, Cut, Row, Screen, Table, writes
from torchscan.units import printable

_ELLIPSIS = "…"
_GAP = 2
#: Chinese, Japanese and Korean letters, and emoji
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)
#: characters of a bar, in eighths
_BAR = 8
_EIGHTHS = ("", *"▏▎▍▌▋▊▉")
#: characters of a name below the branches of a tree
_SHORTEST = 4
#: characters that words wrap within, at least
_WORD = 12
#: lines that a remark may take; a page has room for more
_MOST_LINES = 6


@writes("text")
def text_of(table: Table, screen: Screen) -> str:
    """The rows with the totals right below them, or the totals first, in paragraphs of their own."""
    table, width = needed(table, screen.width), screen.width
    summary, remarks = paragraphs(table.summary, width), paragraphs(table.remarks, width)
    totals = [totals_of(each, width) for each in table.totals]
    rows = [grid(table, screen)] if table.rows else []
    if table.totals_first:
        return "\n\n".join([*summary, *totals, *rows, *remarks])
    rule = [each.partition("\n")[0] for each in rows]
    return "\n".join([*summary, *rows, *(line for each in totals for line in (each, *rule)), *remarks])


def paragraphs(texts: Sequence[str], width: int) -> list[str]:
    """Each wrapped to the width."""
    return [textwrap.fill(textwrap.shorten(printable(text), _MOST_LINES * width), width) for text in texts]


# -- rows ----------------------------------------------------------------------------------------------------------------


def grid(table: Table, screen: Screen) -> str:
    """The headings and rows, between rules. Sums of rows that follow are bold; bars are where there is room for them."""
    by_column = _texts(table, screen.width)
    widths = _fitting_widths(table.columns, by_column, screen.width)
    room = screen.width - sum(widths) - _GAP * (len(widths) - 1)
    with_bars = room >= (_BAR + 1) * sum(bool(column.bars) for column in table.columns)
    drawn = [_drawn(table, at, *each, screen, with_bars) for at, each in enumerate(zip(by_column, widths, strict=True))]
    bars = (_BAR + 1) * sum(bool(column.bars) for column in table.columns) if with_bars else 0
    rule = "─" * (sum(widths) + _GAP * (len(widths) - 1) + bars)
    heading, *rows = ((" " * _GAP).join(cells).rstrip() for cells in zip(*drawn, strict=True))
    return "\n".join([rule, heading, rule, *rows, rule])


def _drawn(table: Table, at: int, texts: Sequence[str], width: int, screen: Screen, with_bars: bool) -> list[str]:
    """The heading of a column and its cells, each as wide as the others."""
    column = table.columns[at]
    ends = [0 if at else row.end for row in table.rows]
    cells = [
        _padded(cut(text, width, column.cut, 0 if at else _indent_of(text), end), width, column)
        for text, end in zip(texts, ends, strict=True)
    ]
    heading = _padded(column.heading, width, column)
    if screen.has_colours:
        cells = [_weighted(cell, column, is_sum) for cell, is_sum in zip(cells, _are_sums(table.rows, at), strict=True)]
    if not (with_bars and column.bars):
        return [heading, *cells]
    bars = [_bar(row.shown[at].value or 0.0, column.bars, screen) for row in table.rows]
    return [heading + " " * (_BAR + 1), *(f"{cell} {bar}" for cell, bar in zip(cells, bars, strict=True))]


def _padded(text: str, width: int, column: Column) -> str:
    room = " " * (width - _width(text))
    return room + text if column.is_number else text + room


def _width(text: str) -> int:
    """In characters of a terminal, which shows some in the room of two."""
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))


def _are_sums(rows: Sequence[Row], at: int) -> list[bool]:
    """Whether a figure is also spread over rows that follow."""
    deeper = [*(below.depth > row.depth for row, below in pairwise(rows)), False]
    return [is_above and bool(row.sums) and row.sums[at] is not None for row, is_above in zip(rows, deeper, strict=True)]


def _weighted(cell: str, column: Column, is_sum: bool) -> str:
    return in_weight(cell, "bold") if is_sum else in_weight(cell, "faint") if column.is_faint else cell


def _bar(share: float, colour: str, screen: Screen) -> str:
    """In eighths of a character; of what is not nothing, one at least."""
    eighths = min(8 * _BAR, max(round(8 * _BAR * share), int(share > 0)))
    drawn = "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
    return (in_colour(drawn, colour) if drawn and screen.has_colours else drawn) + " " * (_BAR - len(drawn))


def _texts(table: Table, width: int) -> list[list[str]]:
    """Column by column."""
    by_column = [list(column) for column in zip(*(row.texts for row in table.rows), strict=True)]
    by_column[0] = [f"{lines}{row.name}" for lines, row in zip(_branches(table.rows, width), table.rows, strict=True)]
    return by_column


def needed(table: Table, width: int) -> Table:
    """Without columns that may be left out, as long as the others are too wide; at last without all but a name and a figure."""
    sizes = list(map(_narrowest, table.columns, _texts(table, width))) if table.rows else []
    sizes_of = dict(zip((column.key for column in table.columns), sizes, strict=False))
    kept, out = list(table.columns), list[str]()
    while len(kept) > 2 and sum(sizes_of.get(column.key, 0) + _GAP for column in kept) - _GAP > width:
        least_needed = max(column.dispensable for column in kept[1:])
        name = kept[0]
        if not least_needed and name.narrowest is not None and sizes_of[name.key] > _WORD:  # its figures say more
            kept[0], sizes_of[name.key] = replace(name, narrowest=_WORD), _WORD
            continue
        gone = [column for column in kept if column.dispensable == least_needed] if least_needed else kept[-1:]
        out[:0] = [column.heading for column in gone if column.heading]
        kept = [column for column in kept if column not in gone]
    said = [f"No room for: {', '.join(out)}."] if out else []
    keys = [column.key for column in kept]
    some = table.only([column for column in table.columns if column.key in keys])
    return replace(some, columns=kept, remarks=[*table.remarks, *said])


def _narrowest(column: Column, texts: Sequence[str]) -> int:
    """How wide it is at least."""
    size = _widest(column, texts)
    if column.narrowest is None:
        return size
    return min(size, max(column.narrowest, len(column.heading), _SHORTEST + max(map(_indent_of, texts), default=0)))


def _widest(column: Column, texts: Sequence[str]) -> int:
    return max(_width(column.heading), *map(_width, texts))


def _branches(rows: Sequence[Row], width: int) -> list[str]:
    """The lines of a tree: each row hangs below the last shallower one before it, as far as two fifths of the width allow."""
    deepest = max(2, width // 5)
    open_at: dict[int, bool] = {}
    drawn = []
    for row, is_last in zip(rows, _last_of_siblings(rows), strict=True):
        open_at[row.depth] = not is_last
        lines = "".join("│ " if open_at.get(level) else "  " for level in range(1, min(row.indent, deepest)))
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
    spare = {at: widths[at] - _narrowest(each, by_column[at]) for at, each in enumerate(columns) if each.narrowest is not None}
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    while excess > 0 and max(spare.values(), default=0) > 0:
        widest = max(spare, key=lambda at: spare[at])
        widths[widest] -= 1
        spare[widest] -= 1
        excess -= 1
    return widths


def cut(text: str, width: int, where: Cut, indent: int = 0, end: int = 0) -> str:
    """Shorten a text to ``width``, but keep the branches of the tree before it, and as much of its ``end`` as is said."""
    if _width(text) <= width:
        return text
    prefix, text, suffix = text[:indent], text[indent : len(text) - end], text[len(text) - end :]
    room = max(width - indent - _width(suffix) - 1, 1)
    while True:  # once, unless some of the characters are wide
        tail = {"head": room, "tail": 0, "mid": room // 2}[where]
        kept = f"{text[: room - tail]}{_ELLIPSIS}{text[len(text) - tail :]}"
        if room == 1 or indent + _width(kept + suffix) <= width:
            return f"{prefix}{kept}{suffix}"
        room -= 1


# -- totals --------------------------------------------------------------------------------------------------------------


def totals_of(table: Table, width: int) -> str:
    """A small table without rules. A single column of figures is aligned to the left, beside the names."""
    while len(table.columns) > 2 and table.columns[-1].is_number and _width_of(table) > width:
        table = table.only(table.columns[:-1])
    headings = [[column.heading for column in table.columns]] if table.has_headings else []
    sides = ["left"] * 2 if len(table.columns) == 2 else ["right" if column.is_number else "left" for column in table.columns]
    rows = [_wrapped(row.texts, table, width) for row in table.rows]
    text = tabulate([*headings, *rows], tablefmt="plain", disable_numparse=True, colalign=sides)
    return f"{printable(table.title)}\n{text}" if table.title else text


def _width_of(table: Table) -> int:
    """With the name wrapped to a word."""
    columns = list(zip(*(row.texts for row in table.rows), strict=True))
    return _WORD + sum(_GAP + _widest(*each) for each in zip(table.columns[1:], columns[1:], strict=True))


def _wrapped(texts: list[str], table: Table, width: int) -> list[str]:
    """Words at the end of a row, or else its name, wrap within the width; at last what stands in the middle, too."""
    words, name = (0, -1) if table.columns[-1].is_number else (len(texts) - 1, 0)
    sizes = [max(len(row.texts[column]) for row in table.rows) + _GAP for column in range(len(texts))]
    room = width - sum(sizes) + sizes[words]
    if room < _WORD:
        sizes[name] = max(sizes[name] - (_WORD - room), _WORD + _GAP)
        texts = [textwrap.fill(text, sizes[at] - _GAP) if at == name % len(texts) else text for at, text in enumerate(texts)]
        room = _WORD
    return [textwrap.fill(text, room) if at == words else text for at, text in enumerate(texts)]
