"""A table in Markdown, as GitHub and most others read it."""

from __future__ import annotations

import re

from torchscan.escapes import printable
from torchscan.report.table import Screen, Table, writes

_INDENT = "&emsp;"
#: what would be taken for markup: of the underscores those that are not inside a word, of the spaces those that would get lost
_MARKUP = re.compile(r"[\\`*{}\[\]<>|~&:@#$]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.|^ | $|(?<= ) ")
#: mentions of people, numbers of issues, formulas: sites look for them after Markdown, when an entity is its sign again
_LINKS = "@#$"


@writes("markdown")
def markdown_of(table: Table, _: Screen) -> str:
    """Tables and paragraphs, in the order of the text format."""
    rows = [_rows(table)] if table.rows else []
    totals = [_titled(each) for each in table.totals]
    return _page(table, [*totals, *rows] if table.totals_first else [*rows, *totals])


@writes("github")
def github_of(table: Table, screen: Screen) -> str:
    """For a comment: the totals come first, and the rows open on a click."""
    if not table.totals or not table.rows:
        return markdown_of(table, screen)
    title = f"{len(table.rows)} {table.noun}"
    rows = f"<details><summary>{escape(title)}</summary>\n\n{_rows(table)}\n\n</details>"
    return _page(table, [*map(_titled, table.totals), rows])


def _page(table: Table, parts: list[str]) -> str:
    return "\n\n".join([*map(escape, table.summary), *parts, *map(escape, table.remarks)])


def _titled(table: Table) -> str:
    return f"**{escape(table.title)}**\n\n{_rows(table)}" if table.title else _rows(table)


def _rows(table: Table) -> str:
    """Columns of numbers are aligned to the right."""
    headings = [escape(column.heading) for column in table.columns]
    rules = ["--:" if column.is_number else ":--" for column in table.columns]
    rows = [
        [_INDENT * row.indent + escape(row.name), *map(escape, row.texts[1:])] for row in table.rows
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows))


def escape(text: str) -> str:
    """Text that is shown as it is written: no markup, no links, no mentions."""
    return _MARKUP.sub(lambda found: _harmless(found[0]), printable(text))


def _harmless(sign: str) -> str:
    return f"<span>{sign}</span>" if sign in _LINKS else f"&#{ord(sign)};"
