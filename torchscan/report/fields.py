"""Receptive fields as a table, and one layer's in full."""

from __future__ import annotations

from typing import Any

from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.analyses.receptive_field.receptive_field_result import Short, plain_short
from torchscan.report.columns import field_text
from torchscan.report.table import Cell, Column, Row, Table
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def field_table(fields: ReceptiveField, layer: str | None = None) -> Table:
    """All layers in short, or, for the ``layer`` with this path, each axis of each output with reasons and notes."""
    return _all_layers(fields) if layer is None else layer_table(fields[layer])


def _all_layers(fields: ReceptiveField) -> Table:
    return Table(
        title="Receptive field of a unit of each layer",
        columns=[
            Column(key="path", heading="Layer", is_number=False, min_width=16),
            Column(key="rf", heading="RF"),
            Column(key="stride", heading="Stride", priority=2),
            Column(key="padding", heading="Pad", priority=3),
            Column(
                key="why",
                heading="Sees everything by",
                is_number=False,
                min_width=12,
                priority=1,
            ),
        ],
        rows=[_row(each) for each in fields],
        noun="layers",
    )


def _row(layer: LayerField) -> Row:
    repeated = f" ({layer.call + 1})" if layer.call else ""
    reasons = _reasons(layer)
    cells = [
        Cell(layer.path, f"{layer.path or layer.type_name}{repeated}"),
        *map(_short, (layer.rf, layer.stride, layer.padding)),
        Cell(reasons, ", ".join(reasons)),
    ]
    return Row(cells=cells)


def _short(value: Short) -> Cell:
    plain = plain_short(value)
    return Cell(plain, field_text(plain))


def layer_table(layer: LayerField) -> Table:
    """One layer in full: each axis of each output, with the reasons and notes."""
    return Table(
        title=f"Receptive field of {layer.path or layer.type_name}",
        columns=[
            Column(key="output", heading="Output"),
            Column(key="input", heading="Input", is_number=False),
            Column(key="axis", heading="Axis"),
            Column(key="status", heading="Status", is_number=False),
            Column(key="rf", heading="RF"),
            Column(key="stride", heading="Stride"),
            Column(key="padding", heading="Pad"),
            Column(
                key="starts",
                heading="Starts by phase",
                is_number=False,
                min_width=16,
                priority=3,
            ),
            Column(key="notes", heading="Notes", is_number=False, min_width=12, priority=2),
        ],
        summary=[
            f"A unit of {layer.path or layer.type_name} sees {field_text(plain_short(layer.rf))} of its input."
        ],
        rows=[
            _axis_row(output, axis) for output, axes in enumerate(layer.outputs) for axis in axes
        ],
        remarks=[f"Everything is seen by {operator}." for operator in _reasons(layer)],
        noun="axes",
    )


def _axis_row(output: int, axis: AxisField) -> Row:
    plain: dict[str, Any] = axis.to_dict()
    texts = {key: field_text(plain[key]) for key in ("rf", "stride", "padding")}
    starts = " ".join(field_text(each) for each in plain["starts"])
    cells = [
        Cell(output, str(output)),
        Cell(axis.input, axis.input),
        Cell(axis.axis, str(axis.axis)),
        Cell(axis.status, axis.status),
        *(Cell(plain[key], text) for key, text in texts.items()),
        Cell(plain["starts"], starts),
        Cell(plain["notes"], ", ".join(plain["notes"])),
    ]
    return Row(cells=cells)


def _reasons(layer: LayerField) -> list[str]:
    return list(dict.fromkeys(reason.operator for axis in layer.axes for reason in axis.reasons))
