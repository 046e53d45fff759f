"""Tables as self-contained HTML, which folds, sorts, and takes the colors of the page around it."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources

from torchscan.escapes import printable
from torchscan.report.table import Column, Screen, Table, writes
from torchscan.report.table_rows import Cell, Row

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
        f"<title>torchscan: {_escape(title)}</title>"
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{_PAGE_STYLE}</style>"
    )
    body = f"<h1>{_escape(title)}</h1>\n{''.join(parts)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


@cache
def _policy() -> str:
    """Return the content security policy: styles, our script by its hash, and no network."""
    script = b64encode(sha256(page_file("table.js").encode()).digest()).decode()
    directives = [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{script}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(directives)


def part_of(table: Table) -> str:
    """Return a part of a page, as notebooks show it. A row shows the sum over all rows below it.

    The title is shown only if a file has nothing but this part.
    """
    rows = _write_rows(table) if table.rows else ""
    totals = "".join(map(_write_totals, table.totals))
    ready, script = ' data-ready="static"', ""
    if rows:
        ready, script = "", f"<script>{page_file('table.js')}</script>"
    blocks = [totals, rows] if table.totals_first else [rows, totals]
    sheets = f"<style>{page_file('part.css')}\n{page_file('table.css')}</style>"
    return (
        f'<div class="torchscan"{ready} data-title="{_escape(table.title)}">{sheets}\n'
        f"{_write_paragraphs(table.summary)}{''.join(blocks)}\n"
        f"{_write_paragraphs(table.remarks)}\n{script}</div>"
    )


def _write_paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{_escape(text)}</p>" for text in texts)


def _write_rows(table: Table) -> str:
    largest: list[float | None] = []
    for index, column in enumerate(table.columns):
        largest.append(_largest(table, index) if column.summable else None)
    body: list[str] = []
    foot: list[str] = []
    for row in table.rows:
        part = foot if row.is_total else body
        part.append(_write_row(row, table, largest))
    below = ""
    if foot:
        lines = "\n".join(foot)
        below = f"<tfoot>{lines}</tfoot>"
    above = "\n".join(body)
    content = f"{_write_head(table, has_bars=True)}\n<tbody>{above}</tbody>{below}"
    return f'<div class="scroll"><table class="layers">{content}</table></div>\n'


def _write_totals(table: Table) -> str:
    caption = f"<caption>{_escape(table.title)}</caption>" if table.title else ""
    head = _write_head(table) if table.has_headings else ""
    rows = []
    for row in table.rows:
        cells = zip(table.columns, row.texts, strict=True)
        written = [f"<td{_class(column)}>{_escape(text)}</td>" for column, text in cells]
        rows.append(f"<tr>{''.join(written)}</tr>")
    return f'<table class="totals">{caption}{head}<tbody>{"".join(rows)}</tbody></table>\n'


def _write_head(table: Table, *, has_bars: bool = False) -> str:
    headings = [
        f"<th{_class(each, has_bars=has_bars)}>{_escape(each.heading)}</th>"
        for each in table.columns
    ]
    return f"<thead><tr>{''.join(headings)}</tr></thead>"


def _write_row(row: Row, table: Table, largest: Sequence[float | None]) -> str:
    sums = row.sums or [None] * len(row.cells)
    bars = [None] * len(largest) if row.is_total else largest
    cells = zip(row.cells[1:], sums[1:], table.columns[1:], bars[1:], strict=True)
    written = [_write_cell(*each) for each in cells]
    name, full = _escape(row.name), _escape(row.full_name or row.name)
    label = f'<span class="name" data-name="{name}" data-full="{full}">{name}</span>'
    first = f'<td style="--depth: {row.indent}" data-value="{full}">{label}</td>'
    kind = ' class="best"' if row.is_best else ""
    return f'<tr{kind} data-depth="{row.depth}">{first}{"".join(written)}</tr>'


def _write_cell(own: Cell, total: Cell | None, column: Column, largest: float | None) -> str:
    """Return a cell with the sum, if there is one, and a bar as long as its share of the largest.

    A sorted list shows the own value of the row.
    """
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
        values = value.values() if isinstance(value, dict) else value
        value = next(iter(values), None)
    if value is None:
        return ""
    return "Infinity" if value == "global" else _escape(str(value))


def _largest(table: Table, index: int) -> float:
    """Return the largest value below the root, which would dwarf all others, or else of all rows.

    It is never 0, so that shares of it can be computed.
    """
    deep = [row for row in table.rows if row.depth]
    parts = [row for row in table.rows if not row.is_total]
    values = []
    for row in deep or parts or table.rows:
        cell = (row.sums or row.cells)[index]
        if cell is not None:
            values.append(cell.value or 0)
    return max(values, default=0) or 1


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
