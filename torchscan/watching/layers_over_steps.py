"""Modules over the steps of a run: gradients, updates, outputs, dead units and NaN, in columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.distribution_columns import side_by_side
from torchscan.watching.layer_columns import (
    QUANTITIES,
    ColumnOfLayers,
    LayerReader,
    merge_ranks,
    merge_steps,
    renumber,
    width_of_columns,
)
from torchscan.watching.schema import Phase, Series
from torchscan.watching.store import Reader


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
    merged = _merge(renumbered, width)
    return LayersOverSteps(
        phase=phase,
        paths=tuple(paths),
        types=tuple(map(types.__getitem__, paths)),
        width=width,
        first=tuple(map(attrgetter("first"), merged)),
        last=tuple(map(attrgetter("last"), merged)),
        num_steps=tuple(map(attrgetter("num_steps"), merged)),
        **_quantities(merged, len(paths)),
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


def _merge(ranks: Sequence[Sequence[ColumnOfLayers]], width: int) -> list[ColumnOfLayers]:
    """Return the columns of this width, of all ranks together."""
    by_place: dict[int, list[ColumnOfLayers]] = defaultdict(list)
    for columns in ranks:
        for place, steps in groupby(columns, lambda column: column.first // width):
            by_place[place].append(merge_steps(list(steps)))
    return [merge_ranks(by_place[place]) for place in sorted(by_place)]


def _quantities(columns: Sequence[ColumnOfLayers], num_paths: int) -> dict[str, Any]:
    """Return each quantity as rows for paths, with a value for each column."""
    values = torch.full((len(QUANTITIES), num_paths, len(columns)), torch.nan)
    for index, column in enumerate(columns):
        values[:, column.modules, index] = column.values
    found: dict[str, Tensor] = dict(zip(QUANTITIES, values, strict=True))
    found["std"] = found["std"] / found.pop("num_stds")
    return {name: tuple(map(tuple, each.tolist())) for name, each in found.items()}


def columns_of_reader(reader: Reader, phase: Phase) -> list[ColumnOfLayers]:
    """Return the columns of one rank. Steps that an older version has written are read."""
    columns = reader.layer_columns(phase)
    first = columns[0].first if columns else None
    return [*_columns_of_older_steps(reader, phase, first), *columns]


def _columns_of_older_steps(
    reader: Reader, phase: Phase, end: int | None
) -> Iterator[ColumnOfLayers]:
    """Yield a column for each step before the one at ``end``."""
    series, layers = reader.series(), LayerReader()
    for place, written in sorted(reader.places(phase)):
        if end is not None and place >= end:
            continue
        step = reader.step(phase, written, has_counts=False)
        if step is not None:
            yield layers.read(
                side_by_side(step.distributions), series, phase, step.step, step.number
            )


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
