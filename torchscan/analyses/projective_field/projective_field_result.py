"""The projective fields of layers: which of their units each position of an input reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchscan.analyses.receptive_field.layer_results import LayerResults
from torchscan.analyses.receptive_field.short_results import (
    Short,
    short_by_input,
)
from torchscan.analyses.receptive_field.sights import Reason
from torchscan.errors import Argument, InputError
from torchscan.formatters import table_of
from torchscan.results import Result

if TYPE_CHECKING:
    from torchscan.report.table import Table

#: first and last unit, "global" for all units, or None for no unit
Span = tuple[int, int] | Literal["global"] | None


class AxisReach(NamedTuple):
    """The units of an output that each position along one axis of one input reaches.

    A position stands for all elements of the input that have this index along the axis.
    """

    input: str
    axis: int
    #: size of the input along the axis
    length: int
    #: "local" if positions reach parts of the output, "global" if they reach all of it or nothing,
    #: because a unit sees the complete input, "none" if none reaches anything
    status: Literal["local", "global", "none"]
    #: dimension of the output that follows the axis, or None if no dimension does, or several do
    dim: int | None = None
    #: number of units along that dimension; number of elements of the output if several follow;
    #: None if no dimension does
    units: int | None = None
    #: by position, the first unit that it reaches, or None; empty without a dimension
    first: tuple[int | None, ...] = ()
    #: by position, the last unit that it reaches, or None; empty without a dimension
    last: tuple[int | None, ...] = ()
    #: by position, how many of these units it reaches, with gaps fewer than from the first to the
    #: last; without a dimension, 1 if it reaches the output
    counts: tuple[int, ...] = ()
    #: operators through which more units may be counted than are reached
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The largest number of units that a position reaches."""
        return max(self.counts, default=0)

    @property
    def unused(self) -> tuple[int, ...]:
        """The positions that reach nothing of the output."""
        return tuple([position for position, count in enumerate(self.counts) if not count])

    def interval(self, position: int) -> Span:
        """Return the first and the last unit that a position reaches, or None if it reaches none.

        Without a dimension that follows the axis, it is "global" if all is reached, or None.
        """
        is_index = hasattr(position, "__index__") and not isinstance(position, bool)
        if not is_index or not 0 <= position < self.length:
            wanted = f"give a whole number, 0 to {self.length - 1}"
            raise InputError(Argument("position"), f" is {position!r}: {wanted}")
        if not self.counts[position]:
            return None
        if self.dim is None:
            return "global" if self.units is None else None
        first, last = self.first[position], self.last[position]
        return None if first is None or last is None else (first, last)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        reasons = [{"operator": each.operator, "path": each.path} for each in self.reasons]
        return {
            "input": self.input,
            "axis": self.axis,
            "length": self.length,
            "status": self.status,
            "dim": self.dim,
            "units": self.units,
            "size": self.size,
            "unused": len(self.unused),
            "first": list(self.first),
            "last": list(self.last),
            "counts": list(self.counts),
            "reasons": reasons,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class LayerReach(Result):
    """The projective field at one call of one module."""

    path: str
    type_name: str
    call: int
    #: axes of each output tensor
    outputs: tuple[tuple[AxisReach, ...], ...]

    @property
    def axes(self) -> tuple[AxisReach, ...]:
        """The axes of the first output that any input reaches: one per input and spatial axis."""
        for axes in self.outputs:
            if any(axis.status != "none" for axis in axes):
                return axes
        return self.outputs[0] if self.outputs else ()

    @property
    def size(self) -> Short:
        """The largest number of units that a position reaches, or "global".

        It is one number if all axes agree, else one per axis, by input if they differ.
        """
        axes = [axis for axis in self.axes if axis.status != "none"]
        sizes: list[int | str] = []
        for axis in axes:
            is_global = axis.status == "global" or axis.units is None
            sizes.append("global" if is_global else axis.size)
        inputs = [axis.input for axis in axes]
        return short_by_input(inputs, sizes)

    @property
    def units(self) -> Short:
        """The number of units along the same axes; None where no dimension follows an axis."""
        axes = [axis for axis in self.axes if axis.status != "none"]
        inputs = [axis.input for axis in axes]
        units = [axis.units for axis in axes]
        return short_by_input(inputs, units)

    @property
    def unused(self) -> Short:
        """The number of positions that reach nothing, in the same form, of all axes."""
        inputs = [axis.input for axis in self.axes]
        unused = [len(axis.unused) for axis in self.axes]
        return short_by_input(inputs, unused)

    def reaches(self, *position: int, name: str | None = None) -> tuple[Span, ...]:
        """Return, for each axis of an input, the first and the last unit that a position reaches.

        Args:
            position: an index along each spatial axis of the input.
            name: which input, if there are several.
        """
        axes = self._axes_of_input(name)
        if len(position) != len(axes):
            raise InputError(
                Argument("position"),
                f" is {position}: give {len(axes)} numbers, one for each spatial axis of "
                f"{axes[0].input if axes else 'an input'}",
            )
        return tuple([axis.interval(at) for axis, at in zip(axes, position, strict=True)])

    def table(self) -> Table:
        """Return every axis of every output."""
        return table_of(self)

    def _axes_of_input(self, name: str | None) -> list[AxisReach]:
        names = list(dict.fromkeys(axis.input for axis in self.axes))
        if name is not None and name not in names:
            raise InputError(
                Argument("name"),
                f" is {name!r}, which is not an input: choose from {', '.join(names)}",
            )
        wanted = name or (names[0] if names else None)
        return [axis for axis in self.axes if axis.input == wanted]


@dataclass(frozen=True, slots=True)
class ProjectiveField(LayerResults[LayerReach]):
    """The projective fields at all layer calls.

    ``["layer4"]`` is a layer's first call, ``["layer4", 1]`` its second.
    """

    def table(self, layer: str | None = None, *, position: Sequence[int] | None = None) -> Table:
        """Return the projective field at each layer, or every axis of one ``layer``.

        With a ``position`` of the first input, the table has the units that it reaches.
        """
        return table_of(self, layer=layer, position=position)

    def __repr__(self) -> str:
        return f"<ProjectiveField at {len(self.layers)} layer calls, output {self.output.size}>"
