"""Rows of any kind, written in any format: totals by operator, receptive fields, a table of models."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchscan.errors import InputError
from torchscan.report import latex, markdown
from torchscan.report.columns import printable
from torchscan.report.data import csv_text
from torchscan.report.html import page, page_file
from torchscan.report.text import cut


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its key in data, what people read above it, and how wide it may be at the least if it may be cut."""

    key: str
    text: str
    is_number: bool = True
    narrowest: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, and how it reads."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: what it is of, its columns and rows, and what must be known to read it."""

    title: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    remarks: Sequence[str] = ()

    def write(self, style: str, *, width: int = 80) -> str:
        """The table in a format: one of ``STYLES``."""
        if style not in STYLES:
            raise InputError(f"{style!r} is no format of this: there are {', '.join(STYLES)}")
        return STYLES[style](self, width)

    def __str__(self) -> str:
        """As text."""
        return self.write("text")

    def _repr_html_(self) -> str:
        return html_table(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - a known signature
        printer.text(str(self))

    def texts(self) -> list[list[str]]:
        """What the cells read."""
        return [[printable(cell.text) for cell in row] for row in self.rows]


def _text(sheet: Sheet, width: int) -> str:
    texts = sheet.texts()
    widths = [max([len(each.text), *(len(row[index]) for row in texts)]) for index, each in enumerate(sheet.headings)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for index, heading in enumerate(sheet.headings):
        if heading.narrowest is not None and excess > 0:
            less = min(excess, max(widths[index] - heading.narrowest, 0))
            widths[index], excess = widths[index] - less, excess - less
    cells = [[cut(text, size, "mid") for text, size in zip(row, widths, strict=True)] for row in texts]
    lines = [_line(row, sheet.headings, widths) for row in ([each.text for each in sheet.headings], *cells)]
    rule = "─" * max(map(len, lines))
    remarks = [line for remark in sheet.remarks for line in textwrap.wrap(remark, width)]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, *remarks])


def _line(texts: Sequence[str], headings: Sequence[Heading], widths: Sequence[int]) -> str:
    columns = zip(texts, headings, widths, strict=True)
    return "  ".join(text.rjust(size) if each.is_number else text.ljust(size) for text, each, size in columns).rstrip()


def _markdown(sheet: Sheet, _: int) -> str:
    rows = [[markdown.escape(text) for text in row] for row in sheet.texts()]
    table = markdown.markdown_table([each.text for each in sheet.headings], rows, [each.is_number for each in sheet.headings])
    return "\n\n".join([table, *map(markdown.escape, sheet.remarks)])


def _latex(sheet: Sheet, _: int) -> str:
    rows = [[latex.escape(text) for text in row] for row in sheet.texts()]
    caption = " ".join(map(latex.escape, [f"{sheet.title}.", *sheet.remarks]))
    return latex.latex_table([each.text for each in sheet.headings], rows, [each.is_number for each in sheet.headings], caption)


def _csv(sheet: Sheet, _: int) -> str:
    rows = [[cell.value for cell in row] for row in sheet.rows]
    return csv_text([[each.key for each in sheet.headings], *rows]).rstrip("\n")


def _json(sheet: Sheet, _: int) -> str:
    keys = [each.key for each in sheet.headings]
    rows = [dict(zip(keys, [cell.value for cell in row], strict=True)) for row in sheet.rows]
    return json.dumps({"title": sheet.title, "rows": rows, "remarks": list(sheet.remarks)}, indent=2, allow_nan=False)


def html_table(sheet: Sheet) -> str:
    """The table as a part of a page."""
    head = "".join(_tag("th", each.text, is_number=each.is_number) for each in sheet.headings)
    aligned = [each.is_number for each in sheet.headings]
    rows = [[_tag("td", text, is_number=each) for text, each in zip(row, aligned, strict=True)] for row in sheet.texts()]
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    remarks = "".join(f"<p>{html.escape(text)}</p>" for text in sheet.remarks)
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    return f'<div class="torchscan" data-ready="static"><style>{page_file("table.css")}</style>\n{table}\n{remarks}</div>'


def _html(sheet: Sheet, _: int) -> str:
    return page(f"torchscan: {sheet.title}", f"<h1>{html.escape(sheet.title)}</h1>\n{html_table(sheet)}")


def _tag(name: str, text: str, *, is_number: bool) -> str:
    marked = ' class="number"' if is_number else ""
    return f"<{name}{marked}>{html.escape(text)}</{name}>"


STYLES: Mapping[str, Callable[[Sheet, int], str]] = {
    "text": _text,
    "markdown": _markdown,
    "github": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
    "html": _html,
}
