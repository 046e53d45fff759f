"""Modules over the steps of a run: gradients, updates, outputs, dead units and NaN, in columns.

The worker keeps the columns beside the steps. Steps are thinned out and columns are merged, so that
an extreme of any sampled step stays. A page reads them without the distributions.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor

from torchscan.watching.byte_planes import deflate, from_planes, inflate, to_planes
from torchscan.watching.distribution_columns import Distributions, group_alike, side_by_side
from torchscan.watching.schema import Phase, SampledStep, Series
from torchscan.watching.validation import BrokenRunError

#: the rows of the values of a column: standard deviations are summed up with their number; norms of
#: weights and numbers of units are the weights of means over several modules
QUANTITIES = (
    *("gradient", "update", "weight", "std", "num_stds", "dead", "units"),
    *("nonfinite", "places"),
)
_GRADIENT, _UPDATE, _WEIGHT, _STD, _NUM_STDS, _DEAD, _UNITS, _NONFINITE, _PLACES = range(9)
_SUMS = [_STD, _NUM_STDS]
_MAXIMA = [_GRADIENT, _UPDATE, _WEIGHT, _DEAD, _UNITS, _NONFINITE]
#: the rows of columns that were written before the others came
_FIRST_ROWS = [_GRADIENT, _UPDATE, _STD, _NUM_STDS, _DEAD, _NONFINITE]
#: quantities that users see
_SHOWN = ("gradient", "update", "std", "dead", "nonfinite")
#: where values are not finite: a sum of these
IN_OUTPUTS, IN_GRADIENTS, IN_WEIGHTS = 1, 2, 4
_PLACE_OF_KIND: Mapping[str, int] = {
    "output": IN_OUTPUTS,
    "output_grad": IN_GRADIENTS,
    "param_grad": IN_GRADIENTS,
    "param": IN_WEIGHTS,
}
#: the newest columns, which hold a step each; older ones are divided into at most so many spans
NUM_SINGLE = 512
_MAX_SPANS = 512
#: columns after which older ones are merged again
MERGING_INTERVAL = 128
#: other plans that are kept: passes of several models and phases take turns
_NUM_PLANS = 15
#: first and last place of a column, and its number of steps
Span = tuple[int, int, int]
_HEAD = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersOverSteps:
    """Quantities of each module in columns of steps.

    A quantity has a row for each path and a value for each column; NaN if it is not known. A column
    holds the sampled steps of ``width`` consecutive ones; there is none where no step was sampled.
    Steps that are no longer kept count, too. Of several ranks, a value is the largest of a rank;
    the smallest of a rank for ``dead``, the mean for ``std`` and the sum for ``nonfinite``.
    """

    phase: Phase
    #: paths of modules, in the order of the model
    paths: tuple[str, ...]
    #: names of their types
    types: tuple[str, ...]
    #: number of consecutive steps that share a column
    width: int
    #: first sampled step of each column; of evaluations, numbers of passes
    first: tuple[int, ...]
    #: last sampled step of each column
    last: tuple[int, ...]
    #: number of sampled steps of each column
    num_steps: tuple[int, ...]
    #: largest L2 norm of the gradients of the module's own parameters
    gradient: tuple[tuple[float, ...], ...]
    #: largest change of the module's own parameters in a step, relative to their norm
    update: tuple[tuple[float, ...], ...]
    #: mean standard deviation of the first output of the first call
    std: tuple[tuple[float, ...], ...]
    #: largest share of dead units
    dead: tuple[tuple[float, ...], ...]
    #: largest estimated number of NaN and Inf in all recorded tensors of the module
    nonfinite: tuple[tuple[float, ...], ...]


def layers_over_steps(
    ranks: Sequence[tuple[Sequence[ColumnOfLayers], Mapping[int, Series]]],
    phase: Phase,
    paths: Sequence[str],
    max_columns: int,
) -> LayersOverSteps:
    """Return the quantities of modules, from the columns and the series of each rank."""
    types = {each.path: each.type_name for _, series in ranks for each in series.values()}
    renumbered = [_number_by_path(columns, series, paths) for columns, series in ranks]
    width = width_of_columns([each.first for found in renumbered for each in found], max_columns)
    merged = merge_columns(renumbered, width)
    found = quantities_of(merged, len(paths))
    return LayersOverSteps(
        phase=phase,
        paths=tuple(paths),
        types=tuple(map(types.__getitem__, paths)),
        width=width,
        first=tuple(map(attrgetter("first"), merged)),
        last=tuple(map(attrgetter("last"), merged)),
        num_steps=tuple(map(attrgetter("num_steps"), merged)),
        **{name: tuple(map(tuple, found[name].tolist())) for name in _SHOWN},
    )


def _number_by_path(
    columns: Sequence[ColumnOfLayers], series: Mapping[int, Series], paths: Sequence[str]
) -> list[ColumnOfLayers]:
    """Return the columns with the indices of paths as the numbers of modules."""
    indices = {path: index for index, path in enumerate(paths)}
    numbers = {}
    for number, each in series.items():
        numbers[number] = indices[each.path]
    return renumber(columns, numbers)


def merge_columns(ranks: Sequence[Sequence[ColumnOfLayers]], width: int) -> list[ColumnOfLayers]:
    """Return the columns of this width, of all ranks together."""
    by_place: dict[int, list[ColumnOfLayers]] = defaultdict(list)
    for columns in ranks:
        for place, steps in groupby(columns, lambda column: column.first // width):
            by_place[place].append(merge_steps(list(steps)))
    return [merge_ranks(by_place[place]) for place in sorted(by_place)]


def quantities_of(columns: Sequence[ColumnOfLayers], num_modules: int) -> dict[str, Tensor]:
    """Return each quantity as rows for modules, with a value for each column."""
    values = torch.full((len(QUANTITIES), num_modules, len(columns)), torch.nan)
    for index, column in enumerate(columns):
        values[:, column.modules, index] = column.values
    found = dict(zip(QUANTITIES, values, strict=True))
    found["std"] = found["std"] / found["num_stds"]
    return found


def order_paths(series: Collection[Series]) -> list[str]:
    """Return the paths of modules with parents before their children, in the order of outputs."""
    outputs = [each.path for each in series if each.kind == "output"]
    known = dict.fromkeys(each.path for each in series)
    children: dict[str, dict[str, None]] = defaultdict(dict)
    for path in (*outputs, *known):
        while path:
            parent = path.rpartition(".")[0]
            children[parent][path] = None
            path = parent
    ordered = []
    waiting = [""]
    while waiting:
        path = waiting.pop()
        waiting += reversed(children[path])
        if path in known:
            ordered.append(path)
    return ordered


@dataclass(frozen=True, kw_only=True)
class ColumnOfLayers:
    """The quantities of all modules in some consecutive sampled steps."""

    #: training steps, or the numbers of evaluation passes
    first: int
    last: int
    #: last training step, also of an evaluation
    step: int
    num_steps: int
    #: for each module the smallest number of its series
    modules: Tensor
    #: a row for each of ``QUANTITIES``; NaN if it is not known, and 0 for sums of nothing
    values: Tensor

    @property
    def span(self) -> Span:
        """The steps of the column."""
        return self.first, self.last, self.num_steps


class LayerReader:
    """A reader of the quantities of modules from distributions.

    Most steps have the same series, so where each quantity comes from is worked out once.
    """

    def __init__(self) -> None:
        #: newest last
        self._plans: list[_SeriesPlan] = []

    def read(
        self, steps: Sequence[SampledStep], series: Mapping[int, Series]
    ) -> list[ColumnOfLayers]:
        """Return the column of each step. Steps with the same series are read together."""
        found = [side_by_side(each.distributions) for each in steps]
        columns: dict[int, ColumnOfLayers] = {}
        for indices in group_alike(found):
            alike = [found[index] for index in indices]
            known = [plan for plan in self._plans if plan.fits(alike[0])]
            plan = known[0] if known else _SeriesPlan(alike[0], series)
            others = [each for each in self._plans if each is not plan]
            self._plans = [*others[-_NUM_PLANS:], plan]
            for index, values in zip(indices, plan.quantities(alike), strict=True):
                step = steps[index]
                columns[index] = ColumnOfLayers(
                    first=step.place,
                    last=step.place,
                    step=step.step,
                    num_steps=1,
                    modules=plan.modules,
                    values=values,
                )
        return [columns[index] for index in range(len(steps))]


class _SeriesPlan:
    """Indices of modules and rows for one set of series."""

    def __init__(self, found: Distributions, series: Mapping[int, Series]) -> None:
        self._layout = found.numbers, found.rows, found.can_die
        known = [each for each in zip(found.numbers, found.rows, strict=True) if each[0] in series]
        can_die = dict(zip(found.numbers, found.can_die, strict=True))
        smallest: dict[str, int] = {}
        for number, _ in sorted(known):
            smallest.setdefault(series[number].path, number)
        indices = {path: index for index, path in enumerate(smallest)}
        pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, row in known:
            each = series[number]
            pair = indices[each.path], row
            pairs["all"].append(pair)
            pairs[each.kind].append(pair)
            if can_die[number]:  # rows are shared with series that cannot
                pairs["can die"].append(pair)
            if (each.kind, each.name, each.invocation) == ("output", "0", 0):
                pairs["first output"].append(pair)
        self.modules = torch.tensor(list(smallest.values()), dtype=torch.int64)
        self._pairs = {
            name: torch.tensor(found, dtype=torch.int64).T for name, found in pairs.items()
        }

    def fits(self, found: Distributions) -> bool:
        """Return whether a step has the series and rows of the plan."""
        return self._layout == (found.numbers, found.rows, found.can_die)

    def _modules_and_rows(self, name: str) -> tuple[Tensor, Tensor]:
        nothing = torch.empty(2, 0, dtype=torch.int64)
        modules, rows = self._pairs.get(name, nothing)
        return modules, rows

    def quantities(self, steps: Sequence[Distributions]) -> Tensor:
        """Return the values of the column of each step."""
        names = ("norm", "numel", "mean", "std", "update", "dead", "nan", "inf", "sampled")
        figures = {}
        for name in names:
            figures[name] = torch.stack([each.columns.figures[name] for each in steps])
        shape = len(steps), len(QUANTITIES), len(self.modules)
        values = torch.full(shape, torch.nan, dtype=torch.float64)
        gradients, updates, weights, stds, num_stds, dead, units, nonfinite, places = values.unbind(
            1
        )
        modules, rows = self._modules_and_rows("param_grad")
        squares = _norms_of(figures, rows).square()
        gradients[:, modules] = 0.0
        gradients.index_add_(1, modules, squares).sqrt_()

        modules, rows = self._modules_and_rows("param")
        norms, changes = _norms_of(figures, rows), figures["update"][:, rows].double()
        is_known = ~changes.isnan()
        norms = norms.where(is_known, 0.0)
        sums = torch.zeros(3, *updates.shape, dtype=torch.float64)
        of_weights, of_changes, num_known = sums
        of_weights.index_add_(1, modules, norms.square())
        of_changes.index_add_(1, modules, (changes * norms).square().where(is_known, 0.0))
        num_known.index_add_(1, modules, is_known.double())
        weights[:] = of_weights.sqrt().where(num_known > 0, torch.nan)
        updates[:] = of_changes.sqrt() / weights

        modules, rows = self._modules_and_rows("first output")
        outputs = figures["std"][:, rows].double()
        is_known = ~outputs.isnan()
        stds[:] = num_stds[:] = 0.0
        stds[:, modules] = outputs.where(is_known, 0.0)
        num_stds[:, modules] = is_known.double()

        modules, rows = self._modules_and_rows("can die")
        if len(modules):
            places_of_units = modules.expand(len(steps), -1)
            shares = figures["dead"][:, rows].double().nan_to_num(-1.0)
            dead[:, modules] = -1.0
            dead.scatter_reduce_(1, places_of_units, shares, "amax")
            dead.masked_fill_(dead < 0, torch.nan)
            units[:, modules] = 0.0
            numels = figures["numel"][:, rows].double()
            units.scatter_reduce_(1, places_of_units, numels, "amax")

        nonfinite[:] = places[:] = 0.0
        counts = figures["nan"] + figures["inf"]
        if counts.any():
            modules, rows = self._modules_and_rows("all")
            shares = counts.double() / figures["sampled"].clamp(min=1)
            nonfinite.index_add_(1, modules, (shares * figures["numel"]).round()[:, rows])
            for own, is_wrong in zip(places, counts > 0, strict=True):
                own[:] = self._places_of(is_wrong)
        return values.float()

    def _places_of(self, is_wrong: Tensor) -> Tensor:
        """Return where the values of each module are not finite."""
        found = torch.zeros(len(self.modules), dtype=torch.int64)
        for kind, place in _PLACE_OF_KIND.items():
            modules, rows = self._modules_and_rows(kind)
            found[modules[is_wrong[rows]]] |= place
        return found


def _norms_of(figures: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Return the L2 norms of rows, or estimates from their sampled values.

    Squares of values below 1e-23 are 0 with 32 bits, and so is the norm that the device computed.
    """
    norms = figures["norm"][:, rows].double()
    numel, mean, std = (figures[name][:, rows].double() for name in ("numel", "mean", "std"))
    estimates = numel.sqrt() * mean.hypot(std)
    return norms.where(norms != 0, estimates.nan_to_num(0))


def merge_steps(columns: Sequence[ColumnOfLayers]) -> ColumnOfLayers:
    """Return one column for steps that follow each other."""
    modules, values = _joined(columns)
    merged = torch.full_like(values[0], torch.nan)
    merged[_SUMS] = values[:, _SUMS].sum(0)
    for each in values:
        merged[_MAXIMA] = merged[_MAXIMA].fmax(each[_MAXIMA])
    merged[_PLACES] = _unite_places(values[:, _PLACES])
    return _merged(columns, modules, merged, sum(each.num_steps for each in columns))


def merge_ranks(columns: Sequence[ColumnOfLayers]) -> ColumnOfLayers:
    """Return one column for the same steps of several ranks.

    Norms and updates are the largest of a rank, as ranks have the same parameters or a part of
    them. A unit is dead if it is for all ranks, so no more can be than in the rank with fewest.
    """
    modules, values = _joined(columns)
    merged = torch.full_like(values[0], torch.nan)
    merged[_SUMS] = values[:, _SUMS].sum(0)
    merged[_NONFINITE] = values[:, _NONFINITE].nan_to_num(0).sum(0)
    merged[_PLACES] = _unite_places(values[:, _PLACES])
    for each in values:
        for name in (_GRADIENT, _UPDATE, _WEIGHT, _UNITS):
            merged[name] = merged[name].fmax(each[name])
        merged[_DEAD] = merged[_DEAD].fmin(each[_DEAD])
    return _merged(columns, modules, merged, max(each.num_steps for each in columns))


def _unite_places(columns: Tensor) -> Tensor:
    """Return where values are not finite in any of the columns."""
    found = columns.new_zeros(columns.shape[1], dtype=torch.uint8)
    for each in columns.nan_to_num(0).to(torch.uint8):
        found |= each
    return found.to(columns.dtype)


def _merged(
    columns: Sequence[ColumnOfLayers], modules: Tensor, values: Tensor, num_steps: int
) -> ColumnOfLayers:
    return ColumnOfLayers(
        first=min(each.first for each in columns),
        last=max(each.last for each in columns),
        step=max(each.step for each in columns),
        num_steps=num_steps,
        modules=modules,
        values=values,
    )


def _joined(columns: Sequence[ColumnOfLayers]) -> tuple[Tensor, Tensor]:
    """Return all modules of some columns, and the values of each column for all of them."""
    first, *others = columns
    if all(first.modules.equal(each.modules) for each in others):
        return first.modules, torch.stack([each.values for each in columns])
    modules = torch.cat([each.modules for each in columns]).unique()
    values = torch.full((len(columns), len(QUANTITIES), len(modules)), torch.nan)
    values[:, _SUMS] = 0.0
    values[:, _PLACES] = 0.0
    for index, each in enumerate(columns):
        values[index][:, torch.searchsorted(modules, each.modules)] = each.values
    return modules, values


def renumber(columns: Sequence[ColumnOfLayers], numbers: Mapping[int, int]) -> list[ColumnOfLayers]:
    """Return columns with other numbers for their modules; unknown ones are left out."""
    size = max(numbers, default=-1) + 1
    lookup = torch.full((size + 1,), -1)
    lookup[list(numbers)] = torch.tensor(list(numbers.values()), dtype=torch.int64)
    found = []
    for column in columns:
        is_there = (column.modules >= 0) & (column.modules < size)
        modules = lookup[column.modules.where(is_there, size)]
        is_known = modules >= 0
        known = replace(column, modules=modules[is_known], values=column.values[:, is_known])
        found.append(known)
    return found


def width_of_columns(firsts: Sequence[int], max_columns: int) -> int:
    """Return the smallest power of two with which places lie in so many columns."""
    width = 1
    while firsts and max(firsts) // width - min(firsts) // width >= max_columns:
        width *= 2
    return width


def spans_to_merge(firsts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the beginnings of columns that become one, of all columns in order."""
    old = firsts[:-NUM_SINGLE]
    width = width_of_columns(old, _MAX_SPANS)
    spans: dict[int, list[int]] = defaultdict(list)
    for first in old:
        spans[first // width].append(first)
    yield from (span for span in spans.values() if len(span) > 1)


def pack_column(column: ColumnOfLayers) -> bytes:
    """Return the modules and values of a column as bytes."""
    modules = column.modules.diff(prepend=torch.zeros(1, dtype=torch.int64))
    data = to_planes(modules) + to_planes(column.values)
    return _HEAD.pack(len(column.modules)) + deflate(data)


def unpack_column(first: int, last: int, step: int, num_steps: int, data: object) -> ColumnOfLayers:
    """Return the column again, if the bytes hold what their header promises."""
    if not isinstance(data, bytes):
        raise BrokenRunError(f"has a column of layers of type {type(data).__name__}")
    try:
        modules, values = _unpack(data)
    except (zlib.error, struct.error, ValueError) as error:
        raise BrokenRunError(f"has a column of layers that cannot be read ({error})") from error
    return ColumnOfLayers(
        first=first, last=last, step=step, num_steps=num_steps, modules=modules, values=values
    )


def _unpack(data: bytes) -> tuple[Tensor, Tensor]:
    """Return the modules and the values of a column, also of one with fewer quantities."""
    (number,) = _HEAD.unpack_from(data)
    stream = memoryview(data)[_HEAD.size :]
    of_modules, of_row = 8 * number, 4 * number
    rows = list(range(len(QUANTITIES)))
    try:
        planes = inflate(stream, of_modules + len(rows) * of_row)
    except ValueError:
        rows = _FIRST_ROWS
        planes = inflate(stream, of_modules + len(rows) * of_row)
    values = torch.full((len(QUANTITIES), number), torch.nan)
    values[_PLACES] = 0.0
    values[rows] = from_planes("f", planes[of_modules:], len(rows))
    return from_planes("q", planes[:of_modules], 1)[0].cumsum(0), values
