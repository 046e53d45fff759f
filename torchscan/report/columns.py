"""What can be shown of a layer: each column with its value, for data, and its text, for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.info_data import CostKey, FigureKey, Layer, ParameterKey, Shape, Shapes
from torchscan.report.table import Cell, Column, printable

FieldKey = Literal["rf", "s", "p"]
PlainKey = Literal["type", "path", "input_shape", "output_shape", FieldKey, FigureKey]

NONE = "–"


@dataclass(frozen=True, slots=True)
class LayerColumn:
    """A column of the layer table: how its value is taken from a layer, and how it reads."""

    column: Column
    value: Callable[[Layer], Any]
    #: also for several layers folded into one
    text: Callable[[Layer], str]

    def cell(self, layer: Layer) -> Cell:
        """The value and its text."""
        return Cell(self.value(layer), self.text(layer))


def _plain(key: PlainKey, heading: str, text: Callable[[Any], str], **options: Any) -> LayerColumn:
    """A figure that the layer holds as it is shown."""
    column = Column(key=key, heading=heading, **options)
    return LayerColumn(column, lambda layer: layer[key], lambda layer: text(layer[key]))


def _memory(key: FigureKey, heading: str) -> LayerColumn:
    return _plain(key, heading, lambda size: units.memory(size) if size else NONE, unit="B", adds_up=True)


def _elements(name: str, heading: str, *keys: ParameterKey) -> LayerColumn:
    def value(layer: Layer) -> int:
        return sum(layer[key] for key in keys)

    column = Column(key=name, heading=heading, adds_up=True)
    return LayerColumn(column, value, lambda layer: _params_text(layer, value(layer)))


def _cost(key: CostKey, heading: str) -> LayerColumn:
    column = Column(key=key, heading=heading, adds_up=True)
    return LayerColumn(column, lambda layer: layer[key], lambda layer: _cost_text(layer, key))


def _shape_text(shapes: Shapes) -> str:
    """The first of several shapes, and how many more there are."""
    if shapes is None:
        return NONE
    first = shapes[0] if shapes else None
    return f"{units.shape(first)} +{len(shapes) - 1}" if isinstance(first, list) else units.shape(cast("Shape", shapes))


def field_text(value: Any) -> str:
    """A number, one per axis, or words; for several inputs, one after the other."""
    if isinstance(value, dict):
        return ", ".join(field_text(each) for each in value.values())
    if isinstance(value, list):
        return "×".join(field_text(each) for each in value)
    return NONE if value is None else printable(str(_fraction(value) if isinstance(value, float) else value))


def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(1000)


COLUMNS: Mapping[str, LayerColumn] = {
    column.column.key: column
    for column in (
        _plain("type", "Type", printable, is_number=False, narrowest=8),
        _plain("path", "Path", printable, is_number=False, narrowest=12),
        _plain("input_shape", "Input shape", _shape_text, is_number=False),
        _plain("output_shape", "Output shape", _shape_text, is_number=False),
        _elements("params", "Params", "grad_params", "nograd_params"),
        _elements("grad_params", "Trainable", "grad_params"),
        _elements("nograd_params", "Frozen", "nograd_params"),
        _memory("param_size", "Param size"),
        LayerColumn(
            Column(key="buffers", heading="Buffers", adds_up=True),
            lambda layer: layer["num_buffers"],
            lambda layer: units.exact(layer["num_buffers"]) if layer["num_buffers"] else NONE,
        ),
        _memory("buffer_size", "Buffer size"),
        _cost("macs", "MACs"),
        _cost("flops", "FLOPs"),
        _cost("dmas", "DMAs"),
        _memory("bytes_read", "Read"),
        _memory("bytes_written", "Written"),
        _plain("rf", "RF", field_text),
        _plain("s", "Stride", field_text),
        _plain("p", "Pad", field_text),
    )
}
FIELDS = frozenset(get_args(FieldKey))
DEFAULT_COLUMNS = ("type", "output_shape", "params", "macs")


def usual_columns(receptive_field: bool, effective_rf_stats: bool) -> list[str]:
    """The default columns and those asked for. With all of them, types do not fit into 80 characters."""
    asked = [*(["rf"] if receptive_field else []), *(["s", "p"] if effective_rf_stats else [])]
    return [name for name in DEFAULT_COLUMNS if name != "type" or len(asked) < 3] + asked


def check_columns(columns: Sequence[str] | None) -> None:
    """Refuse a column that does not exist."""
    if isinstance(columns, str):
        names = [each for each in re.split(r"[,\s]+", columns) if each] or ["params"]
        raise InputError(f"columns is {columns!r}: give a list of names, columns={names}")
    unknown = [name for name in columns or () if name not in COLUMNS]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), COLUMNS, 1)
        meant = f"did you mean {near[0]!r}? There are" if near else "choose from"
        raise InputError(f"unknown column {unknown[0]!r}: {meant} {', '.join(COLUMNS)}")


def name_of(layer: Layer) -> str:
    """The name, with the number of the call if the module was called before."""
    return f"{printable(layer['name'])}{_repeated(layer)}"


def full_name_of(layer: Layer) -> str:
    """The path, for use outside the tree; the model itself has none and goes by its class."""
    return f"{printable(layer['path'] or layer['name'])}{_repeated(layer)}"


def _repeated(layer: Layer) -> str:
    return f" ({layer['call'] + 1})" if layer["call"] else ""


def _params_text(layer: Layer, own: int) -> str:
    if own:
        return units.exact(own)
    return "shared" if layer["is_shared"] else NONE


def _cost_text(layer: Layer, key: CostKey) -> str:
    bound = "" if layer["complete"] else "≥ "
    return f"{bound}{units.count(layer[key])}" if layer[key] or bound else NONE
