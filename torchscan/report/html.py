"""A table as self-contained HTML: it folds, sorts, and takes the colours of the page around it."""

from __future__ import annotations

import html
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import resources

from torchscan.escapes import printable
from torchscan.report.table import Cell, Column, Row, Screen, Table, writes

_PAGE_STYLE = (
    "body { margin: 2em; font-family: system-ui, sans-serif; } "
    "h1 { margin: 0 0 .8em; font-size: 1.3em; overflow-wrap: anywhere; }"
)


@writes("html")
def html_of(table: Table, _: Screen | None = None) -> str:
    """Return a complete page."""
    return page(table.title, part_of(table))


def page(title: str, *parts: str) -> str:
    """Return a complete document with a heading, light or dark to match the reader's system."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        f'<title>torchscan: {_escape(title)}</title><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{_PAGE_STYLE}</style>"
    )
    body = f"<h1>{_escape(title)}</h1>\n{''.join(parts)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


@cache
def _policy() -> str:
    """Return the content security policy: styles, our script by its hash, and no network."""
    script = b64encode(sha256(page_file("table.js").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'"


def part_of(table: Table) -> str:
    """A part of a page, as notebooks show it. A row shows the sum over everything below it."""
    summary, remarks = (
        "".join(f"<p>{_escape(text)}</p>" for text in texts)
        for texts in (table.summary, table.remarks)
    )
    rows, totals = _rows(table) if table.rows else "", "".join(map(_totals, table.totals))
    ready, script = (
        ("", f"<script>{page_file('table.js')}</script>") if rows else (' data-ready="static"', "")
    )
    return (
        f'<div class="torchscan"{ready}><style>{page_file("table.css")}</style>\n'
        f"{summary}{totals + rows if table.totals_first else rows + totals}\n{remarks}\n{script}</div>"
    )


def _rows(table: Table) -> str:
    largest = [
        _largest(table, at) if each.summable else None for at, each in enumerate(table.columns)
    ]
    body, foot = (
        "\n".join(_row(row, table, largest) for row in table.rows if row.is_total == kind)
        for kind in (False, True)
    )
    below = f"<tfoot>{foot}</tfoot>" if foot else ""
    content = f"{_head(table, has_bars=True)}\n<tbody>{body}</tbody>{below}"
    return f'<div class="scroll"><table class="layers">{content}</table></div>\n'


def _totals(table: Table) -> str:
    caption = f"<caption>{_escape(table.title)}</caption>" if table.title else ""
    head = _head(table) if table.has_headings else ""
    texts = [zip(table.columns, row.texts, strict=True) for row in table.rows]
    body = "".join(
        f"<tr>{''.join(f'<td{_class(each)}>{_escape(text)}</td>' for each, text in row)}</tr>"
        for row in texts
    )
    return f'<table class="totals">{caption}{head}<tbody>{body}</tbody></table>\n'


def _head(table: Table, *, has_bars: bool = False) -> str:
    headings = [
        f"<th{_class(each, has_bars=has_bars)}>{_escape(each.heading)}</th>"
        for each in table.columns
    ]
    return f"<thead><tr>{''.join(headings)}</tr></thead>"


def _row(row: Row, table: Table, largest: list[float | None]) -> str:
    sums = row.sums or [None] * len(row.cells)
    bars = [None] * len(largest) if row.is_total else largest
    cells = zip(row.cells[1:], sums[1:], table.columns[1:], bars[1:], strict=True)
    name, full = _escape(row.name), _escape(row.full_name or row.name)
    label = f'<span class="name" data-name="{name}" data-full="{full}">{name}</span>'
    first = f'<td style="--depth: {row.indent}" data-value="{full}">{label}</td>'
    kind = ' class="best"' if row.is_best else ""
    return (
        f'<tr{kind} data-depth="{row.depth}">{first}{"".join(_cell(*each) for each in cells)}</tr>'
    )


def _cell(own: Cell, total: Cell | None, column: Column, largest: float | None) -> str:
    """The sum, if there is one, with a bar as long as its share of the ``largest``; and its own figure for a sorted list."""
    shown = total or own
    text = _escape(shown.text)
    attributes = f'{_class(column, has_bars=True)} data-value="{_sortable(own, column)}"'
    if largest:
        attributes += f' style="--share: {_share(shown, largest)}"'
        if total is not None:
            attributes += f' data-own="{_escape(own.text)}" data-own-share="{_share(own, largest)}"'
            attributes += f' data-total="{text}" data-total-share="{_share(total, largest)}"'
    return f"<td{attributes}>{text}</td>"


def _share(cell: Cell, largest: float) -> str:
    return f"{(cell.value or 0) / largest:.3f}"


def _class(column: Column, *, has_bars: bool = False) -> str:
    """Return the class of a cell: bars stand beside numbers that can be added up."""
    if not column.is_number:
        return ""
    return ' class="number bar"' if has_bars and column.summable else ' class="number"'


def _sortable(cell: Cell, column: Column) -> str:
    """Return the value to sort by: a number, a text or nothing; of several numbers the first."""
    value = cell.value
    if not column.is_number:
        return "" if value is None else _escape(cell.text)
    while isinstance(value, list | dict):
        value = next(iter(value.values() if isinstance(value, dict) else value), None)
    return "" if value is None else "Infinity" if value == "global" else _escape(str(value))


def _largest(table: Table, at: int) -> float:
    """The largest below the root, which would dwarf everything; in a list, the largest of all rows."""
    inner = (
        [row for row in table.rows if row.depth]
        or [row for row in table.rows if not row.is_total]
        or table.rows
    )
    return (
        max(
            (
                cell.value or 0
                for row in inner
                for cell in (row.sums or row.cells)[at : at + 1]
                if cell
            ),
            default=0,
        )
        or 1
    )


def _escape(text: str) -> str:
    return html.escape(printable(text))


@cache
def page_file(name: str) -> str:
    """Return a style sheet or script of the package."""
    return (
        resources.files("torchscan.report")
        .joinpath("page", name)
        .read_text(encoding="utf-8")
        .strip()
    )
