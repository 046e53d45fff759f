"""The receptive field of a layer: per input and axis, a box that moves from unit to unit."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchscan.analyses.receptive_field.envelopes import Envelope, Shape, sized
from torchscan.analyses.receptive_field.periodic_lines import (
    MIN_NOTHING,
    NOTHING,
    ZERO,
    PeriodicLine,
    has_gaps,
    joined,
    min_value,
    ratio,
    values_of,
)
from torchscan.analyses.receptive_field.sights import Reason, Sight
from torchscan.errors import InputError
from torchscan.results import PlotSize, Result, draw, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchscan.report.table import Table

#: one number for all axes; one per axis; by input, if there are several
Short = int | Fraction | str | tuple[Any, ...] | dict[str, Any] | None


class AxisField(
    NamedTuple
):  # a tuple, because there are some for each layer: a dataclass takes twice as long to make
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
        """The first and the last place that a unit sees locally; None: it sees nothing locally."""
        if not self.starts or (
            self.inside is not None and not self.inside[0] <= unit < self.inside[1]
        ):
            return None
        blocks, phase = divmod(unit, len(self.starts))
        start = self.starts[phase]
        if start is None:
            return None
        start += blocks * self.rise
        return start, start + self.sizes[phase % len(self.sizes)] - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
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
            "reasons": [{"operator": each.operator, "path": each.path} for each in self.reasons],
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
        return self._short(
            ["global" if axis.status == "global" else axis.size for axis in self._seeing]
        )

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
        if not values or values.count(values[0]) == len(values):
            return values[0] if values else None
        by_input: dict[str, list[Any]] = {}
        for axis, value in zip(self._seeing, values, strict=True):
            by_input.setdefault(axis.input, []).append(value)
        agreed = {
            name: each[0] if each.count(each[0]) == len(each) else tuple(each)
            for name, each in by_input.items()
        }
        shorts = [*agreed.values()]
        return shorts[0] if shorts.count(shorts[0]) == len(shorts) else agreed


@dataclass(frozen=True, slots=True)
class ReceptiveField(Result):
    """The receptive fields of all layer calls: ``["layer4"]`` is a layer's first call, ``["layer4", 1]`` its second."""

    layers: tuple[LayerField, ...]

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

    @property
    def output(self) -> LayerField:
        """The receptive field of the model's output."""
        return self.layers[0]

    def __getitem__(self, key: str | tuple[str, int]) -> LayerField:
        path, call = (key, 0) if isinstance(key, str) else key
        for layer in self.layers:
            if (layer.path, layer.call) == (path, call):
                return layer
        known = list(dict.fromkeys(each.path for each in self.layers))
        near = difflib.get_close_matches(str(path), known, 5, 0) or known[:5]
        times = f" {call + 1} times" if call else ""
        raise InputError(
            f"no layer {path!r} was called{times}: choose from {', '.join(map(repr, near))}"
        )

    def __iter__(self) -> Iterator[LayerField]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"<ReceptiveField of {len(self.layers)} layer calls, output {self.output.rf}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        layers = [
            {
                "path": layer.path,
                "type": layer.type_name,
                "call": layer.call,
                "outputs": [[axis.to_dict() for axis in axes] for axes in layer.outputs],
            }
            for layer in self.layers
        ]
        return {"layers": layers}


def plain_short(value: Short) -> Any:
    """Return plain data: fractions as decimals, one number per axis as a list."""
    if value is None or type(value) is int:
        return value  # most are, and no other type is asked for as fast
    if isinstance(value, dict):
        return {name: plain_short(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain_short(each) for each in value]
    return float(value) if isinstance(value, Fraction) else value


# -- from what is seen to what is said -----------------------------------------------------------------------------------


class Places(NamedTuple):  # a tuple, as it is part of what is asked
    """The dimensions of an output that are places along an axis; the others are taken as a whole."""

    dims: frozenset[int]
    #: whether places along other axes share these dimensions
    are_shared: bool

    def turned(self, turn: Sequence[int]) -> Places:
        """With each dimension where the turn puts it."""
        return Places(frozenset([turn[dim] for dim in self.dims]), self.are_shared)


def axis_field(
    name: str, axis: int, length: int, sight: Sight | None, shape: Shape, places: Places
) -> AxisField:
    """The result for one axis of an output of this shape."""
    if sight is None:
        return AxisField(input=name, axis=axis, length=length, status="none")
    status: Literal["local", "global"] = "global" if sight.reasons else "local"
    said: dict[str, Any] = {
        "status": status,
        "reasons": sight.reasons,
        "notes": tuple(sorted(sight.notes)),
    }
    dim = next(iter(places.dims)) if len(places.dims) == 1 else None
    if sight.is_local and dim is not None:
        spans = {each: (start, stop) for each, start, stop in sight.inside}
        said |= {"dim": dim, "units": shape[dim], "inside": spans.get(dim)}
    if sight.is_local:
        low, high = (
            _over_the_rest(envelope, shape, places) for envelope in (sight.low, sight.high)
        )
        said |= _ends(low, high, dim, places)
    field = AxisField(input=name, axis=axis, length=length, **said)
    moves = dim is not None and (field.rise != 0 or len(field.starts) > 1)
    return _with_steps(field) if places.are_shared and moves else field


def _ends(
    low: Sequence[_Flat], high: Sequence[_Flat], dim: int | None, places: Places
) -> dict[str, Any]:
    """Return the fields of an AxisField that follow from starts and sizes."""
    phases = _along_one(low, high)
    if phases is None:
        return {"size": _widest(low, high), "stride": _least_slope(low)}
    said: dict[str, Any] = {
        "size": max(phases.sizes),
        "starts": phases.starts,
        "sizes": phases.sizes,
        "rise": phases.rise,
    }
    if dim is None or places.are_shared or (not phases.rise and len(phases.starts) == 1):
        return said
    return {
        **said,
        "stride": ratio(phases.rise, phases.period),
        "padding": _greatest_padding(phases),
    }


def _greatest_padding(phases: _Phases) -> int | Fraction | None:
    """``padding = stride · i − start``, the largest over all phases."""
    by, per = phases.rise, phases.period
    ahead = [
        by * phase - per * start for phase, start in enumerate(phases.starts) if start is not None
    ]
    return ratio(max(ahead), per) if ahead else None


def further(said: AxisField, low: int, high: int) -> AxisField:
    """Return the field with these offsets added to its ends: ``size = 1 − high − low``."""
    if said.size is None or not (low or high):
        return said
    return AxisField(
        input=said.input,
        axis=said.axis,
        length=said.length,
        status=said.status,
        dim=said.dim,
        units=said.units,
        size=said.size - low - high,
        stride=said.stride,
        padding=None if said.padding is None else said.padding - low,
        rise=said.rise,
        starts=tuple([start + low for start in said.starts if start is not None]),
        sizes=tuple([size - low - high for size in said.sizes]),
        inside=said.inside,
        reasons=said.reasons,
        notes=said.notes,
    )


def _with_steps(said: AxisField) -> AxisField:
    """If a dimension holds places of several axes, the stride is the smallest step between two of them."""
    units = range(*(said.inside or (0, said.units or 0)))
    period = len(said.starts)  # the same steps come again, and starts move one way
    first, last = (_starts_of(said, part) for part in (units[: 2 * period], units[-period:]))
    steps = {abs(later - start) for start, later in itertools.pairwise(first)} - {0}
    least = min(first + last, default=None)
    return said._replace(stride=min(steps, default=None), padding=None if least is None else -least)


def _starts_of(said: AxisField, units: Iterable[int]) -> list[int]:
    return [interval[0] for unit in units if (interval := said.interval(unit))]


#: a term as a number and the lines of the dimensions that it depends on: (dimension, size, line)
_Flat = tuple[int, tuple[tuple[int, int, PeriodicLine], ...]]


def _over_the_rest(envelope: Envelope, shape: Shape, places: Places) -> list[_Flat]:
    """Terms along places, reduced to the least along all other dimensions."""
    flat: list[_Flat] = []
    for term in envelope:
        base, lines = term.base, []
        for dim, digits in enumerate(term.dims):
            line = joined(sized(digits, shape[dim])) if digits else None
            if line is not None and dim in places.dims:
                lines.append((dim, shape[dim], line))
            else:
                base += min_value(line, shape[dim])
        if base < MIN_NOTHING:
            flat.append((base, tuple(lines)))
    return flat


@dataclass(frozen=True, slots=True)
class _Phases:
    """Starts and sizes by phase, how far the starts move in one period, and the length of the period."""

    starts: tuple[int | None, ...]
    sizes: tuple[int, ...]
    rise: int
    period: int


def _along_one(low: Sequence[_Flat], high: Sequence[_Flat]) -> _Phases | None:
    """The case in which one dimension decides and all terms rise equally along it."""
    flats = (*low, *high)
    if (
        any(len(lines) > 1 for _, lines in flats)
        or len({lines[0][0] for _, lines in flats if lines}) > 1
    ):
        return None
    slopes = {lines[0][2].slope if lines else 0 for _, lines in low}
    if len(slopes) > 1 or {lines[0][2].slope if lines else 0 for _, lines in high} != {
        -each for each in slopes
    }:
        return None
    period = math.lcm(*(len(lines[0][2].table) if lines else 1 for _, lines in flats))
    count = max((lines[0][1] for _, lines in flats if lines), default=1)
    starts, sizes = _by_phase(low, high, min(period, count))
    return _Phases(starts, sizes, int(slopes.pop() * period), period)


def _by_phase(
    low: Sequence[_Flat], high: Sequence[_Flat], count: int
) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    firsts, lasts = (_least_of_all(flats, count) for flats in (low, high))
    starts = tuple([first if first < MIN_NOTHING else None for first in firsts])
    sizes = [
        1 - first - last if first < MIN_NOTHING else 0
        for first, last in zip(firsts, lasts, strict=True)
    ]
    return starts, tuple(sizes) if len(set(sizes)) > 1 else tuple(sizes[:1])


def _least_of_all(flats: Sequence[_Flat], count: int) -> Sequence[int]:
    """Return the smallest value of all terms for each unit along one dimension."""
    by_term = [
        [base + value for value in values_of(lines[0][2], count)] if lines else [base] * count
        for base, lines in flats
    ]
    return by_term[0] if len(by_term) == 1 else [*map(min, *by_term)]


def _least_slope(low: Sequence[_Flat]) -> int | Fraction | None:
    """The case in which several dimensions decide, or ways that rise differently meet."""
    return min(
        (line.steepness for _, lines in low for *_, line in lines if line.rise), default=None
    )


def _widest(low: Sequence[_Flat], high: Sequence[_Flat]) -> int:
    """An upper bound of what a unit sees: for each pair of terms, the greatest sum over the digits."""
    return max([_span(one, other) for one in low for other in high])


def _span(one: _Flat, other: _Flat) -> int:
    others = {dim: line for dim, _, line in other[1]}
    span = 1 - one[0] - other[0]
    for dim, size, line in one[1]:
        span -= _least_sum(line, others.pop(dim, ZERO), size)
    return span - sum(
        [_least_sum(line, ZERO, size) for dim, size, line in other[1] if dim in others]
    )


def _least_sum(one: PeriodicLine, other: PeriodicLine, size: int) -> int:
    """The minimum of f + g, where both see something, in the first period or the last; opposite lines cancel."""
    period = math.lcm(len(one.table), len(other.table))
    rise = period // len(one.table) * one.rise + period // len(other.table) * other.rise
    count = min(period, size)
    start = 0 if rise >= 0 else size - count
    pairs = zip(values_of(one, count, start), values_of(other, count, start), strict=True)
    sums = [first + second for first, second in pairs]
    if has_gaps(sums):
        return min([each for each in sums if each < MIN_NOTHING], default=NOTHING)
    return min(sums)
