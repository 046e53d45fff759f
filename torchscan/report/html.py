"""The table as HTML that needs nothing else: it opens, sorts, and takes the colours of the page that it stands in."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources

from torchscan.report.columns import DEFAULT_COLUMNS, FIELDS, Column, chosen_columns, full_name_of, name_of
from torchscan.report.info import COST_SUMS, PARAMETER_SUMS, InfoDict, Layer
from torchscan.report.remarks import remarks_of, totals_of


def to_html(info: InfoDict, columns: Sequence[str] | None = None, *, standalone: bool = False) -> str:
    """The layers as a table that opens, closes and sorts, with the totals and the remarks; no network, no server.

    ``columns`` as in :func:`format_info`, by default a few more. A closed layer shows the sum of all that it calls. With
    ``standalone`` it is a page, else a part of one, as notebooks show it.
    """
    part = _part(info, chosen_columns(_default_columns(info) if columns is None else columns))
    return page(f"torchscan: {info['layers'][0]['type']}" if info["layers"] else "torchscan", part) if standalone else part


def page(title: str, *parts: str) -> str:
    """A whole document, light or dark as its reader's system is."""
    head = (
        f'<meta charset="utf-8"><title>{html.escape(title)}</title><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark"><style>body { margin: 2em; }</style>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{"".join(parts)}\n</body></html>\n'


def _default_columns(info: InfoDict) -> Sequence[str]:
    has_fields = any(layer["rf"] is not None for layer in info["layers"])
    return [*DEFAULT_COLUMNS, "flops", *(["rf"] if has_fields else [])]


def _part(info: InfoDict, columns: Mapping[str, Column]) -> str:
    is_tree = "selection" not in info
    totals = _with_all_below(info["layers"]) if is_tree else info["layers"]
    largest = {key: _largest(column, totals) for key, column in columns.items() if column.adds_up}
    headings = "".join(f"<th{_class(each)}>{html.escape(each.heading)}</th>" for each in columns.values())
    rows = "\n".join(_row(*pair, columns, largest, is_tree) for pair in zip(info["layers"], totals, strict=True))
    figures = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="number">{html.escape(text)}</td></tr>' for name, text in totals_of(info)
    )
    remarks = remarks_of(info, with_fields=not FIELDS.isdisjoint(columns))
    return (
        f'<div class="torchscan" data-tree="{"yes" if is_tree else "no"}"><style>{page_file("table.css")}</style>\n'
        f'<div class="scroll"><table class="layers"><thead><tr>{headings}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n'
        f'<table class="totals"><tbody>{figures}</tbody></table>\n'
        f"{''.join(f'<p>{html.escape(text)}</p>' for text in remarks)}\n"
        f"<script>{page_file('table.js')}</script></div>"
    )


def _row(layer: Layer, total: Layer, columns: Mapping[str, Column], largest: Mapping[str, int], is_tree: bool) -> str:
    cells = "".join(_cell(layer, total, each, largest.get(key)) for key, each in columns.items() if key != "layer")
    name, full = html.escape(name_of(layer)), html.escape(full_name_of(layer))
    shown, depth = (name, layer["depth"]) if is_tree else (full, 0)
    label = f'<span class="name" data-name="{shown}" data-full="{full}">{shown}</span>'
    return f'<tr data-depth="{depth}"><td style="--depth: {depth}" data-value="{full}">{label}</td>{cells}</tr>'


def _cell(layer: Layer, total: Layer, column: Column, largest: int | None) -> str:
    """With a bar as long as its share of the ``largest``; what adds up also with its total, to show while it is closed."""
    own = html.escape(column.text(layer))
    attributes = f'{_class(column)} data-value="{_sortable(column, layer)}"'
    if largest is not None:
        share, total_share = (f"{100 * column.value(each) / largest:.1f}%" for each in (layer, total))
        attributes += f' style="--share: {share}" data-own="{own}" data-own-share="{share}"'
        attributes += f' data-total="{html.escape(column.text(total))}" data-total-share="{total_share}"'
    return f"<td{attributes}>{own}</td>"


def _class(column: Column) -> str:
    return ' class="number"' if column.is_number else ""


def _sortable(column: Column, layer: Layer) -> str:
    """What the script orders by: a number, a text, or nothing. Of several numbers the first."""
    value = column.value(layer)
    if not column.is_number:
        return "" if value is None else html.escape(column.text(layer))
    while isinstance(value, list | dict):
        value = next(iter(value.values() if isinstance(value, dict) else value), None)
    return "" if value is None else "Infinity" if value == "global" else html.escape(str(value))


def _largest(column: Column, totals: Sequence[Layer]) -> int:
    """Of all but the model, beside which everything is small."""
    return max((column.value(layer) for layer in totals if layer["depth"]), default=0) or 1


def _with_all_below(layers: Sequence[Layer]) -> list[Layer]:
    """For each layer one with the sums of itself and of all that it calls."""
    totals = [dict(layer) for layer in layers]
    for position, parent in _parents(layers):
        for key in (*PARAMETER_SUMS, *COST_SUMS):
            totals[parent][key] += totals[position][key]
    return totals


def _parents(layers: Sequence[Layer]) -> Iterator[tuple[int, int]]:
    """Each layer with the one above it, by position, the last first: what is below is summed before."""
    above: list[int] = []
    found = []
    for position, layer in enumerate(layers):
        del above[layer["depth"] :]
        if above:
            found.append((position, above[-1]))
        above.append(position)
    return reversed(found)


@cache
def page_file(name: str) -> str:
    """A style or script of ours."""
    return resources.files("torchscan.report").joinpath("page", name).read_text(encoding="utf-8").strip()
