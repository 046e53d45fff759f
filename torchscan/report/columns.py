"""The columns of the layer table, each with a value for data and a text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from torchscan import units
from torchscan.escapes import printable
from torchscan.report.info_data import (
    FigureKey,
    Layer,
    ParameterKey,
    Shape,
    Shapes,
    Sums,
    summed,
)
from torchscan.report.make_table import ColumnOf, share_text
from torchscan.report.table import Column
from torchscan.report.table_rows import NONE

FieldKey = Literal["rf", "s", "p"]
PlainKey = Literal["type", "path", "input_shape", "output_shape", FieldKey]
EstimateKey = Literal["activation_bytes", "peak_bytes", "time_estimate"]
#: smallest number of parameters with a prefix: people know smaller ones by heart
_MANY = 10**9


#: a layer, and the whole model, which shares refer to
_Part = tuple[Layer, Sums]
_Value = Callable[[_Part], Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerColumn(ColumnOf[_Part]):
    """A column of the layer table."""

    #: whether a layer with others below shows the value of all of them
    is_of_all: bool = False
    #: whether it follows from other columns: programs get it only if they ask for it
    is_derived: bool = False
    #: the estimate that it shows, which is there if it was asked for
    needs: EstimateKey | None = None


_OPTIONS = [field.name for field in fields(LayerColumn)]


def _column(key: str, heading: str, value: _Value | None = None, **options: Any) -> LayerColumn:
    """Return a column, by default of what layers have as ``key``.

    ``options`` are those of ``LayerColumn`` and of ``Column``.
    """
    name = key if value is None else value
    take = (lambda part: part[0][name]) if isinstance(name, str) else name
    own = {option: options.pop(option) for option in _OPTIONS if option in options}
    return LayerColumn(column=Column(key=key, heading=heading, **options), value=take, **own)


def _sum(
    key: str, heading: str, value: _Value | None = None, *, is_own: bool = False, **options: Any
) -> LayerColumn:
    """Return a column of sums over all that a layer calls, or of what is its own."""
    flags = {"is_of_all": not is_own, "is_derived": is_own, "summable": not is_own}
    return _column(key, heading, value, **flags, **options)


def _memory(key: FigureKey, heading: str, priority: int) -> LayerColumn:
    return _sum(key, heading, scale=units.scale_of_memory, unit="B", priority=priority)


def _elements(key: str, heading: str, *keys: ParameterKey, **options: Any) -> LayerColumn:
    def absent(part: _Part) -> str:
        return "shared" if part[0]["is_shared"] else NONE

    options |= {"scale": _scale_of_parameters, "absent": absent}
    return _sum(key, heading, lambda part: summed(part[0], keys), **options)


def _scale_of_parameters(values: Iterable[float]) -> units.Scale:
    known = list(values)
    return units.PLAIN if max(known, default=0) < _MANY else units.scale_of_counts(known)


def _cost(key: str, heading: str, value: str | None = None, **options: Any) -> LayerColumn:
    def mark(part: _Part) -> str:
        return "" if part[0]["complete"] else "≥ "

    scaled = {"scale": units.scale_of_counts, **options}
    return _sum(key, heading, value, mark=mark, **scaled)


def _share(
    key: str, heading: str, bars: str, *keys: FigureKey | EstimateKey, **options: Any
) -> LayerColumn:
    def value(part: _Part) -> float:
        layer, whole = part
        return summed(layer, keys) / (summed(whole, keys) or 1)

    shown = {**_FLAGS, "summable": True, "bars": bars, "priority": 2, **options}
    return _column(key, heading, value, text=share_text, **shown)


def _estimated(key: str, heading: str, value: EstimateKey) -> LayerColumn:
    """Return memory with all that a layer calls, which stands at the first of its calls."""
    scale = units.scale_of_memory
    return _column(key, heading, value, scale=scale, unit="B", needs=value, priority=1)


def _trainable(part: _Part) -> str | None:
    trainable, frozen = part[0]["grad_params"], part[0]["nograd_params"]
    if not trainable + frozen:
        return None
    if not frozen:
        return "yes"
    return "partly" if trainable else "no"


def _shape_text(shapes: Shapes) -> str:
    """Return the first of several shapes, and how many more there are."""
    if shapes is None:
        return NONE
    first = shapes[0] if shapes else None
    if isinstance(first, list):
        return f"{sizes(first)} +{len(shapes) - 1}"
    return sizes(cast("Shape", shapes))


def sizes(shape: Shape) -> str:
    """Return a shape, ``64×56×56``, without the batch if torchscan chose it."""
    own = shape[1:] if shape[:1] == [-1] else shape
    return "×".join(map(str, own)) or "()"


def field_text(value: Any) -> str:
    """Return a number, one per axis, or words; for several inputs, one after the other."""
    if isinstance(value, dict):
        return ", ".join(field_text(each) for each in value.values())
    if isinstance(value, list):
        return "×".join(field_text(each) for each in value)
    if value is None:
        return NONE
    if isinstance(value, float):
        value = Fraction(value).limit_denominator(1000)
    return printable(str(value))


_PARAMS: Sequence[ParameterKey] = ("grad_params", "nograd_params")
_FLAGS: Mapping[str, bool] = {"is_of_all": True, "is_derived": True}
_TIME: Mapping[str, Any] = {"needs": "time_estimate", "unit": "s", "priority": 1}
_WORDS: Mapping[str, Any] = {"is_number": False, "text": printable}
_SHAPE: Mapping[str, Any] = {"is_number": False, "text": _shape_text}
_LAYER_COLUMNS = (
    _column("type", "Type", min_width=8, priority=5, dim=True, **_WORDS),
    _column("path", "Path", min_width=12, priority=8, **_WORDS),
    _column("input_shape", "Input", priority=7, **_SHAPE),
    _column("output_shape", "Output", priority=4, **_SHAPE),
)
_PARAMETER_COLUMNS = (
    _elements("params", "Params", *_PARAMS, priority=1),
    _elements("own_params", "Own params", *_PARAMS, is_own=True, priority=6),
    _elements("grad_params", "Trainable", "grad_params", priority=5),
    _elements("nograd_params", "Frozen", "nograd_params", priority=5),
    _column("trainable", "Trains", _trainable, is_number=False, priority=3, **_FLAGS),
    _memory("param_size", "Param size", priority=5),
    _sum("buffers", "Buffers", "num_buffers", scale=_scale_of_parameters, priority=6),
    _memory("buffer_size", "Buffer size", priority=6),
)
_COST_COLUMNS = (
    _cost("macs", "MACs"),
    _cost("own_macs", "Own MACs", "macs", is_own=True, priority=6),
    _cost("flops", "FLOPs", priority=1),
    _cost("own_flops", "Own FLOPs", "flops", is_own=True, priority=6),
    _cost("dmas", "DMAs", priority=5),
    _memory("bytes_read", "Read", priority=5),
    _memory("bytes_written", "Written", priority=5),
)
_ESTIMATE_COLUMNS = (
    _estimated("activations", "Activations", "activation_bytes"),
    _estimated("peak", "Peak", "peak_bytes"),
    _cost("latency", "Time", "time_estimate", scale=units.scale_of_durations, **_TIME),
)
_SHARE_COLUMNS = (
    _share("params_share", "of params", "parameters", *_PARAMS),
    _share("macs_share", "of MACs", "compute", "macs"),
    _share("flops_share", "of FLOPs", "compute", "flops"),
    _share("latency_share", "of time", "memory", "time_estimate", needs="time_estimate"),
)
_FIELD_COLUMNS = (
    _column("rf", "RF", text=field_text, priority=2),
    _column("s", "Stride", text=field_text, priority=7),
    _column("p", "Pad", text=field_text, priority=7),
)
#: all columns by key, in the order in which messages list them
COLUMNS: Mapping[str, LayerColumn] = {
    column.column.key: column
    for column in (
        *_LAYER_COLUMNS,
        *_PARAMETER_COLUMNS,
        *_COST_COLUMNS,
        *_ESTIMATE_COLUMNS,
        *_SHARE_COLUMNS,
        *_FIELD_COLUMNS,
    )
}
FIELDS = frozenset(get_args(FieldKey))
DEFAULT_COLUMNS = ("type", "output_shape", "params", "macs", "macs_share")


def name_of(layer: Layer) -> str:
    """Return the name, with the number of the call if the module was called before."""
    call = f" ({layer['call'] + 1})" if layer["call"] else ""
    return printable(layer["name"]) + call


def full_name_of(layer: Layer) -> str:
    """Return the path, for use outside the tree; of the model itself, the name."""
    call = f" ({layer['call'] + 1})" if layer["call"] else ""
    return printable(layer["path"] or layer["name"]) + call
