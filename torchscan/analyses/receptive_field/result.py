"""What there is to say of the receptive field of a layer: per input and per axis a box that moves from unit to unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from torchscan.analyses.receptive_field.lines import LEAST_NOTHING, NOTHING, Line, joined, least
from torchscan.analyses.receptive_field.sights import Envelope, Reason, Shape, Sight, sized
from torchscan.errors import InputError

#: one number for all axes; one per axis; by input, where there are several
Short = int | Fraction | str | tuple[Any, ...] | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AxisField:
    """What the units of a layer see of one axis of one input.

    Unit i sees ``sizes[i mod P]`` places from ``starts[i mod P] + (i div P) · P · stride`` on, for P entries in ``starts``.
    Places outside the input are padding. Where ``status`` is "global", everything is seen, for the ``reasons``; what is seen
    besides, along the other ways, is still told.
    """

    input: str
    axis: int
    #: of the input along the axis
    length: int
    status: Literal["local", "global", "none"]
    #: how many units there are along it in the layer's output; None where more than one dimension follows it, or none
    units: int | None = None
    #: the most that a unit sees; None: nothing, or nothing but what is seen as a whole
    size: int | None = None
    #: from unit to unit, on the average; None: it is the same for all
    stride: int | Fraction | None = None
    #: how far a unit reaches ahead of its place, ``stride · i − start``; the most of all phases
    padding: int | Fraction | None = None
    #: by phase, or for each unit where nothing repeats; empty where more than one dimension of the output follows the axis
    starts: tuple[int | None, ...] = ()
    #: by phase; one number where all are of one size
    sizes: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    def interval(self, unit: int) -> tuple[int, int] | None:
        """The first and the last place that a unit sees along its ways that are local; None: it sees nothing there."""
        if not self.starts:
            return None
        blocks, phase = divmod(unit, len(self.starts))
        start = self.starts[phase]
        if start is None:
            return None
        start += int(blocks * len(self.starts) * (self.stride or 0))
        return start, start + self.sizes[phase % len(self.sizes)] - 1

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "input": self.input,
            "axis": self.axis,
            "status": self.status,
            "units": self.units,
            "rf": self.size,
            "stride": plain_short(self.stride),
            "padding": plain_short(self.padding),
            "starts": list(self.starts),
            "sizes": list(self.sizes),
            "reasons": [{"operator": each.operator, "path": each.path} for each in self.reasons],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class LayerField:
    """The receptive field of one call of one module."""

    path: str
    type_name: str
    call: int
    #: of each output tensor, its axes
    outputs: tuple[tuple[AxisField, ...], ...]

    @property
    def axes(self) -> tuple[AxisField, ...]:
        """Of the first output that sees anything of an input: one per input and spatial axis."""
        seeing = (axes for axes in self.outputs if any(axis.status != "none" for axis in axes))
        return next(seeing, self.outputs[0] if self.outputs else ())

    @property
    def rf(self) -> Short:
        """The size: a number where all axes agree, else one per axis; "global" in words."""
        return self._short(lambda axis: "global" if axis.status == "global" else axis.size)

    @property
    def stride(self) -> Short:
        """The effective stride, likewise."""
        return self._short(lambda axis: axis.stride)

    @property
    def padding(self) -> Short:
        """The effective padding, likewise."""
        return self._short(lambda axis: axis.padding)

    def _short(self, value: Callable[[AxisField], int | Fraction | str | None]) -> Short:
        by_input: dict[str, list[Any]] = {}
        for axis in self.axes:
            if axis.status != "none":
                by_input.setdefault(axis.input, []).append(value(axis))
        agreed = {name: values[0] if len(set(values)) == 1 else tuple(values) for name, values in by_input.items()}
        if not agreed:
            return None
        first, *others = agreed.values()
        return first if all(other == first for other in others) else agreed


@dataclass(frozen=True, slots=True)
class ReceptiveField:
    """The receptive fields of all layers of a model, in the order of their calls; ``["layer4"]`` is the first of that path."""

    layers: tuple[LayerField, ...]

    @property
    def output(self) -> LayerField:
        """That of the model's own output."""
        return self.layers[0]

    def __getitem__(self, path: str) -> LayerField:
        for layer in self.layers:
            if layer.path == path:
                return layer
        raise InputError(
            f"no layer {path!r} was called: there are {', '.join(repr(each.path) for each in self.layers[1:6])}, …"
        )

    def __iter__(self) -> Iterator[LayerField]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"<ReceptiveField of {len(self.layers)} layer calls, output {self.output.rf}>"

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        layers = [
            {
                "path": layer.path,
                "type": layer.type_name,
                "call": layer.call,
                "outputs": [[axis.as_dict() for axis in axes] for axes in layer.outputs],
            }
            for layer in self.layers
        ]
        return {"layers": layers}


def _whole(number: Fraction | int | None) -> int | Fraction | None:
    """Whole numbers as such."""
    return int(number) if number is not None and number.denominator == 1 else number


def plain_short(value: Short) -> Any:
    """As plain data: fractions as decimals, one number per axis as a list."""
    if isinstance(value, dict):
        return {name: plain_short(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain_short(each) for each in value]
    return float(value) if isinstance(value, Fraction) else value


# -- from what is seen to what is said -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """The dimensions of an output that are places along an axis; over the others all is taken."""

    dims: set[int]
    #: whether places along other axes are in the same dimensions
    are_shared: bool


def axis_field(name: str, axis: int, length: int, sight: Sight | None, shape: Shape, places: Places) -> AxisField:
    """What is said of one axis of an output of this shape."""
    if sight is None:
        return AxisField(name, axis, length, "none")
    status: Literal["local", "global"] = "global" if sight.reasons else "local"
    notes = tuple(sorted(sight.notes))
    if not sight.is_local:
        return AxisField(name, axis, length, status, reasons=sight.reasons, notes=notes)
    units = shape[next(iter(places.dims))] if len(places.dims) == 1 and not places.are_shared else None
    low, high = (_over_the_rest(envelope, shape, places) for envelope in (sight.low, sight.high))
    size, stride, starts, sizes = _along_one(low, high) or _along_several(low, high)
    padding = _reach(stride, starts)
    return AxisField(name, axis, length, status, units, size, _whole(stride), padding, starts, sizes, sight.reasons, notes)


def _reach(stride: Fraction | None, starts: Sequence[int | None]) -> int | Fraction | None:
    if stride is None or not starts:
        return None
    by, per = stride.numerator, stride.denominator
    ahead = [by * phase - per * start for phase, start in enumerate(starts) if start is not None]
    return _whole(Fraction(max(ahead), per)) if ahead else None


#: a term as a number and the lines of the digits that it depends on: (dimension, digit, size, line)
_Flat = tuple[int, tuple[tuple[int, int, int, Line], ...]]
#: starts and sizes, by phase
_Phases = tuple[tuple[int | None, ...], tuple[int, ...]]
_Said = tuple[int, Fraction | None, tuple[int | None, ...], tuple[int, ...]]


def _over_the_rest(envelope: Envelope, shape: Shape, places: Places) -> list[_Flat]:
    flat: list[_Flat] = []
    for term in envelope:
        base, lines = term.base, []
        for dim, digits in enumerate(term.dims):
            counted = sized(digits, shape[dim])
            if dim in places.dims and not places.are_shared:
                counted = ((shape[dim], joined(counted)),)
            for at, (size, line) in enumerate(counted):
                if line is not None and dim in places.dims:
                    lines.append((dim, at - len(counted), size, line))
                elif line is not None:
                    base += least(line, size)
        if base < LEAST_NOTHING:
            flat.append((base, tuple(lines)))
    return flat


def _along_one(low: Sequence[_Flat], high: Sequence[_Flat]) -> _Said | None:
    """Where one digit of one dimension decides, and all terms rise alike with it."""
    flats = (*low, *high)
    deciding = {(dim, digit) for _, lines in flats for dim, digit, _, _ in lines}
    if any(len(lines) > 1 for _, lines in flats) or len(deciding) > 1:
        return None
    slopes = {lines[0][3].slope if lines else Fraction(0) for _, lines in low}
    if len(slopes) > 1 or {lines[0][3].slope if lines else Fraction(0) for _, lines in high} != {-each for each in slopes}:
        return None
    period = math.lcm(*(len(lines[0][3].table) if lines else 1 for _, lines in flats))
    count = max((lines[0][2] for _, lines in flats if lines), default=1)
    starts, sizes = _phases(low, high, range(min(period, count)))
    stride = slopes.pop()
    return max(sizes), stride if deciding and (stride or period > 1) else None, starts, sizes


def _phases(low: Sequence[_Flat], high: Sequence[_Flat], units: Sequence[int]) -> _Phases:
    starts: list[int | None] = []
    sizes: list[int] = []
    for unit in units:
        first = min(base + (lines[0][3].at(unit) if lines else 0) for base, lines in low)
        last = -min(base + (lines[0][3].at(unit) if lines else 0) for base, lines in high)
        starts.append(first if first < LEAST_NOTHING else None)
        sizes.append(last - first + 1 if first < LEAST_NOTHING else 0)
    return tuple(starts), tuple(sizes) if len(set(sizes)) > 1 else tuple(sizes[:1])


def _along_several(low: Sequence[_Flat], high: Sequence[_Flat]) -> _Said:
    """Where several dimensions or digits decide, or ways that rise differently meet: the most that any unit sees."""
    slopes = [abs(line.slope) for _, lines in low for *_, line in lines if line.slope]
    return _widest(low, high), min(slopes, default=None), (), ()


def _widest(low: Sequence[_Flat], high: Sequence[_Flat]) -> int:
    """An upper bound of what a unit sees: for each pair of terms the greatest sum over the digits."""
    return max(_span(one, other) for one in low for other in high)


def _span(one: _Flat, other: _Flat) -> int:
    lines: dict[tuple[int, int], list[tuple[int, Line]]] = {}
    for dim, digit, size, line in (*one[1], *other[1]):
        lines.setdefault((dim, digit), []).append((size, line))
    return 1 - one[0] - other[0] + sum(_greatest_negated(each) for each in lines.values())


def _greatest_negated(parts: Sequence[tuple[int, Line]]) -> int:
    """The most of −(f + g) over an index; opposite lines cancel."""
    size = parts[0][0]
    period = math.lcm(*(len(line.table) for _, line in parts))
    units = {*range(min(period, size)), *range(max(size - period, 0), size)}
    values = ([line.at(unit) for _, line in parts] for unit in units)
    return max((-sum(each) for each in values if max(each) < LEAST_NOTHING), default=-NOTHING)
