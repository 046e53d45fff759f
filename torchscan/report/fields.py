"""Receptive fields as a table, and one layer's in full."""

from __future__ import annotations

from typing import Any

from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.analyses.receptive_field.result import Short, plain_short
from torchscan.report.columns import field_text, printable
from torchscan.report.sheet import Cell, Heading, Sheet


def field_sheet(fields: ReceptiveField, layer: str | None = None) -> Sheet:
    """All layers in short; of the ``layer`` with this path each axis of each output, with the reasons and notes."""
    return _all_layers(fields) if layer is None else _one_layer(fields[layer])


def _all_layers(fields: ReceptiveField) -> Sheet:
    return Sheet(
        title="Receptive field of a unit of each layer",
        headings=[
            Heading("path", "Layer", is_number=False, narrowest=16),
            Heading("rf", "RF"),
            Heading("stride", "Stride"),
            Heading("padding", "Pad"),
            Heading("why", "Sees everything by", is_number=False, narrowest=12),
        ],
        rows=[_row(each) for each in fields],
    )


def _row(layer: LayerField) -> list[Cell]:
    reasons = dict.fromkeys(reason.operator for axis in layer.axes for reason in axis.reasons)
    repeated = f" ({layer.call + 1})" if layer.call else ""
    name = f"{printable(layer.path or layer.type_name)}{repeated}"
    return [
        Cell(layer.path, name),
        *map(_short, (layer.rf, layer.stride, layer.padding)),
        Cell(list(reasons), ", ".join(reasons)),
    ]


def _short(value: Short) -> Cell:
    plain = plain_short(value)
    return Cell(plain, field_text(plain))


def _one_layer(layer: LayerField) -> Sheet:
    return Sheet(
        title=f"Receptive field of {layer.path or layer.type_name}",
        headings=[
            Heading("output", "Output"),
            Heading("input", "Input", is_number=False),
            Heading("axis", "Axis"),
            Heading("status", "Status", is_number=False),
            Heading("rf", "RF"),
            Heading("stride", "Stride"),
            Heading("padding", "Pad"),
            Heading("starts", "Starts by phase", is_number=False, narrowest=16),
            Heading("notes", "Notes", is_number=False, narrowest=12),
        ],
        rows=[_axis_row(output, axis) for output, axes in enumerate(layer.outputs) for axis in axes],
        remarks=[f"Everything is seen by {operator}." for operator in _reasons(layer)],
    )


def _axis_row(output: int, axis: AxisField) -> list[Cell]:
    plain: dict[str, Any] = axis.as_dict()
    texts = {key: field_text(plain[key]) for key in ("rf", "stride", "padding")}
    starts = " ".join(field_text(each) for each in plain["starts"])
    return [
        Cell(output, str(output)),
        Cell(axis.input, axis.input),
        Cell(axis.axis, str(axis.axis)),
        Cell(axis.status, axis.status),
        *(Cell(plain[key], text) for key, text in texts.items()),
        Cell(plain["starts"], starts),
        Cell(plain["notes"], ", ".join(plain["notes"])),
    ]


def _reasons(layer: LayerField) -> list[str]:
    return list(dict.fromkeys(reason.operator for axis in layer.axes for reason in axis.reasons))
