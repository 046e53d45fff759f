"""The receptive field of a layer: per input and axis, a box that moves from unit to unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchscan.analyses.receptive_field.layer_results import LayerResults
from torchscan.analyses.receptive_field.short_results import (
    Short,
    plain_short,
    short_by_input,
)
from torchscan.analyses.receptive_field.sights import Reason
from torchscan.formatters import table_of
from torchscan.results import PlotSize, Result, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.report.table import Table


# a tuple, because there are some for each layer: a dataclass takes twice as long to create
class AxisField(NamedTuple):
    """The receptive fields of a layer's units along one axis of one input.

    Unit i sees ``sizes[i mod P]`` places from ``starts[i mod P] + (i div P) · rise`` on, for P
    entries in ``starts``. Places outside the input are padding. If ``status`` is "global",
    everything is seen, for the given ``reasons``; what is seen locally, along other ways, is
    reported as well.
    """

    input: str
    axis: int
    #: size of the input along the axis
    length: int
    status: Literal["local", "global", "none"]
    #: dimension of the layer's output that follows the axis, or None if no dimension does, or
    #: several do
    dim: int | None = None
    #: number of units along that dimension
    units: int | None = None
    #: largest local field of a unit, or None if there is no local field
    size: int | None = None
    #: mean distance between the fields of neighboring units, or None if all units see the same
    stride: int | Fraction | None = None
    #: distance by which a field starts before its place, ``stride · i − start``; the largest of all
    #: phases
    padding: int | Fraction | None = None
    #: distance that starts move in one period
    rise: int = 0
    #: starts by phase, or by unit if they do not repeat; empty if several dimensions follow the
    #: axis
    starts: tuple[int | None, ...] = ()
    #: sizes by phase; one number if all are equal
    sizes: tuple[int, ...] = ()
    #: first unit that sees anything, and the one after the last, or None if all units do
    inside: tuple[int, int] | None = None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    def interval(self, unit: int) -> tuple[int, int] | None:
        """Return the first and the last place that a unit sees locally, or None if it sees none."""
        if not self.starts:
            return None
        if self.inside is not None:
            first, stop = self.inside
            if not first <= unit < stop:
                return None
        blocks, phase = divmod(unit, len(self.starts))
        start = self.starts[phase]
        if start is None:
            return None
        start += blocks * self.rise
        return start, start + self.sizes[phase % len(self.sizes)] - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        reasons = [{"operator": each.operator, "path": each.path} for each in self.reasons]
        return {
            "input": self.input,
            "axis": self.axis,
            "status": self.status,
            "dim": self.dim,
            "units": self.units,
            "inside": None if self.inside is None else list(self.inside),
            "rf": self.size,
            "stride": plain_short(self.stride),
            "padding": plain_short(self.padding),
            "rise": self.rise,
            "starts": list(self.starts),
            "sizes": list(self.sizes),
            "reasons": reasons,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class LayerField(Result):
    """The receptive field of one call of one module."""

    path: str
    type_name: str
    call: int
    #: axes of each output tensor
    outputs: tuple[tuple[AxisField, ...], ...]

    def plot(
        self,
        ax: Axes | None = None,
        *,
        unit: Sequence[int] | int | None = None,
        image: Any = None,
        name: str | None = None,
        dims: Sequence[int] | None = None,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw what a unit of the layer sees of an input.

        Args:
            ax: where to draw; by default in a new figure.
            unit: the position of the unit in the output; by default the middle.
            image: the input to draw below it.
            name: which input, if there are several.
            dims: the two dimensions of the input to draw.
            size: of a new figure.
        """
        return draw(self, ax=ax, unit=unit, image=image, name=name, dims=dims, size=size)

    @property
    def axes(self) -> tuple[AxisField, ...]:
        """The axes of the first output that sees any input: one per input and spatial axis."""
        for axes in self.outputs:
            for axis in axes:
                if axis.status != "none":
                    return axes
        return self.outputs[0] if self.outputs else ()

    @property
    def rf(self) -> Short:
        """The size: one number if all axes agree, else one per axis; or the word "global"."""
        sizes: list[int | str | None] = []
        for axis in self._seeing:
            is_global = axis.status == "global"
            sizes.append("global" if is_global else axis.size)
        return self._short(sizes)

    @property
    def stride(self) -> Short:
        """The effective stride, in the same form."""
        return self._short([axis.stride for axis in self._seeing])

    @property
    def padding(self) -> Short:
        """The effective padding, in the same form."""
        return self._short([axis.padding for axis in self._seeing])

    @property
    def _seeing(self) -> list[AxisField]:
        return [axis for axis in self.axes if axis.status != "none"]

    def _short(self, values: Sequence[int | Fraction | str | None]) -> Short:
        return short_by_input([axis.input for axis in self._seeing], values)


@dataclass(frozen=True, slots=True)
class ReceptiveField(LayerResults[LayerField]):
    """The receptive fields of all layer calls.

    ``["layer4"]`` is a layer's first call, ``["layer4", 1]`` its second.
    """

    def plot(
        self,
        ax: Axes | None = None,
        *,
        layers: Sequence[str] | None = None,
        image: Any = None,
        name: str | None = None,
        dims: Sequence[int] | None = None,
        size: PlotSize = "screen",
    ) -> Axes:
        """Draw what the middle unit of several layers sees, one inside the other.

        Args:
            ax: where to draw; by default in a new figure.
            layers: the layers, by their paths; by default those that differ most.
            image: the input to draw below them.
            name: which input, if there are several.
            dims: the two dimensions of the input to draw.
            size: of a new figure.
        """
        found = None
        if layers is not None:
            found = [self[path] for path in layers]
        return draw(self, ax=ax, layers=found, image=image, name=name, dims=dims, size=size)

    def table(self, layer: str | None = None) -> Table:
        """Return the receptive field of each layer, or every axis of one ``layer``."""
        return table_of(self, layer=layer)

    def __repr__(self) -> str:
        return f"<ReceptiveField of {len(self.layers)} layer calls, output {self.output.rf}>"
