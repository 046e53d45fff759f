"""The values of each module over the steps of a run, such as its gradient norm."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.distribution_columns import Distributions, side_by_side
from torchscan.watching.explore.layer_tree import LayerTree
from torchscan.watching.schema import SampledStep, Series

#: values of modules that are kept for a page: more modules have fewer columns
_MAX_VALUES = 160_000
_MAX_COLUMNS, _MIN_COLUMNS = 1024, 64
#: quantities with a value between 0 and infinity
QUANTITIES = ("gradient", "update", "std", "dead")
#: of several steps in a column, the largest of these is kept; of the others, the mean
LARGEST = frozenset({"gradient", "std"})
#: where values are not finite: a sum of these
IN_OUTPUTS, IN_GRADIENTS, IN_WEIGHTS = 1, 2, 4
_PLACES = {
    "output": IN_OUTPUTS,
    "output_grad": IN_GRADIENTS,
    "param_grad": IN_GRADIENTS,
    "param": IN_WEIGHTS,
}
_TYPES = {"d": torch.float64, "Q": torch.int64, "I": torch.int32, "B": torch.uint8}


@dataclass(slots=True, kw_only=True)
class _Column:
    """Some neighboring steps. Each tensor has a value for each row."""

    first: int
    last: int
    num_steps: int
    #: sums, or the largest value
    values: dict[str, Tensor]
    #: how many steps had a value
    counts: dict[str, Tensor]
    not_finite: Tensor

    def add(self, other: _Column) -> None:
        """Add the steps of another column."""
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.num_steps += other.num_steps
        for name, values in self.values.items():
            if name in LARGEST:
                self.values[name] = torch.maximum(values, other.values[name])
            else:
                self.values[name] = values + other.values[name]
            self.counts[name] = self.counts[name] + other.counts[name]
        self.not_finite = self.not_finite | other.not_finite

    def finish(self, name: str) -> Tensor:
        """Return the largest values, or the means; NaN where there is none."""
        counts = self.counts[name]
        values = self.values[name]
        if name not in LARGEST:
            values = values / counts.clamp(min=1)
        return values.where(counts > 0, math.nan)


@dataclass(frozen=True, kw_only=True)
class LayerColumns:
    """The rows of a heat map: values by quantity, each (rows, columns); NaN where there is none."""

    tree: LayerTree
    first: list[int]
    last: list[int]
    #: step that each column reaches
    until: list[int]
    num_sampled: int
    values: Mapping[str, Tensor]
    #: sums of ``IN_…``, (rows, columns)
    not_finite: Tensor


class LayerSteps:
    """A collector of steps, in at most so many columns: memory does not grow with the run."""

    def __init__(self, series: Sequence[Series]) -> None:
        """``series``: all of the run; a new series needs a new collector."""
        self.tree = LayerTree(series)
        budget = _MAX_VALUES // (max(1, len(self.tree)) * len(QUANTITIES))
        self._max_columns = max(_MIN_COLUMNS, min(_MAX_COLUMNS, budget))
        self._width = 1
        self._columns: dict[int, _Column] = {}
        self._plans: dict[bytes, _StepPlan] = {}

    def add(self, place: int, watched: SampledStep, series: Mapping[int, Series]) -> None:
        """Add a step of one rank; ``place`` is its position on the axis."""
        found = side_by_side(watched.distributions)
        numbers = array("Q", found.numbers)
        key = numbers.tobytes()
        if key not in self._plans:
            self._plans[key] = _StepPlan(self.tree, [series.get(number) for number in numbers])
        column = self._plans[key].column_of(place, found)
        self._put(place // self._width, column)
        while len(self._columns) > self._max_columns:
            columns = self._columns
            self._width, self._columns = 2 * self._width, {}
            for number, each in columns.items():
                self._put(number // 2, each)

    def _put(self, number: int, column: _Column) -> None:
        if number in self._columns:
            self._columns[number].add(column)
        else:
            self._columns[number] = column

    def columns(self) -> LayerColumns:
        """Return the values so far."""
        ordered = [self._columns[number] for number in sorted(self._columns)]
        shape = (len(self.tree), 0)
        values = {name: torch.full(shape, math.nan) for name in QUANTITIES}
        not_finite = torch.zeros(shape, dtype=torch.uint8)
        if ordered:
            for name in QUANTITIES:
                values[name] = torch.stack([column.finish(name) for column in ordered], 1)
            not_finite = torch.stack([column.not_finite for column in ordered], 1)
        firsts = [column.first for column in ordered]
        lasts = [column.last for column in ordered]
        num_sampled = sum(column.num_steps for column in ordered)
        return LayerColumns(
            tree=self.tree,
            first=firsts,
            last=lasts,
            until=_ends_of(ordered),
            num_sampled=num_sampled,
            values=values,
            not_finite=not_finite,
        )


def _ends_of(columns: Sequence[_Column]) -> list[int]:
    """Return where each column ends: where the next begins. The last one is as wide as most."""
    if not columns:
        return []
    firsts = [column.first for column in columns]
    widths = sorted(after - before for before, after in pairwise(firsts)) or [1]
    end = max(columns[-1].last + 1, firsts[-1] + widths[(len(widths) - 1) // 2])
    return [*firsts[1:], end]


class _StepPlan:
    """The rows of the series of a step. Most steps have the same series."""

    def __init__(self, tree: LayerTree, series: Sequence[Series | None]) -> None:
        self._tree = tree
        by_kind: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for at, each in enumerate(series):
            row = None if each is None else tree.row_by_path.get(each.path)
            if each is None or row is None:
                continue
            by_kind[each.kind].append((at, row))
            if each.kind == "output" and each.name == "0":
                by_kind["first output"].append((at, row))
        outputs = by_kind["first output"]
        self._gradients = self._with_outer(by_kind["param_grad"])
        self._weights = self._with_outer(by_kind["param"])
        self._outputs, self._dead = _columns_of(outputs), self._with_outer(outputs)
        self._ranges = self._ranges_of(outputs)
        self._places = {kind: self._with_outer(by_kind[kind]) for kind in _PLACES}

    def _with_outer(self, pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return positions of series with each row that they count for, also those around them."""
        outer = [(at, above) for at, row in pairs for above in self._tree.ancestors(row)]
        return _columns_of(outer)

    def _ranges_of(self, pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return positions of outputs of the modules in ranges, and the rows of these."""
        rows = self._tree.rows
        found = []
        for at, row in pairs:
            parent = rows[row].parent
            if parent is not None and rows[parent].num_folded:
                found.append((at, parent))
        return _columns_of(found)

    def column_of(self, place: int, found: Distributions) -> _Column:
        """Return a column with one step."""
        figures = _figures_of(found)
        size = len(self._tree)
        norms = _norms_of(figures)
        values, counts = {}, {}

        at, rows = self._gradients
        squares, has_gradient = _add_up(size, rows, norms[at] ** 2)
        values["gradient"], counts["gradient"] = squares.sqrt(), has_gradient

        at, rows = self._weights
        changes = norms[at] * figures["update"][at]
        squares, has_update = _add_up(size, rows, changes**2)
        weights, _ = _add_up(size, rows, (norms[at] ** 2).where(changes.isfinite(), math.nan))
        values["update"] = (squares / weights.clamp(min=1e-300)).sqrt()
        counts["update"] = has_update

        values["std"], counts["std"] = self._spreads(size, figures["std"])

        at, rows = self._dead
        shares = figures["dead"][at]
        sizes = figures["numel"][at].double()
        dead, has_dead = _add_up(size, rows, shares * sizes)
        wholes, _ = _add_up(size, rows, sizes.where(shares.isfinite(), math.nan))
        values["dead"], counts["dead"] = dead / wholes.clamp(min=1), has_dead

        not_finite = self._not_finite(size, figures)
        values = {name: each.float() for name, each in values.items()}
        counts = {name: each.int() for name, each in counts.items()}
        return _Column(
            first=place,
            last=place,
            num_steps=1,
            values=values,
            counts=counts,
            not_finite=not_finite,
        )

    def _spreads(self, size: int, stds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the standard deviation of each module's own output; of ranges, the largest."""
        found = torch.full((size,), -math.inf, dtype=torch.float64)
        for at, rows in (self._outputs, self._ranges):
            spreads = stds[at].double()
            spreads = spreads.where(spreads.isfinite(), -math.inf)
            found.scatter_reduce_(0, rows, spreads, "amax")
        has_value = found > -math.inf
        return found.where(has_value, 0.0), has_value

    def _not_finite(self, size: int, figures: Mapping[str, Tensor]) -> Tensor:
        is_wrong = (figures["nan"] + figures["inf"]) > 0
        found = torch.zeros(size, dtype=torch.uint8)
        for kind, (at, rows) in self._places.items():
            found[rows[is_wrong[at]]] |= _PLACES[kind]
        return found


def _columns_of(pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return table[:, 0], table[:, 1]


def _figures_of(found: Distributions) -> dict[str, Tensor]:
    """Return statistics as tensors with an element for each series."""
    rows = _tensor_of(found.rows).long()
    figures = {
        name: _tensor_of(column)[rows]
        for name, column in found.columns.figures.items()
        if name in ("numel", "nan", "inf", "mean", "std", "update", "dead", "norm")
    }
    can_die = _tensor_of(found.can_die).bool()
    figures["dead"] = figures["dead"].where(can_die, math.nan)
    return figures


def _tensor_of(column: Any) -> Tensor:
    if isinstance(column, Tensor):
        return column
    if not len(column):
        return torch.zeros(0, dtype=torch.float64)
    if isinstance(column, array):
        return torch.frombuffer(column, dtype=_TYPES[column.typecode])
    return torch.tensor(list(column))


def _norms_of(figures: Mapping[str, Tensor]) -> Tensor:
    """Return the L2 norm of each tensor, or an estimate from the sampled values.

    Squares of values below 1e-23 are 0 with 32 bits, and so is the norm that the device computed.
    """
    mean, std = figures["mean"].double(), figures["std"].double()
    estimates = (figures["numel"] * (mean**2 + std**2)).sqrt()
    exact = figures.get("norm")
    if exact is None:
        return estimates
    is_known = exact.isfinite() & (exact > 0)
    return exact.double().where(is_known, estimates)


def _add_up(size: int, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of finite values of each row, and which rows have one."""
    is_known = values.isfinite()
    known, rows = values[is_known].double(), rows[is_known]
    sums = torch.zeros(size, dtype=torch.float64).index_add_(0, rows, known)
    counts = torch.zeros(size, dtype=torch.int64)
    counts[rows] = 1
    return sums, counts
