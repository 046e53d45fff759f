"""Receptive fields as a table, and one layer's in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torchscan.analyses.receptive_field import LayerField, ReceptiveField
from torchscan.analyses.receptive_field.short_results import plain_short
from torchscan.report.columns import field_text
from torchscan.report.make_table import ColumnOf, make_table, number, words
from torchscan.report.sentence_formats import name_call
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def field_table(fields: ReceptiveField, layer: str | None = None) -> Table:
    """Return all layers in short, or each axis of each output of the ``layer`` with this path."""
    if layer is not None:
        return axis_table(fields[layer])
    title = "Receptive field of a unit of each layer"
    return make_table(title, _COLUMNS_OF_LAYERS, list(fields), noun="layers")


def axis_table(layer: LayerField) -> Table:
    """Return each axis of each output of a layer, with the reasons and notes."""
    name = layer.path or layer.type_name
    axes = []
    for output, output_axes in enumerate(layer.outputs):
        axes += [SimpleNamespace(output=output, **axis.to_dict()) for axis in output_axes]
    field = field_text(plain_short(layer.rf))
    return make_table(
        f"Receptive field of {name}",
        _COLUMNS_OF_AXES,
        axes,
        summary=[f"A unit of {name} sees {field} of its input."],
        remarks=[f"The entire input is seen by {operator}." for operator in _reasons(layer)],
        noun="axes",
    )


def _reasons(layer: LayerField) -> list[str]:
    """Return the operators that see the entire input."""
    operators = [reason.operator for axis in layer.axes for reason in axis.reasons]
    return list(dict.fromkeys(operators))


def short_cell(name: str) -> Callable[[Any], Cell]:
    """Return a function for the cell of a property of the field."""

    def to_cell(layer: Any) -> Cell:
        plain = plain_short(getattr(layer, name))
        return Cell(plain, field_text(plain))

    return to_cell


#: of results that have a path, a type and a call
LAYER_COLUMN: ColumnOf[Any] = words(
    "path",
    "Layer",
    lambda layer: Cell(layer.path, name_call(layer.path or layer.type_name, layer.call)),
    min_width=16,
)
_COLUMNS_OF_LAYERS: Sequence[ColumnOf[LayerField]] = (
    LAYER_COLUMN,
    number("rf", "RF", short_cell("rf")),
    number("stride", "Stride", short_cell("stride"), priority=2),
    number("padding", "Pad", short_cell("padding"), priority=3),
    words("why", "Global by", _reasons, ", ".join, min_width=12, priority=1),
)
_COLUMNS_OF_AXES: Sequence[ColumnOf[SimpleNamespace]] = (
    number("output", "Output"),
    words("input", "Input"),
    number("axis", "Axis"),
    words("status", "Status"),
    number("rf", "RF", text=field_text),
    number("stride", "Stride", text=field_text),
    number("padding", "Pad", text=field_text),
    words(
        "starts",
        "Starts by phase",
        text=lambda starts: " ".join(map(field_text, starts)),
        min_width=16,
        priority=3,
    ),
    words("notes", "Notes", text=", ".join, min_width=12, priority=2),
)
