"""What can be shown of a layer: each column with its value, for data, and its text, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.info_data import CostKey, FigureKey, Layer, ParameterKey
from torchscan.report.table import Cell, Column, printable

FieldKey = Literal["rf", "s", "p"]

NONE = "–"


@dataclass(frozen=True, slots=True)
class LayerColumn:
    """A column of the table of layers: what it is of a layer, and how that reads."""

    column: Column
    value: Callable[[Layer], Any]
    #: the text of a layer; of several folded into one layer too
    text: Callable[[Layer], str]

    def cell(self, layer: Layer) -> Cell:
        """What stands there."""
        return Cell(self.value(layer), self.text(layer))


def _words(heading: str, key: Literal["type", "path"], narrowest: int) -> LayerColumn:
    column = Column(key=key, heading=heading, is_number=False, narrowest=narrowest)
    return LayerColumn(column, lambda layer: layer[key], lambda layer: printable(layer[key]))


def _shapes(heading: str, key: Literal["input_shape", "output_shape"]) -> LayerColumn:
    column = Column(key=key, heading=heading, is_number=False)
    return LayerColumn(column, lambda layer: layer[key], lambda layer: _shape_text(layer[key]))


def _elements(name: str, heading: str, *keys: ParameterKey) -> LayerColumn:
    def value(layer: Layer) -> int:
        return sum(layer[key] for key in keys)

    column = Column(key=name, heading=heading, adds_up=True)
    return LayerColumn(column, value, lambda layer: _params_text(layer, value(layer)))


def _cost(heading: str, key: CostKey) -> LayerColumn:
    return LayerColumn(
        Column(key=key, heading=heading, adds_up=True), lambda layer: layer[key], lambda layer: _cost_text(layer, key)
    )


def _memory(heading: str, key: FigureKey) -> LayerColumn:
    column = Column(key=key, heading=heading, unit="B", adds_up=True)
    return LayerColumn(column, lambda layer: layer[key], lambda layer: units.memory(layer[key]) if layer[key] else NONE)


def _field(heading: str, key: FieldKey) -> LayerColumn:
    return LayerColumn(Column(key=key, heading=heading), lambda layer: layer[key], lambda layer: field_text(layer[key]))


COLUMNS: Mapping[str, LayerColumn] = {
    "type": _words("Type", "type", 8),
    "path": _words("Path", "path", 12),
    "input_shape": _shapes("Input shape", "input_shape"),
    "output_shape": _shapes("Output shape", "output_shape"),
    "params": _elements("params", "Params", "grad_params", "nograd_params"),
    "grad_params": _elements("grad_params", "Trainable", "grad_params"),
    "nograd_params": _elements("nograd_params", "Frozen", "nograd_params"),
    "param_size": _memory("Param size", "param_size"),
    "buffers": LayerColumn(
        Column(key="buffers", heading="Buffers", adds_up=True),
        lambda layer: layer["num_buffers"],
        lambda layer: units.exact(layer["num_buffers"]) if layer["num_buffers"] else NONE,
    ),
    "buffer_size": _memory("Buffer size", "buffer_size"),
    "macs": _cost("MACs", "macs"),
    "flops": _cost("FLOPs", "flops"),
    "dmas": _cost("DMAs", "dmas"),
    "bytes_read": _memory("Read", "bytes_read"),
    "bytes_written": _memory("Written", "bytes_written"),
    "rf": _field("RF", "rf"),
    "s": _field("Stride", "s"),
    "p": _field("Pad", "p"),
}
FIELDS = frozenset(get_args(FieldKey))
DEFAULT_COLUMNS = ("type", "output_shape", "params", "macs")


def check_columns(columns: Sequence[str] | None) -> None:
    """Refuse a column that does not exist."""
    if isinstance(columns, str):
        raise InputError(f"columns is {columns!r}: give a list of names")
    unknown = [name for name in columns or () if name not in COLUMNS]
    if unknown:
        raise InputError(f"unknown column {unknown[0]!r}: choose from {', '.join(COLUMNS)}")


def name_of(layer: Layer) -> str:
    """The name, and which call of the module it is if it was called before."""
    return f"{printable(layer['name'])}{_repeated(layer)}"


def full_name_of(layer: Layer) -> str:
    """The path instead, to stand by itself; of the model, which has none, its class."""
    return f"{printable(layer['path'] or layer['name'])}{_repeated(layer)}"


def _repeated(layer: Layer) -> str:
    return f" ({layer['call'] + 1})" if layer["call"] else ""


def _shape_text(shapes: Any) -> str:
    """Of several shapes the first, and how many more there are."""
    if shapes is None:
        return NONE
    if not shapes or not isinstance(shapes[0], list):
        return units.shape(shapes)
    return f"{units.shape(shapes[0])} +{len(shapes) - 1}"


def _params_text(layer: Layer, own: int) -> str:
    if own:
        return units.exact(own)
    return "shared" if layer["is_shared"] else NONE


def _cost_text(layer: Layer, key: CostKey) -> str:
    bound = "" if layer["complete"] else "≥ "
    return f"{bound}{units.count(layer[key])}" if layer[key] or bound else NONE


def field_text(value: Any) -> str:
    """A number, one per axis, or in words; of several inputs one after the other."""
    if isinstance(value, dict):
        return ", ".join(field_text(each) for each in value.values())
    if isinstance(value, list):
        return "×".join(field_text(each) for each in value)
    return NONE if value is None else printable(str(_fraction(value) if isinstance(value, float) else value))


def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(1000)
