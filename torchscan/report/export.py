"""The info dict as a table of layers, and that table in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar, get_args

from torchscan.errors import Give, InputError, Text, write_choices
from torchscan.report.columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    FIELDS,
    LayerColumn,
    check_columns,
    check_estimates,
    usual_columns,
)
from torchscan.report.html import part_of
from torchscan.report.info_data import InfoDict, Layer, Sums, data_of
from torchscan.report.lines import FOLDED, Line, Lines, lines_of
from torchscan.report.remarks import remarks_of, source_of, totals_of
from torchscan.report.table import Cell, Column, Cut, Row, Table, check_width
from torchscan.wrong_arguments import explain_wrong_types

C = TypeVar("C")
_NAME = Column(key="layer", heading="Layer", is_number=False, min_width=20)


@explain_wrong_types
def info_table(
    info: InfoDict,
    columns: Sequence[str] | None = None,
    truncate: Cut = "mid",
    *,
    fold_repeats: bool | None = None,
) -> Table:
    """The layers as a tree, each with its own figures and the sums over everything it calls; a selection is a list.

    With ``fold_repeats`` equal blocks that follow each other are one row, and layers that do nothing are left out; None: where
    that saves half of the rows.
    """
    check_columns(columns)
    data, names = data_of(info), DEFAULT_COLUMNS if columns is None else columns
    layers, is_listed = data["layers"], "selection" in data
    check_estimates(names, layers)
    shown = lines_of(layers, fold_repeats=False if is_listed else fold_repeats)
    headings, cells, sums = _written(
        [COLUMNS[name] for name in names], shown.lines, data["overall"], truncate, is_listed
    )
    return Table(
        title=f"Layers of {layers[0]['type']}" if layers else "Layers",
        columns=[replace(_NAME, truncate=truncate), *headings],
        rows=[
            _row(*each, is_listed=is_listed) for each in zip(shown.lines, cells, sums, strict=True)
        ],
        totals=[totals_of(data)],
        remarks=[*_folding(shown), *remarks_of(data, fields=FIELDS.intersection(names))],
        source=source_of(data["provenance"]),
        noun="layers",
    )


def _folding(shown: Lines) -> list[str]:
    is_folded = any(line.repeats > 1 for line in shown.lines)
    hidden = ", ".join(
        f"{name} ×{count}" if count > 1 else name for name, count in shown.hidden.items()
    )
    return [
        *([FOLDED] if is_folded else []),
        *([f"Hidden layers without operators: {hidden}."] if hidden else []),
    ]


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
    """The table of layers and, below it, the totals.

    ``receptive_field`` and ``effective_rf_stats`` add columns to the usual ones, as in :func:`summary`. ``columns`` are those
    to show beside the layer's name instead. What does not fit ``width`` is cut at ``wrap_mode`` (the head of a text, its middle
    or its tail), and columns that still find no room are left out. ``fold_repeats`` as in :func:`summary`.
    """
    check_layout(columns, wrap_mode, width)
    shown = usual_columns(receptive_field, effective_rf_stats) if columns is None else columns
    return info_table(info, shown, wrap_mode, fold_repeats=fold_repeats).write("text", width=width)


def check_layout(columns: Sequence[str] | None, wrap_mode: str, width: int) -> None:
    """Refuse a layout that does not exist."""
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
    return [*usual_columns(False, False, has_times), "flops", *(["rf"] if has_fields else [])]


# -- rows ----------------------------------------------------------------------------------------------------------------


def _written(
    columns: Iterable[LayerColumn], lines: Sequence[Line], whole: Sums, cut: Cut, is_listed: bool
) -> tuple[list[Column], list[list[Cell]], list[list[Cell | None]]]:
    """Each column with its unit, and line by line the cells of the layers and those of all that they call."""
    headings, cells, sums = [], [], []
    for place, each in enumerate(columns):
        totals = [line.total for line in lines] if each.is_of_all and not is_listed else []
        column, found = each.written([*(line.own for line in lines), *totals], whole)
        grade = (
            column.priority and 100 * column.priority + place
        )  # one after the other, the last first
        headings.append(replace(column, truncate=cut, priority=grade))
        cells.append(found[: len(lines)])
        sums.append(found[len(lines) :] if totals else [None] * len(lines))
    return headings, _turned(cells, len(lines)), _turned(sums, len(lines))


def _turned(by_column: Sequence[Sequence[C]], lines: int) -> list[list[C]]:
    return [[column[number] for column in by_column] for number in range(lines)]


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
