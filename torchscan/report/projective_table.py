"""Projective fields as a table, and one layer's in full."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from torchscan.analyses.projective_field import LayerReach, ProjectiveField
from torchscan.analyses.projective_field.projective_field_result import Span
from torchscan.errors import Argument, Give, InputError
from torchscan.report.columns import field_text
from torchscan.report.field_table import LAYER_COLUMN, short_cell
from torchscan.report.make_table import ColumnOf, make_table, number, words
from torchscan.report.table import Table
from torchscan.report.table_rows import NONE, Cell
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def projective_table(
    fields: ProjectiveField, layer: str | None = None, position: Sequence[int] | None = None
) -> Table:
    """Return all layers in short, or each axis of each output of the ``layer`` with this path.

    With a ``position`` of the first input, all layers have the units that it reaches.
    """
    if layer is not None and position is not None:
        raise InputError(
            Argument("position"), " is shown for all layers: leave out ", Give("layer")
        )
    if layer is not None:
        return reach_table(fields[layer])
    at = "a position"
    columns = _COLUMNS_OF_LAYERS
    if position is not None:
        numbers = ", ".join(map(str, position))
        at = f"position ({numbers})"
        columns = (LAYER_COLUMN, _reached_units(position), _UNITS, _BOUND)
    title = f"Units of each layer that {at} of the input reaches"
    return make_table(title, columns, list(fields), noun="layers")


def reach_table(layer: LayerReach) -> Table:
    """Return each axis of each output of a layer."""
    name = layer.path or layer.type_name
    remarks = [f"{operator} counts as reached completely." for operator in _bounds(layer)]
    axes = []
    for output, output_axes in enumerate(layer.outputs):
        axes += [SimpleNamespace(output=output, **axis.to_dict()) for axis in output_axes]
    return make_table(
        f"Projective field at {name}",
        _COLUMNS_OF_AXES,
        axes,
        remarks=remarks,
        noun="axes",
    )


def _reached_units(position: Sequence[int]) -> ColumnOf[LayerReach]:
    """Return the column of the units that a position of the first input reaches."""

    def to_cell(layer: LayerReach) -> Cell:
        spans = layer.reaches(*position) if layer.axes else ()
        texts = map(_span_text, spans)
        return Cell(list(spans), ", ".join(texts))

    return words("reached", "Reached units", to_cell, min_width=16)


def _span_text(span: Span) -> str:
    if not isinstance(span, tuple):
        return span or NONE
    first, last = span
    if first == last:
        return str(first)
    return f"{first}…{last}"


def _bounds(layer: LayerReach) -> list[str]:
    """Return the operators through which more units may be counted than are reached."""
    operators = [reason.operator for axis in layer.axes for reason in axis.reasons]
    return list(dict.fromkeys(operators))


_SIZE = number("size", "Reached", short_cell("size"))
_UNITS = number("units", "Units", short_cell("units"), priority=2)
_UNUSED = number("unused", "Unused", short_cell("unused"), priority=1)
_BOUND = words("bound", "Upper bound by", _bounds, ", ".join, min_width=12, priority=3)
_COLUMNS_OF_LAYERS: Sequence[ColumnOf[LayerReach]] = (LAYER_COLUMN, _SIZE, _UNITS, _UNUSED, _BOUND)

_NOTES = words("notes", "Notes", text=", ".join, min_width=12, priority=2)
_COLUMNS_OF_AXES: Sequence[ColumnOf[SimpleNamespace]] = (
    number("output", "Output"),
    words("input", "Input"),
    number("axis", "Axis"),
    words("status", "Status"),
    number("size", "Reached"),
    number("units", "Units", text=field_text),
    number("unused", "Unused", priority=1),
    _NOTES,
)
