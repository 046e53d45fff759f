"""Distributions of a step side by side, as columns of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.schema import Distribution

#: statistics that are whole numbers and those that are not, of each row
WHOLE = ("numel", "sampled", "nan", "inf", "zero")
REAL = ("mean", "std", "min", "max", "update", "dead", "sample_norm", "norm")
_NAN = math.nan


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows of statistics.

    ``counts`` of all rows lie one behind the other; ``sizes`` has how many belong to each row.
    """

    figures: Mapping[str, Tensor]
    is_exact: Tensor
    sizes: Tensor
    bins: Tensor
    counts: Tensor

    @cached_property
    def _lists(self) -> tuple[dict[str, list[Any]], list[int], list[int], list[int]]:
        """Return the statistics, the bins, their counts, and where those of each row end."""
        columns = {**self.figures, "is_exact": self.is_exact.bool()}
        figures = {name: column.tolist() for name, column in columns.items()}
        ends = self.sizes.cumsum(0).tolist()
        bins, counts = self.bins.tolist(), self.counts.tolist()
        return figures, bins, counts, ends

    def figures_of(self, row: int) -> dict[str, Any]:
        """Return the values of a row by their names in :class:`Distribution`."""
        figures, bins, counts, ends = self._lists
        here = slice(ends[row - 1] if row else 0, ends[row])
        values = {name: column[row] for name, column in figures.items()}
        return {**values, "counts": dict(zip(bins[here], counts[here], strict=True))}


@dataclass(frozen=True, kw_only=True)
class Distributions(Mapping[int, Distribution]):
    """Distributions by the number of their series, each of them created on access.

    Several series may share a row.
    """

    columns: Columns
    numbers: Sequence[int]
    rows: Sequence[int]
    #: depends on the series, not on its values alone
    saturated: Sequence[float]
    can_die: Sequence[bool | int]
    custom: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self.numbers)}

    def __getitem__(self, number: int) -> Distribution:
        """Return the distribution of a series."""
        place = self._places[number]
        custom = {name: column[place] for name, column in self.custom.items()}
        figures = self.columns.figures_of(self.rows[place])
        figures["dead"] = figures["dead"] if self.can_die[place] else _NAN
        return Distribution(**figures, saturated=self.saturated[place], custom=custom)

    def __iter__(self) -> Iterator[int]:
        """Return the numbers of the series."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self.numbers)


def group_alike(steps: Sequence[Distributions]) -> list[list[int]]:
    """Return the indices of steps in groups with the same series and rows."""
    groups: list[tuple[tuple[object, ...], list[int]]] = []
    for index, each in enumerate(steps):
        layout = each.numbers, each.rows, each.can_die, list(each.custom)
        for known, indices in groups:
            if known == layout:
                indices.append(index)
                break
        else:
            groups.append((layout, [index]))
    return [indices for _, indices in groups]


def side_by_side(distributions: Mapping[int, Distribution]) -> Distributions:
    """Return distributions as columns."""
    if isinstance(distributions, Distributions):
        return distributions
    every = list(distributions.values())
    figures = {}
    for name in (*WHOLE, *REAL):
        values = [getattr(each, name) for each in every]
        figures[name] = to_integers(values) if name in WHOLE else to_reals(values)
    bins: list[int] = []
    counts: list[int] = []
    for each in every:
        for number, count in sorted(each.counts.items()):
            bins.append(number)
            counts.append(count)
    is_exact = [each.is_exact for each in every]
    columns = Columns(
        figures=figures,
        is_exact=torch.tensor(is_exact, dtype=torch.bool),
        sizes=to_integers([len(each.counts) for each in every]),
        bins=to_integers(bins),
        counts=to_integers(counts),
    )
    return Distributions(
        columns=columns,
        numbers=list(distributions),
        rows=range(len(every)),
        saturated=[each.saturated for each in every],
        can_die=[True] * len(every),
        custom=_custom_of(every),
    )


def _custom_of(every: Sequence[Distribution]) -> dict[str, list[float]]:
    """Return the user's statistics, NaN where a series has none of this name."""
    custom: dict[str, list[float]] = {}
    for each in every:
        for name in each.custom:
            custom.setdefault(name, [])
    for name, column in custom.items():
        column += [each.custom.get(name, _NAN) for each in every]
    return custom


def estimate_norms(figures: Mapping[str, Tensor]) -> Tensor:
    """Return L2 norms as the means and standard deviations of sampled values suggest."""
    deviation = figures["mean"].double().hypot(figures["std"].double())
    return (figures["numel"].double().sqrt() * deviation).float()


def entries_of(columns: Columns, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the bins of these rows, and which of the rows each belongs to."""
    sizes = columns.sizes[rows]
    starts = columns.sizes.cumsum(0)[rows] - sizes
    owners = torch.repeat_interleave(torch.arange(len(rows)), sizes)
    first = sizes.cumsum(0) - sizes
    return torch.arange(len(owners)) - first[owners] + starts[owners], owners


def to_integers(values: Sequence[int]) -> Tensor:
    """Return a column of whole numbers."""
    return torch.tensor(list(values), dtype=torch.int64)


def to_reals(values: Sequence[float]) -> Tensor:
    """Return a column of numbers with 32 bits."""
    return torch.tensor(list(values), dtype=torch.float32)
