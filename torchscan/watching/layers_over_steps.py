"""Modules over the steps of a run: gradients, updates, outputs, dead units and NaN, in columns.

The worker keeps the columns beside the steps. Steps are thinned out and columns are merged, so that
an extreme of any sampled step stays. A page reads them without the distributions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.layer_columns import (
    QUANTITIES,
    ColumnOfLayers,
    merge_columns,
    renumber,
    width_of_columns,
)
from torchscan.watching.schema import Phase, Series

#: quantities that users see
_SHOWN = ("gradient", "update", "std", "dead", "nonfinite")


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
    indices = {path: index for index, path in enumerate(paths)}
    renumbered = []
    for columns, series in ranks:
        numbers = {number: indices[each.path] for number, each in series.items()}
        renumbered.append(renumber(columns, numbers))
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


def quantities_of(columns: Sequence[ColumnOfLayers], num_modules: int) -> dict[str, Tensor]:
    """Return each quantity as rows for modules, with a value for each column."""
    values = torch.full((len(QUANTITIES), num_modules, len(columns)), torch.nan)
    for index, column in enumerate(columns):
        values[:, column.modules, index] = column.values
    found = dict(zip(QUANTITIES, values, strict=True))
    found["std"] = found["std"] / found["num_stds"]
    return found


def paths_of_modules(series: Collection[Series], graph: Mapping[str, Any] | None) -> list[str]:
    """Return the paths of the modules with series, in the order of the model's graph if known."""
    rows = [] if graph is None else graph["rows"]
    drawn = dict.fromkeys(str(row["path"]) for row in rows)
    recorded = {each.path for each in series}
    paths = {path: None for path in drawn if path in recorded}
    paths.update(dict.fromkeys(order_paths(series)))
    return list(paths)


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
