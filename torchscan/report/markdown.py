"""A table in Markdown, as GitHub and most others read it."""

from __future__ import annotations

import html
import re

from torchscan.escapes import printable
from torchscan.report.table import Screen, Table, writes

_INDENT = "&emsp;"
#: what Markdown takes for markup; escaped by a backslash, or as HTML if it is that
_MARKUP = r"""
    [*`\[|~]                        # emphasis, code, links and cells
    | (?<![^\W_])_ | _(?![^\W_])    # underscores that are not inside a word
    | \\(?=[ !-/:-@\[-`{-~]|$)      # backslashes that would escape a sign or end a line
    | <(?=[A-Za-z/!?])              # tags
    | &(?=\#?\w+;)                  # entities
    | ^[\#>]                        # headings and quotes
    | \{(?=[{%])                    # templates of site generators
"""
#: names of emoji: ":cat:", ":100:"
_EMOJI = r":(?=(?:100|1234|[\w+-]*[A-Za-z+-][\w+-]*):)"
#: mentions of people, numbers of issues, formulas, addresses and names of emoji: sites look for
#: them after Markdown, when a backslash or an entity is gone; a tag parts them
_MENTION = rf"[@$] | \#(?=\d) | :(?=//) | (?<=www)\. | {_EMOJI}"
#: spaces that would get lost; written as an entity
_SPACE = r"^[ ] | [ ]$ | (?<=[ ])[ ]"
_TO_ESCAPE = re.compile(
    f"(?P<mention>{_MENTION}) | (?P<space>{_SPACE}) | (?P<markup>{_MARKUP})", re.VERBOSE
)
_MENTIONS = re.compile(_MENTION, re.VERBOSE)


@writes("markdown")
def markdown_of(table: Table, _: Screen) -> str:
    """Return tables and paragraphs, in the order of the text format."""
    parts = [_titled(each) for each in table.totals]
    if table.rows:
        parts.insert(len(parts) if table.totals_first else 0, _rows(table))
    return _page(table, parts)


@writes("github")
def github_of(table: Table, screen: Screen) -> str:
    """Return Markdown for a comment: the totals come first, and the rows open on a click."""
    if not table.totals or not table.rows:
        return markdown_of(table, screen)
    title = f"{len(table.rows)} {table.noun}"
    rows = f"<details><summary>{escape_html(title)}</summary>\n\n{_rows(table)}\n\n</details>"
    return _page(table, [*map(_titled, table.totals), rows])


def _page(table: Table, parts: list[str]) -> str:
    return "\n\n".join([*map(escape, table.summary), *parts, *map(escape, table.remarks)])


def _titled(table: Table) -> str:
    return f"**{escape(table.title)}**\n\n{_rows(table)}" if table.title else _rows(table)


def _rows(table: Table) -> str:
    """Return headings and rows, with numbers aligned to the right."""
    headings = [escape(column.heading) for column in table.columns]
    rules = ["--:" if column.is_number else ":--" for column in table.columns]
    lines = [headings, rules]
    for row in table.rows:
        name = _INDENT * row.indent + escape(row.name)
        lines.append([name, *map(escape, row.texts[1:])])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape(text: str) -> str:
    """Return Markdown that shows the text as it is written: no markup, no links, no mentions."""
    return _TO_ESCAPE.sub(_escape_sign, printable(text))


def escape_html(text: str) -> str:
    """Return HTML inside of Markdown, where backslashes have no effect, that shows the text."""
    return _MENTIONS.sub(_part_mention, html.escape(printable(text), quote=False))


def _escape_sign(match: re.Match[str]) -> str:
    if match["mention"]:
        return _part_mention(match)
    if match["space"]:
        return "&#32;"
    sign = match[0]
    return html.escape(sign) if sign in "<&" else f"\\{sign}"


def _part_mention(match: re.Match[str]) -> str:
    return f"<span>{match[0]}</span>"
