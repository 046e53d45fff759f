"""What can be shown of a layer: each column with its value, for data, and its text, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.info import Layer

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """What a column shows: its heading, what it is of a layer, and how that reads."""

    heading: str
    value: Callable[[Layer], Any]
    #: the text of a layer; of several folded into one layer too
    text: Callable[[Layer], str]
    is_number: bool = True
    #: what must stay of a text that may be cut; None: a shape or a number that is cut says nothing
    narrowest: int | None = None
    #: whether the figures of several layers have a sum
    adds_up: bool = False


def _words(heading: str, key: str, narrowest: int) -> Column:
    return Column(heading, lambda layer: layer[key], lambda layer: printable(layer[key]), is_number=False, narrowest=narrowest)


def _shapes(heading: str, key: str) -> Column:
    return Column(heading, lambda layer: layer[key], lambda layer: _shape_text(layer[key]), is_number=False)


def _elements(heading: str, *keys: str) -> Column:
    def value(layer: Layer) -> int:
        return sum(layer[key] for key in keys)

    return Column(heading, value, lambda layer: _params_text(layer, value(layer)), adds_up=True)


def _cost(heading: str, key: str) -> Column:
    return Column(heading, lambda layer: layer[key], lambda layer: _cost_text(layer, key), adds_up=True)


def _memory(heading: str, key: str) -> Column:
    return Column(heading, lambda layer: layer[key], lambda layer: _memory_text(layer[key]), adds_up=True)


def _field(heading: str, key: str) -> Column:
    return Column(heading, lambda layer: layer[key], lambda layer: field_text(layer[key]))


COLUMNS: Mapping[str, Column] = {
    "type": _words("Type", "type", 8),
    "path": _words("Path", "path", 12),
    "input_shape": _shapes("Input shape", "input_shape"),
    "output_shape": _shapes("Output shape", "output_shape"),
    "params": _elements("Params", "grad_params", "nograd_params"),
    "grad_params": _elements("Trainable", "grad_params"),
    "nograd_params": _elements("Frozen", "nograd_params"),
    "param_size": _memory("Param size", "param_size"),
    "buffers": Column(
        "Buffers",
        lambda layer: layer["num_buffers"],
        lambda layer: units.exact(layer["num_buffers"]) if layer["num_buffers"] else NONE,
        adds_up=True,
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
FIELDS = frozenset(("rf", "s", "p"))
NAME = Column("Layer", lambda layer: layer["name"], lambda layer: name_of(layer), is_number=False, narrowest=16)
DEFAULT_COLUMNS = ("type", "output_shape", "params", "macs")


def check_columns(columns: Sequence[str] | None) -> None:
    """Refuse a column that there is not."""
    if isinstance(columns, str):
        raise InputError(f"columns is {columns!r}: give a list of names")
    unknown = [name for name in columns or () if name not in COLUMNS]
    if unknown:
        raise InputError(f"unknown column {unknown[0]!r}: there are {', '.join(COLUMNS)}")


def chosen_columns(columns: Sequence[str] | None) -> dict[str, Column]:
    """Those asked for, or the usual ones, after the layer's name."""
    check_columns(columns)
    return {"layer": NAME} | {name: COLUMNS[name] for name in (DEFAULT_COLUMNS if columns is None else columns)}


def name_of(layer: Layer) -> str:
    """The name, and which call of the module it is if it was called before."""
    return f"{printable(layer['name'])}{_repeated(layer)}"


def full_name_of(layer: Layer) -> str:
    """The path instead, to stand by itself; of the model, which has none, its class."""
    return f"{printable(layer['path'] or layer['name'])}{_repeated(layer)}"


def printable(text: str) -> str:
    """A module can have any name: one with line breaks or control codes must not reach a terminal or a table as it is."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in text)


def _repeated(layer: Layer) -> str:
    return f" ({layer['call'] + 1})" if layer["call"] else ""


def _shape_text(shapes: Any) -> str:
    if shapes is None:
        return NONE
    if not shapes or not isinstance(shapes[0], list):
        return units.shape(shapes)
    return f"{units.shape(shapes[0])} +{len(shapes) - 1}"


def _params_text(layer: Layer, own: int) -> str:
    if own:
        return units.exact(own)
    return "shared" if layer["is_shared"] else NONE


def _memory_text(size: int) -> str:
    return units.memory(size) if size else NONE


def _cost_text(layer: Layer, key: str) -> str:
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
