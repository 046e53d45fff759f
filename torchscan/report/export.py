"""The info dict as a table of layers, and that table in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from torchscan.errors import InputError
from torchscan.report.columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    FIELDS,
    LayerColumn,
    check_columns,
    full_name_of,
    name_of,
    usual_columns,
)
from torchscan.report.html import page, part_of
from torchscan.report.info_data import SUMS, InfoDict, Layer, data_of
from torchscan.report.latex import latex_of
from torchscan.report.remarks import remarks_of, source_of, totals_of
from torchscan.report.table import Cell, Column, Cut, Row, Table

_NAME = Column(key="layer", heading="Layer", is_number=False, narrowest=16)


def info_table(info: InfoDict, columns: Sequence[str] | None = None, cut: Cut = "mid") -> Table:
    """The layers as a tree, each with its own figures and the sums over everything it calls; a selection is a list."""
    check_columns(columns)
    data, names = data_of(info), DEFAULT_COLUMNS if columns is None else columns
    chosen = {name: COLUMNS[name] for name in names}
    layers = data["layers"]
    return Table(
        title=f"Layers of {layers[0]['type']}" if layers else "Layers",
        columns=[replace(each, cut=cut) for each in (_NAME, *(column.column for column in chosen.values()))],
        rows=_listed(layers, chosen) if "selection" in data else _as_tree(layers, chosen),
        totals=[totals_of(data)],
        remarks=remarks_of(data, with_fields=not FIELDS.isdisjoint(names)),
        source=source_of(data["provenance"]),
        noun="layers",
    )


def format_info(
    info: InfoDict,
    wrap_mode: Cut = "mid",
    receptive_field: bool = False,
    effective_rf_stats: bool = False,
    *,
    columns: Sequence[str] | None = None,
    width: int = 80,
) -> str:
    """The table of layers and, below it, the totals.

    ``receptive_field`` and ``effective_rf_stats`` add columns to the usual ones, as in :func:`summary`. ``columns`` are those
    to show beside the layer's name instead. What does not fit ``width`` is cut at ``wrap_mode``:
    the head of a text, its middle or its tail.
    """
    check_layout(columns, wrap_mode, width)
    shown = usual_columns(receptive_field, effective_rf_stats) if columns is None else columns
    return info_table(info, shown, wrap_mode).write("text", width=width)


def check_layout(columns: Sequence[str] | None, wrap_mode: str, width: int) -> None:
    """Refuse a layout that does not exist."""
    if wrap_mode not in get_args(Cut):
        raise InputError(f"wrap_mode is {wrap_mode!r}: choose one of {', '.join(get_args(Cut))}")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise InputError(f"width is {width!r}: give a number of characters")
    check_columns(columns)


def to_markdown(info: InfoDict, columns: Sequence[str] | None = None, *, details: bool = False) -> str:
    """The layers, the totals and the remarks in Markdown.

    ``columns`` as in :func:`format_info`. With ``details`` the totals come first and the layers open on a click, as suits a
    comment on GitHub.
    """
    return info_table(info, columns).write("github" if details else "markdown")


def to_latex(
    info: InfoDict,
    columns: Sequence[str] | None = None,
    *,
    caption: str | None = None,
    label: str | None = None,
    long: bool | None = None,
) -> str:
    r"""The layers and totals as a LaTeX table; needs ``\usepackage{booktabs}``.

    Args:
        info: what ``crawl_module`` returned.
        columns: as in :func:`format_info`.
        caption: LaTeX (``\%`` for a per cent sign) to stand before what is always said: convention, inputs and versions. By
            default what the table shows.
        label: what ``\ref`` calls it.
        long: a table over several pages, which also needs ``\usepackage{longtable}``; by default from 40 layers on.

    """
    return latex_of(info_table(info, columns), caption=caption, label=label, long=long)


def to_html(info: InfoDict, columns: Sequence[str] | None = None, *, standalone: bool = False) -> str:
    """The layers as a table that opens, closes and sorts, with the totals and the remarks; no network, no server.

    ``columns`` as in :func:`format_info`, by default a few more. A closed layer shows the sum over everything it calls. With
    ``standalone`` it is a page, else a part of one, as notebooks show it.
    """
    layers = data_of(info)["layers"]
    part = part_of(info_table(info, _columns_of_a_page(layers) if columns is None else columns))
    return page(f"torchscan: {layers[0]['type']}" if layers else "torchscan", part) if standalone else part


def _columns_of_a_page(layers: Sequence[Layer]) -> Sequence[str]:
    has_fields = any(layer["rf"] is not None for layer in layers)
    return [*DEFAULT_COLUMNS, "flops", *(["rf"] if has_fields else [])]


# -- rows ----------------------------------------------------------------------------------------------------------------


def _listed(layers: Sequence[Layer], columns: Mapping[str, LayerColumn]) -> list[Row]:
    names = [full_name_of(layer) for layer in layers]
    return [
        Row(cells=[Cell(name, name), *(column.cell(layer) for column in columns.values())])
        for name, layer in zip(names, layers, strict=True)
    ]


def _as_tree(layers: Sequence[Layer], columns: Mapping[str, LayerColumn]) -> list[Row]:
    return [_row(layer, total, columns) for layer, total in zip(layers, _with_all_below(layers), strict=True)]


def _row(layer: Layer, total: Layer, columns: Mapping[str, LayerColumn]) -> Row:
    full = full_name_of(layer)
    return Row(
        cells=[Cell(full, name_of(layer)), *(column.cell(layer) for column in columns.values())],
        sums=[None, *(column.cell(total) if column.column.adds_up else None for column in columns.values())],
        depth=layer["depth"],
        full_name=full,
    )


def _with_all_below(layers: Sequence[Layer]) -> list[Layer]:
    """A copy of each layer, with sums over itself and everything it calls."""
    totals = [layer.copy() for layer in layers]
    for position, parent in _parents(layers):
        for key in SUMS:
            totals[parent][key] += totals[position][key]
    return totals


def _parents(layers: Sequence[Layer]) -> Iterator[tuple[int, int]]:
    """Positions of each layer and its parent, last first, so that children are summed before their parents."""
    above: list[int] = []
    found = []
    for position, layer in enumerate(layers):
        del above[layer["depth"] :]
        if above:
            found.append((position, above[-1]))
        above.append(position)
    return reversed(found)
