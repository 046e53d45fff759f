"""The columns of the layer table, each with a value for data and a text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from math import isfinite
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
)
from torchscan.report.make_table import share_text
from torchscan.report.table import Column, Scaling
from torchscan.report.table_rows import NONE, Cell

FieldKey = Literal["rf", "s", "p"]
EstimateKey = Literal["activation_bytes", "peak_bytes", "time_estimate"]
#: smallest number of parameters with a prefix: people know smaller ones by heart
_MANY = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerColumn:
    """A column of the layer table, with how its cells are made from layers."""

    column: Column
    #: a key of layers, or several of which the value is the sum
    keys: Sequence[str]
    #: computes the value from a layer, instead of ``keys``
    value: Callable[[Layer], Any] | None = None
    #: True if the value is divided by the model's sum
    is_share: bool = False
    #: formats a value that is not None
    text: Callable[[Any], str] = str
    #: the unit that all values share, instead of ``text``
    scale: Scaling | None = None
    #: True if values in that unit are lower bounds for layers with unknown costs
    is_cost: bool = False
    #: text instead of zero for layers with shared parameters, with ``scale``
    shared: str = NONE
    #: True if a layer with others below shows the value of all of them
    is_of_all: bool = False
    #: True if it follows from other columns: programs get it only if they ask for it
    is_derived: bool = False
    #: the estimate that it shows, which is there if it was asked for
    needs: EstimateKey | None = None

    def values(self, layers: Sequence[Mapping[str, Any]], overall: Sums) -> list[Any]:
        """Return the value of each layer of a model."""
        if self.value is not None:
            return list(map(self.value, cast("Sequence[Layer]", layers)))
        first, *others = self.keys
        values = [layer[first] for layer in layers]
        for key in others:
            values = [value + layer[key] for value, layer in zip(values, layers, strict=True)]
        if self.is_share:
            sums: Mapping[str, Any] = overall
            whole = sum([sums[key] for key in self.keys]) or 1
            values = [value / whole for value in values]
        return values

    def write(
        self, layers: Sequence[Mapping[str, Any]], overall: Sums
    ) -> tuple[Column, list[Cell]]:
        """Return the column, with its unit in the heading, and a cell for each layer."""
        values = self.values(layers, overall)
        if self.scale is None:
            cells = []
            for value in values:
                text = NONE
                if value is not None:
                    text = self.text(value)
                cells.append(Cell(value, text))
            return self.column, cells

        scale = self.scale([value for value in values if value and isfinite(value)])
        cells = self._write_in(scale, layers, values)
        if not scale.unit:
            return self.column, cells
        heading = f"{self.column.heading} ({scale.unit})"
        return replace(self.column, heading=heading, size=scale.size), cells

    def _write_in(
        self, scale: units.Scale, layers: Sequence[Mapping[str, Any]], values: Sequence[Any]
    ) -> list[Cell]:
        """Return the cells of values in a unit."""
        cells = []
        for layer, value in zip(layers, values, strict=True):
            text = NONE
            if self.is_cost and not layer["complete"]:
                text = f"≥ {scale.text(value or 0)}"
            elif value:
                text = scale.text(value)
            elif layer["is_shared"]:
                text = self.shared
            cells.append(Cell(value, text))
        return cells


_OPTIONS = [field.name for field in fields(LayerColumn)]


def _column(key: str, heading: str, *keys: str, **options: Any) -> LayerColumn:
    """Return a column, by default of what layers have as ``key``.

    ``options`` are those of ``LayerColumn`` and of ``Column``.
    """
    own = {option: options.pop(option) for option in _OPTIONS if option in options}
    column = Column(key=key, heading=heading, **options)
    return LayerColumn(column=column, keys=keys or (key,), **own)


def _sum(key: str, heading: str, *keys: str, is_own: bool = False, **options: Any) -> LayerColumn:
    """Return a column of sums over all that a layer calls, or of what is its own."""
    flags = {"is_of_all": not is_own, "is_derived": is_own, "summable": not is_own}
    return _column(key, heading, *keys, **flags, **options)


def _memory(key: FigureKey, heading: str, priority: int) -> LayerColumn:
    return _sum(key, heading, scale=units.scale_of_memory, unit="B", priority=priority)


def _elements(key: str, heading: str, *keys: ParameterKey, **options: Any) -> LayerColumn:
    return _sum(key, heading, *keys, scale=_scale_of_parameters, shared="shared", **options)


def _scale_of_parameters(values: Iterable[float]) -> units.Scale:
    largest = max(values, default=0)
    return units.PLAIN if largest < _MANY else units.scale_of_counts([largest])


def _cost(key: str, heading: str, *keys: str, **options: Any) -> LayerColumn:
    scaled = {"scale": units.scale_of_counts, "is_cost": True, **options}
    return _sum(key, heading, *keys, **scaled)


def _share(
    key: str, heading: str, bars: str, *keys: FigureKey | EstimateKey, **options: Any
) -> LayerColumn:
    shown = {**_FLAGS, "summable": True, "bars": bars, "priority": 2, **options}
    return _column(key, heading, *keys, is_share=True, text=share_text, **shown)


def _estimated(key: str, heading: str, value: EstimateKey) -> LayerColumn:
    """Return memory with all that a layer calls, which stands at the first of its calls."""
    scale = units.scale_of_memory
    return _column(key, heading, value, scale=scale, unit="B", needs=value, priority=1)


def _trainable(layer: Layer) -> str | None:
    trainable, frozen = layer["grad_params"], layer["nograd_params"]
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
    _column("trainable", "Trains", value=_trainable, is_number=False, priority=3, **_FLAGS),
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
