"""Columns of layers: the quantities of all modules in consecutive steps, merged and as bytes."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from torchscan.watching.byte_planes import deflate, from_planes, inflate, to_planes
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
#: the newest columns, which hold a step each; older ones are divided into at most so many spans
NUM_SINGLE = 512
_MAX_SPANS = 512
#: columns after which older ones are merged again
MERGING_INTERVAL = 128
#: first and last place of a column, and its number of steps
Span = tuple[int, int, int]
_HEAD = struct.Struct("<I")


def merge_columns(ranks: Sequence[Sequence[ColumnOfLayers]], width: int) -> list[ColumnOfLayers]:
    """Return the columns of this width, of all ranks together."""
    by_place: dict[int, list[ColumnOfLayers]] = defaultdict(list)
    for columns in ranks:
        for place, steps in groupby(columns, lambda column: column.first // width):
            by_place[place].append(merge_steps(list(steps)))
    return [merge_ranks(by_place[place]) for place in sorted(by_place)]


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
    first = min(each.first for each in columns)
    last = max(each.last for each in columns)
    step = max(each.step for each in columns)
    return ColumnOfLayers(
        first=first,
        last=last,
        step=step,
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
