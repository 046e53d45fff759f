"""Part of an input that one unit of a layer sees, in the dimensions that a plot shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.errors import Argument, InputError

#: nested fields that are drawn at most
_MAX_NESTED = 7


class UnitField(NamedTuple):
    """Rectangle of an input that one unit sees, and the unit."""

    axes: Sequence[AxisField]
    #: the unit's index along each axis
    places: Sequence[int]
    left: int
    top: int
    wide: int
    tall: int

    @classmethod
    def of(
        cls,
        layer: LayerField,
        unit: Sequence[int] | int | None,
        name: str | None,
        dims: Sequence[int] | None,
    ) -> UnitField:
        """Return what a unit of the layer sees of one or two dimensions of an input."""
        axes = _axes_to_draw(layer, name, dims)
        places = _indices_of_unit(axes, unit)
        top, tall = 0, 1
        if len(axes) == 2:
            top, tall = _span(axes[0], places[0])
        left, wide = _span(axes[-1], places[-1])
        return cls(axes, places, left, top, wide, tall)

    @property
    def input(self) -> tuple[int, int]:
        """Height and width of the input."""
        height = self.axes[0].length if len(self.axes) == 2 else 1
        return height, self.axes[-1].length

    @property
    def is_global(self) -> bool:
        """True if the unit sees the complete input."""
        return any(axis.status == "global" for axis in self.axes)


def are_tokens(axes: Sequence[AxisField]) -> bool:
    """Return whether one dimension of the output follows both axes."""
    return len(axes) > 1 and axes[0].dim is not None and axes[0].dim == axes[1].dim


def layers_to_draw(given: LayerField | ReceptiveField | Sequence[LayerField]) -> list[LayerField]:
    """Return the given layers, or the outer layers of a model, or raise an error."""
    if isinstance(given, LayerField):
        return [given]
    layers: list[LayerField] = []
    if isinstance(given, ReceptiveField):
        layers = _outer_layers(given)
    elif isinstance(given, Sequence):
        layers = list(given)
    if not layers or not all(isinstance(layer, LayerField) for layer in layers):
        raise InputError(
            f"{type(given).__name__} is the receptive field of a model: draw one layer of it, "
            "field['layer4'] or field.output"
        )
    return layers


def _outer_layers(fields: ReceptiveField) -> list[LayerField]:
    """Return layers that the model itself calls and that see only parts of the input.

    Each sees more than the one before.
    """
    found: list[LayerField] = []
    largest: list[int | None] = []
    for layer in fields:
        if not layer.path or "." in layer.path:
            continue
        if any(axis.status == "global" for axis in layer.axes):
            continue
        sizes = [axis.size for axis in layer.axes if axis.status == "local"]
        if sizes > largest:
            found.append(layer)
            largest = sizes
    return found[-_MAX_NESTED:] or [fields.output]


def _axes_to_draw(
    layer: LayerField, name: str | None, dims: Sequence[int] | None
) -> list[AxisField]:
    """Return one or two axes of one input; by default the last two."""
    axis_by_dim = _axes_of_input(layer, name)
    chosen = list(axis_by_dim)[-2:] if dims is None else list(dims)
    if not 1 <= len(chosen) <= 2 or not axis_by_dim.keys() >= set(chosen):
        known = ", ".join(map(str, axis_by_dim))
        raise InputError(Argument("dims"), f" is {dims}: give one or two of the dimensions {known}")
    return [axis_by_dim[dim] for dim in chosen]


def _axes_of_input(layer: LayerField, name: str | None) -> dict[int, AxisField]:
    """Return the axes of an input by dimension; by default of the first that the layer sees."""
    layer_name = layer.path or "the model"
    seen = [axis for axis in layer.axes if axis.status != "none"]
    names = list(dict.fromkeys(axis.input for axis in seen))
    if not names:
        raise InputError(f"there is nothing to draw: {layer_name} sees no axis of any input")
    if name is not None and name not in names:
        raise InputError(
            f"{layer_name} does not see the input {name!r}: choose from {', '.join(names)}"
        )
    name = name or names[0]
    return {axis.axis: axis for axis in seen if axis.input == name}


def _indices_of_unit(axes: Sequence[AxisField], unit: Sequence[int] | int | None) -> list[int]:
    """Return the unit's index along each axis, by default that in the middle.

    One number stands for both where a dimension of tokens holds the places along both axes.
    """
    follows_both = are_tokens(axes)
    counted = axes[:1] if follows_both else axes
    counts = [axis.units or 1 for axis in counted]
    if unit is None:
        indices = [count // 2 for count in counts]
    elif isinstance(unit, int):
        indices = [unit]
    else:
        indices = list(unit)
    if len(indices) != len(counts):
        raise InputError(
            Argument("unit"),
            f" is {unit}: give {len(counts)} numbers, one for each dimension of the output that "
            "is drawn",
        )
    for index, count in zip(indices, counts, strict=True):
        if not isinstance(index, int) or not 0 <= index < count:
            raise InputError(
                Argument("unit"), f" is {unit}, and {index} is out of range: give 0 to {count - 1}"
            )
    return indices * len(axes) if follows_both else indices


def _span(axis: AxisField, index: int) -> tuple[int, int]:
    """Return the start and the length of what a unit sees; 0 and 0 if there is no local way."""
    interval = axis.interval(index)
    if interval is None and axis.size is not None and not axis.starts:
        raise InputError(
            f"the units of dimension {axis.axis} lie along several dimensions of the output, and "
            "such units cannot be drawn: draw another dimension"
        )
    if interval is None:
        return 0, 0
    first, last = interval
    return first, last - first + 1
