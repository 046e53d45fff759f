"""The info dict as a table of layers, and that table in every format."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple, cast, get_args

from torchscan.errors import Give, InputError, Text
from torchscan.report.columns import COLUMNS, DEFAULT_COLUMNS, FIELDS, LayerColumn
from torchscan.report.html import part_of
from torchscan.report.info_data import InfoData, InfoDict, Layer, Sums, data_of
from torchscan.report.lines import Line, lines_of
from torchscan.report.remarks import remarks_of, source_of, totals_of
from torchscan.report.table import Column, Cut, Table
from torchscan.report.table_rows import Cell, Row
from torchscan.terminal import check_width
from torchscan.wording import write_choices
from torchscan.wrong_arguments import explain_wrong_types

_NAME = Column(key="layer", heading="Layer", is_number=False, min_width=20)
#: the default columns if there is a device
_WITH_TIMES = (*DEFAULT_COLUMNS[:-1], "latency", "latency_share")


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
    if columns is None:
        columns = DEFAULT_COLUMNS
    check_columns(columns)
    data = data_of(info)
    check_estimates(columns, data["layers"])
    return layer_table(data, columns, truncate, fold_repeats)


def layer_table(
    info: InfoDict, columns: Sequence[str], truncate: Cut, fold_repeats: bool | None
) -> Table:
    """Return the table of a current-version info dict that contains the values of all columns."""
    data = cast("InfoData", info)
    layers = data["layers"]
    is_listed = "selection" in data
    shown = lines_of(layers, fold_repeats=False if is_listed else fold_repeats)
    headings = [replace(_NAME, truncate=truncate)]
    written = []
    for index, name in enumerate(columns):
        column = _write_column(COLUMNS[name], shown.lines, data["overall"], is_listed=is_listed)
        # Columns of one priority are hidden one after the other, the last one first.
        priority = column.heading.priority and 100 * column.heading.priority + index
        headings.append(replace(column.heading, priority=priority, truncate=truncate))
        written.append(column)
    return Table(
        title=f"Layers of {layers[0]['type']}" if layers else "Layers",
        columns=headings,
        rows=_make_rows(shown.lines, written, is_listed=is_listed),
        totals=[totals_of(data)],
        remarks=[*shown.remarks, *remarks_of(data, fields=FIELDS.intersection(columns))],
        source=source_of(data["provenance"]),
        noun="layers",
    )


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
    if columns is not None:
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


# -- columns -------------------------------------------------------------------------------------


def usual_columns(
    receptive_field: bool, effective_rf_stats: bool, has_device: bool = False
) -> list[str]:
    """Return the default columns and those asked for, before the bars."""
    *names, bars = _WITH_TIMES if has_device else DEFAULT_COLUMNS
    if receptive_field:
        names.append("rf")
    if effective_rf_stats:
        names += ["s", "p"]
    return [*names, bars]


def needed_for(columns: Sequence[str], *, has_device: bool) -> dict[str, bool]:
    """Return what columns need besides counts, as arguments of :meth:`Scan.describe`.

    Raise an InputError if a column of times is given without a device.
    """
    needs = [COLUMNS[name].needs for name in columns]
    has_times = "time_estimate" in needs
    if has_times and not has_device:
        name = columns[needs.index("time_estimate")]
        raise InputError(
            f"the column {name!r} needs a device: give ",
            Give("device", "RTX 4090"),
            ", for example (`torchscan devices` lists all)",
        )
    return {
        "receptive_field": not FIELDS.isdisjoint(columns),
        "memory": "activation_bytes" in needs or "peak_bytes" in needs,
        "times": has_times,
    }


def check_columns(columns: Sequence[str]) -> None:
    """Refuse a column that does not exist."""
    if isinstance(columns, str):
        names = [each for each in re.split(r"[,\s]+", columns) if each] or ["params"]
        raise InputError.of_value(
            "columns", columns, "give a list of names, ", Give("columns", names)
        )
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), COLUMNS, 1)
        meant = f"did you mean {near[0]!r}? Choose from" if near else "choose from"
        raise InputError(f"{unknown[0]!r} is not a column: {meant} {', '.join(COLUMNS)}")


def check_estimates(columns: Sequence[str], layers: Sequence[Layer]) -> None:
    """Refuse columns of estimates that an info dict does not have."""
    for name in columns:
        needs = COLUMNS[name].needs
        if not needs or not layers or needs in layers[0]:
            continue
        how = Give("memory", True)
        if needs == "time_estimate":
            how = Give("device", "RTX 4090")
        raise InputError(f"these layers have no {name!r}: give crawl_module ", how)


# -- rows ----------------------------------------------------------------------------------------


class _WrittenColumn(NamedTuple):
    """A column with its unit, and its cells line by line."""

    heading: Column
    cells: Sequence[Cell]
    #: cells of each layer with all that it calls
    sums: Sequence[Cell | None]


def _write_column(
    column: LayerColumn, lines: Sequence[Line], overall: Sums, *, is_listed: bool
) -> _WrittenColumn:
    own = [line.own for line in lines]
    if not column.is_of_all or is_listed:
        heading, cells = column.write(own, overall)
        return _WrittenColumn(heading, cells, [None] * len(lines))

    callers = [index for index, line in enumerate(lines) if line.total is not line.own]
    totals = [lines[index].total for index in callers]
    heading, cells = column.write([*own, *totals], overall)
    sums = cells[: len(own)]
    for index, cell in zip(callers, cells[len(own) :], strict=True):
        sums[index] = cell
    return _WrittenColumn(heading, cells[: len(own)], sums)


def _make_rows(
    lines: Sequence[Line], columns: Sequence[_WrittenColumn], *, is_listed: bool
) -> list[Row]:
    if is_listed:
        names = [Cell(line.full_name, line.full_name) for line in lines]
    else:
        names = [Cell(line.full_name, line.name) for line in lines]
    cells_by_row = zip(names, *[column.cells for column in columns], strict=True)
    if is_listed:
        return [Row(cells=cells) for cells in cells_by_row]

    rows = []
    sums_by_row = zip(repeat(None), *[column.sums for column in columns], strict=False)
    for line, cells, sums in zip(lines, cells_by_row, sums_by_row, strict=False):
        row = Row(
            cells=cells,
            sums=sums,
            depth=line.own["depth"],
            full_name=line.full_name,
            repeats=line.repeats,
        )
        rows.append(row)
    return rows
