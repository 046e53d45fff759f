"""The info dict as a table of layers, and that table in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from torchscan.errors import Give, InputError, Text
from torchscan.report.column_choice import check_columns, check_estimates, usual_columns
from torchscan.report.columns import COLUMNS, DEFAULT_COLUMNS, FIELDS, LayerColumn
from torchscan.report.html import part_of
from torchscan.report.info_data import InfoDict, Layer, Sums, data_of
from torchscan.report.lines import FOLDED, Line, Lines, lines_of
from torchscan.report.remarks import remarks_of, source_of, totals_of
from torchscan.report.table import Column, Cut, Table, check_width
from torchscan.report.table_rows import Cell, Row
from torchscan.wording import write_choices
from torchscan.wrong_arguments import explain_wrong_types

_NAME = Column(key="layer", heading="Layer", is_number=False, min_width=20)


@explain_wrong_types
def info_table(
    info: InfoDict,
    columns: Sequence[str] | None = None,
    truncate: Cut = "mid",
    *,
    fold_repeats: bool | None = None,
) -> Table:
    """Return the layers as a tree, with their own values and the sums over all that they call.

    A selection is a list. With ``fold_repeats``, equal blocks that follow each other are one row,
    and layers without operators are hidden; None: if that saves half of the rows.
    """
    check_columns(columns)
    names = DEFAULT_COLUMNS if columns is None else columns
    data = data_of(info)
    layers = data["layers"]
    is_listed = "selection" in data
    if any(COLUMNS[name].needs for name in names):
        check_estimates(names, layers)
    shown = lines_of(layers, fold_repeats=False if is_listed else fold_repeats)
    written = []
    headings = [_NAME]
    for index, name in enumerate(names):
        column = _write_column(COLUMNS[name], shown.lines, data["overall"], is_listed=is_listed)
        # Columns of one priority are hidden one after the other, the last one first.
        priority = column.heading.priority and 100 * column.heading.priority + index
        headings.append(replace(column.heading, priority=priority))
        written.append(column)

    rows = []
    for index, line in enumerate(shown.lines):
        cells = [column.cells[index] for column in written]
        sums = [column.sums[index] for column in written]
        rows.append(_row(line, cells, sums, is_listed=is_listed))
    columns_shown = [replace(heading, truncate=truncate) for heading in headings]
    remarks = _folding(shown) + remarks_of(data, fields=FIELDS.intersection(names))
    return Table(
        title=f"Layers of {layers[0]['type']}" if layers else "Layers",
        columns=columns_shown,
        rows=rows,
        totals=[totals_of(data)],
        remarks=remarks,
        source=source_of(data["provenance"]),
        noun="layers",
    )


def _folding(shown: Lines) -> list[str]:
    """Return remarks on rows of several layers, and on hidden layers."""
    remarks = []
    if any(line.repeats > 1 for line in shown.lines):
        remarks.append(FOLDED)
    hidden = []
    for name, count in shown.hidden.items():
        hidden.append(f"{name} ×{count}" if count > 1 else name)
    if hidden:
        remarks.append(f"Hidden layers without operators: {', '.join(hidden)}.")
    return remarks


@explain_wrong_types
def format_info(
    info: InfoDict,
    wrap_mode: Cut = "mid",
    receptive_field: bool = False,
    effective_rf_stats: bool = False,
    *,
    columns: Sequence[str] | None = None,
    width: int = 80,
    fold_repeats: bool | None = None,
) -> str:
    """Return the table of layers and, below it, the totals.

    ``receptive_field`` and ``effective_rf_stats`` add columns to the usual ones, as in
    :func:`summary`. ``columns`` are shown beside the layer's name instead. Texts that do not fit
    ``width`` are truncated at ``wrap_mode`` (their head, middle or tail), and columns that still
    have no room are hidden. ``fold_repeats`` as in :func:`summary`.
    """
    check_layout(columns, wrap_mode, width)
    shown = usual_columns(receptive_field, effective_rf_stats) if columns is None else columns
    return info_table(info, shown, wrap_mode, fold_repeats=fold_repeats).write("text", width=width)


def check_layout(columns: Sequence[str] | None, wrap_mode: str, width: int) -> None:
    """Raise an InputError for a layout that does not exist."""
    if wrap_mode not in get_args(Cut):
        raise InputError.of_value("wrap_mode", wrap_mode, _advise_on_wrap_mode(wrap_mode))
    check_width(width)
    check_columns(columns)


def _advise_on_wrap_mode(wrap_mode: object) -> Text:
    """Return what to give instead.

    The argument comes after ``input_shape``, where users give what other functions take there.
    """
    if isinstance(wrap_mode, list | tuple):
        return "give the shapes of several inputs as one list, [(10,), (20,)]"
    if type(wrap_mode).__name__ == "dtype":
        return ("give the type of the inputs by name, ", Give("dtype", wrap_mode))
    if isinstance(wrap_mode, int) and not isinstance(wrap_mode, bool):
        return ("give the depth of the table by name, ", Give("max_depth", wrap_mode))
    return ("choose from ", write_choices(get_args(Cut)))


@explain_wrong_types
def info_part(info: InfoDict, columns: Sequence[str] | None = None) -> str:
    """Return the layers as part of an HTML page, where rows open, close and sort.

    A layer shows the sum over everything that it calls, and its own values in a sorted table.
    """
    shown = _columns_of_a_page(data_of(info)["layers"]) if columns is None else columns
    return part_of(info_table(info, shown, fold_repeats=False))  # its rows open and close


def _columns_of_a_page(layers: Sequence[Layer]) -> Sequence[str]:
    has_fields = any(layer["rf"] is not None for layer in layers)
    has_times = any("time_estimate" in layer for layer in layers)
    columns = [*usual_columns(False, False, has_times), "flops"]
    if has_fields:
        columns.append("rf")
    return columns


# -- rows ----------------------------------------------------------------------------------------


class _WrittenColumn(NamedTuple):
    """A column with its unit, and its cells line by line."""

    heading: Column
    cells: Sequence[Cell]
    #: cells of each layer with all that it calls
    sums: Sequence[Cell | None]


def _write_column(
    column: LayerColumn, lines: Sequence[Line], whole: Sums, *, is_listed: bool
) -> _WrittenColumn:
    parts = [(line.own, whole) for line in lines]
    if not column.is_of_all or is_listed:
        heading, cells = column.write(parts)
        return _WrittenColumn(heading, cells, [None] * len(lines))
    parts += [(line.total, whole) for line in lines if line.total is not line.own]
    heading, cells = column.write(parts)
    own = cells[: len(lines)]
    totals = iter(cells[len(lines) :])
    sums = list(own)
    for index, line in enumerate(lines):
        if line.total is not line.own:
            sums[index] = next(totals)
    return _WrittenColumn(heading, own, sums)


def _row(line: Line, cells: Sequence[Cell], sums: Sequence[Cell | None], *, is_listed: bool) -> Row:
    if is_listed:
        return Row(cells=[Cell(line.full_name, line.full_name), *cells])
    return Row(
        cells=[Cell(line.full_name, line.name), *cells],
        sums=[None, *sums],
        depth=line.own["depth"],
        full_name=line.full_name,
        repeats=line.repeats,
    )
