"""What can be shown of a layer: each column with its value, for data, and its text, for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from torchscan import units
from torchscan.errors import InputError
from torchscan.escapes import printable
from torchscan.report.info_data import (
    CostKey,
    FigureKey,
    Layer,
    ParameterKey,
    Shape,
    Shapes,
    Sums,
    summed,
)
from torchscan.report.table import NONE, Cell, Column, Scaling, in_unit

FieldKey = Literal["rf", "s", "p"]
PlainKey = Literal["type", "path", "input_shape", "output_shape", FieldKey]
EstimateKey = Literal["activation_bytes", "peak_bytes", "time_estimate"]
#: of a layer, beside the whole model, which shares are of
Value = Callable[[Layer, Sums], Any]

#: parameters are written in full as long as there are fewer, since people know these numbers by heart
_MANY = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerColumn:
    """A column of the layer table: how its value is taken from a layer, and how it reads."""

    column: Column
    value: Value
    text: Callable[[Layer, Any, units.Scale], str]
    #: the unit that all its figures share; None: they are words
    scale: Scaling | None = None
    #: whether a layer with others below shows the value of all of them
    is_of_all: bool = False
    #: whether it follows from other columns: programs get it only if they ask for it
    is_derived: bool = False
    #: the estimate that it shows, which is there if it was asked for
    needs: EstimateKey | None = None

    def written(self, layers: Sequence[Layer], whole: Sums) -> tuple[Column, list[Cell]]:
        """With the unit in its heading, and a cell for each of these layers."""
        values = [self.value(layer, whole) for layer in layers]
        scale = units.PLAIN if self.scale is None else self.scale(values)
        cells = [
            Cell(value, self.text(layer, value, scale))
            for layer, value in zip(layers, values, strict=True)
        ]
        return in_unit(self.column, scale), cells


def _plain(key: PlainKey, heading: str, text: Callable[[Any], str], **options: Any) -> LayerColumn:
    """What the layer holds, as it is shown."""
    column = Column(key=key, heading=heading, **options)
    return LayerColumn(
        column=column, value=lambda layer, _: layer[key], text=lambda _, value, __: text(value)
    )


def _memory(key: FigureKey, heading: str, priority: int) -> LayerColumn:
    column = Column(key=key, heading=heading, unit="B", summable=True, priority=priority)
    return LayerColumn(
        column=column,
        value=lambda layer, _: layer[key],
        text=lambda _, value, scale: scale.text(value) if value else NONE,
        scale=units.scale_of_memory,
        is_of_all=True,
    )


def _elements(
    name: str, heading: str, *keys: ParameterKey, is_own: bool = False, priority: int = 0
) -> LayerColumn:
    return LayerColumn(
        column=Column(key=name, heading=heading, summable=not is_own, priority=priority),
        value=lambda layer, _: summed(layer, keys),
        text=lambda layer, value, scale: (
            scale.text(value) if value else "shared" if layer["is_shared"] else NONE
        ),
        scale=_scale_of_parameters,
        is_of_all=not is_own,
        is_derived=is_own,
    )


def _scale_of_parameters(values: Iterable[float]) -> units.Scale:
    known = list(values)
    return units.PLAIN if max(known, default=0) < _MANY else units.scale_of_counts(known)


def _cost(key: CostKey, heading: str, *, is_own: bool = False, priority: int = 0) -> LayerColumn:
    name = f"own_{key}" if is_own else key
    return LayerColumn(
        column=Column(key=name, heading=heading, summable=not is_own, priority=priority),
        value=lambda layer, _: layer[key],
        text=_cost_text,
        scale=units.scale_of_counts,
        is_of_all=not is_own,
        is_derived=is_own,
    )


def _cost_text(layer: Layer, value: float, scale: units.Scale) -> str:
    bound = "" if layer["complete"] else "≥ "
    return f"{bound}{scale.text(value)}" if value or bound else NONE


def _share(
    name: str,
    heading: str,
    bars: str,
    *keys: FigureKey | EstimateKey,
    needs: EstimateKey | None = None,
) -> LayerColumn:
    def value(layer: Layer, whole: Sums) -> float:
        return summed(layer, keys) / (summed(whole, keys) or 1)

    return LayerColumn(
        column=Column(key=name, heading=heading, summable=True, bars=bars, priority=2),
        value=value,
        text=lambda _, share, __: units.share(share) if share else NONE,
        is_of_all=True,
        is_derived=True,
        needs=needs,
    )


def _estimated(
    name: str, heading: str, key: Literal["activation_bytes", "peak_bytes"]
) -> LayerColumn:
    """Memory with all that a layer calls, which stands at the first of its calls."""
    return LayerColumn(
        column=Column(key=name, heading=heading, unit="B", priority=1),
        value=lambda layer, _: layer[key],
        text=lambda _, value, scale: scale.text(value) if value else NONE,
        scale=lambda values: units.scale_of_memory(value for value in values if value is not None),
        needs=key,
    )


def _trainable(layer: Layer, _: Sums) -> str | None:
    trainable, frozen = layer["grad_params"], layer["nograd_params"]
    return (
        None if not trainable + frozen else "yes" if not frozen else "partly" if trainable else "no"
    )


def _shape_text(shapes: Shapes) -> str:
    """The first of several shapes, and how many more there are."""
    if shapes is None:
        return NONE
    first = shapes[0] if shapes else None
    return (
        f"{sizes(first)} +{len(shapes) - 1}"
        if isinstance(first, list)
        else sizes(cast("Shape", shapes))
    )


def sizes(shape: Shape) -> str:
    """``64×56×56``: of one sample, where the batch is torchscan's."""
    return "×".join(map(str, shape[1:] if shape[:1] == [-1] else shape)) or "()"


def field_text(value: Any) -> str:
    """A number, one per axis, or words; for several inputs, one after the other."""
    if isinstance(value, dict):
        return ", ".join(field_text(each) for each in value.values())
    if isinstance(value, list):
        return "×".join(field_text(each) for each in value)
    return (
        NONE
        if value is None
        else printable(str(_fraction(value) if isinstance(value, float) else value))
    )


def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(1000)


#: where text would be too wide, those with the greatest number are left out first
COLUMNS: Mapping[str, LayerColumn] = {
    column.column.key: column
    for column in (
        _plain("type", "Type", printable, is_number=False, min_width=8, priority=5, dim=True),
        _plain("path", "Path", printable, is_number=False, min_width=12, priority=8),
        _plain("input_shape", "Input", _shape_text, is_number=False, priority=7),
        _plain("output_shape", "Output", _shape_text, is_number=False, priority=4),
        _elements("params", "Params", "grad_params", "nograd_params", priority=1),
        _elements(
            "own_params", "Own params", "grad_params", "nograd_params", is_own=True, priority=6
        ),
        _elements("grad_params", "Trainable", "grad_params", priority=5),
        _elements("nograd_params", "Frozen", "nograd_params", priority=5),
        LayerColumn(
            column=Column(key="trainable", heading="Trains", is_number=False, priority=3),
            value=_trainable,
            text=lambda _, value, __: value or NONE,
            is_of_all=True,
            is_derived=True,
        ),
        _memory("param_size", "Param size", priority=5),
        LayerColumn(
            column=Column(key="buffers", heading="Buffers", summable=True, priority=6),
            value=lambda layer, _: layer["num_buffers"],
            text=lambda _, value, scale: scale.text(value) if value else NONE,
            scale=_scale_of_parameters,
            is_of_all=True,
        ),
        _memory("buffer_size", "Buffer size", priority=6),
        _cost("macs", "MACs"),
        _cost("macs", "Own MACs", is_own=True, priority=6),
        _cost("flops", "FLOPs", priority=1),
        _cost("flops", "Own FLOPs", is_own=True, priority=6),
        _cost("dmas", "DMAs", priority=5),
        _memory("bytes_read", "Read", priority=5),
        _memory("bytes_written", "Written", priority=5),
        _estimated("activations", "Activations", "activation_bytes"),
        _estimated("peak", "Peak", "peak_bytes"),
        LayerColumn(
            column=Column(key="latency", heading="Time", unit="s", summable=True, priority=1),
            value=lambda layer, _: layer["time_estimate"],
            text=_cost_text,
            scale=units.scale_of_durations,
            is_of_all=True,
            needs="time_estimate",
        ),
        _share("params_share", "of params", "parameters", "grad_params", "nograd_params"),
        _share("macs_share", "of MACs", "compute", "macs"),
        _share("flops_share", "of FLOPs", "compute", "flops"),
        _share("latency_share", "of time", "memory", "time_estimate", needs="time_estimate"),
        _plain("rf", "RF", field_text, priority=2),
        _plain("s", "Stride", field_text, priority=7),
        _plain("p", "Pad", field_text, priority=7),
    )
}
FIELDS = frozenset(get_args(FieldKey))
DEFAULT_COLUMNS = ("type", "output_shape", "params", "macs", "macs_share")


#: with a device
_WITH_TIMES = (*DEFAULT_COLUMNS[:-1], "latency", "latency_share")


def usual_columns(
    receptive_field: bool, effective_rf_stats: bool, has_device: bool = False
) -> list[str]:
    """The default columns and those asked for, before the bars."""
    *first, bars = _WITH_TIMES if has_device else DEFAULT_COLUMNS
    asked = [*(["rf"] if receptive_field else []), *(["s", "p"] if effective_rf_stats else [])]
    return [*first, *asked, bars]


def needed_for(columns: Sequence[str]) -> dict[str, bool]:
    """What columns take besides counts, as :meth:`Scan.describe` knows it."""
    needs = {COLUMNS[name].needs for name in columns}
    memory = not needs.isdisjoint(("activation_bytes", "peak_bytes"))
    return {
        "receptive_field": not FIELDS.isdisjoint(columns),
        "memory": memory,
        "times": "time_estimate" in needs,
    }


def require_device(columns: Sequence[str], *, has_device: bool) -> None:
    """Refuse times on no device before anything is recorded."""
    name = next(
        (name for name in columns if COLUMNS[name].needs == "time_estimate" and not has_device),
        None,
    )
    if name is not None:
        raise InputError(
            f"the column {name!r} needs a device: give device='RTX 4090', say (torchscan devices lists them)"
        )


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


def check_estimates(columns: Sequence[str], layers: Sequence[Layer]) -> None:
    """Refuse columns of estimates that an info dict does not have."""
    missing = next(
        (
            name
            for name in columns
            if (needs := COLUMNS[name].needs) and layers and needs not in layers[0]
        ),
        None,
    )
    if missing is not None:
        how = "device='RTX 4090'" if COLUMNS[missing].needs == "time_estimate" else "memory=True"
        raise InputError(
            f"these layers have no {missing!r}: ask for it, crawl_module(model, input_shape, {how})"
        )


def name_of(layer: Layer) -> str:
    """The name, with the number of the call if the module was called before."""
    return f"{printable(layer['name'])}{_repeated(layer)}"


def full_name_of(layer: Layer) -> str:
    """The path, for use outside the tree; the model itself has none and goes by its class."""
    return f"{printable(layer['path'] or layer['name'])}{_repeated(layer)}"


def _repeated(layer: Layer) -> str:
    return f" ({layer['call'] + 1})" if layer["call"] else ""
