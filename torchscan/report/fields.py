"""Receptive fields as a table, and one layer's in full."""

from __future__ import annotations

from types import SimpleNamespace

from torchscan.analyses.receptive_field import LayerField, ReceptiveField
from torchscan.analyses.receptive_field.receptive_field_result import Short, plain_short
from torchscan.report.columns import field_text
from torchscan.report.make_table import make_table, number, words
from torchscan.report.table import Cell, Table
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def field_table(fields: ReceptiveField, layer: str | None = None) -> Table:
    """All layers in short, or, for the ``layer`` with this path, each axis of each output with reasons and notes."""
    return _all_layers(fields) if layer is None else layer_table(fields[layer])


def _all_layers(fields: ReceptiveField) -> Table:
    columns = (
        words("path", "Layer", _name, min_width=16),
        number("rf", "RF", lambda layer: _short(layer.rf)),
        number("stride", "Stride", lambda layer: _short(layer.stride), priority=2),
        number("padding", "Pad", lambda layer: _short(layer.padding), priority=3),
        words("why", "Global by", _reasons, ", ".join, min_width=12, priority=1),
    )
    title = "Receptive field of a unit of each layer"
    return make_table(title, columns, list(fields), noun="layers")


def _name(layer: LayerField) -> Cell:
    repeated = f" ({layer.call + 1})" if layer.call else ""
    return Cell(layer.path, f"{layer.path or layer.type_name}{repeated}")


def _short(value: Short) -> Cell:
    plain = plain_short(value)
    return Cell(plain, field_text(plain))


def layer_table(layer: LayerField) -> Table:
    """One layer in full: each axis of each output, with the reasons and notes."""
    name = layer.path or layer.type_name
    axes = [
        SimpleNamespace(output=output, **axis.to_dict())
        for output, axes in enumerate(layer.outputs)
        for axis in axes
    ]
    columns = (
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
    return make_table(
        f"Receptive field of {name}",
        columns,
        axes,
        summary=[f"A unit of {name} sees {field_text(plain_short(layer.rf))} of its input."],
        remarks=[f"The entire input is seen by {operator}." for operator in _reasons(layer)],
        noun="axes",
    )


def _reasons(layer: LayerField) -> list[str]:
    return list(dict.fromkeys(reason.operator for axis in layer.axes for reason in axis.reasons))
