"""Modules over the steps of a run: gradients, updates, outputs, dead units and NaN, in columns."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from torchscan.live.schema import Distribution, Phase, Series
from torchscan.live.sinks.sink import SinkData


class Quantities(NamedTuple):
    """Quantities of a module in a step, or in the steps of a column; NaN if not known."""

    gradient: float = math.nan
    update: float = math.nan
    std: float = math.nan
    dead: float = math.nan
    nonfinite: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersOverSteps:
    """Quantities of each module in columns of steps.

    A quantity has a row for each path and a value for each column; NaN if it is not known. A column
    holds the sampled steps of ``width`` consecutive ones; there is none where no step was sampled.
    """

    phase: Phase
    #: paths of modules, in the order of the model
    paths: tuple[str, ...]
    #: names of their types
    types: tuple[str, ...]
    #: number of consecutive steps that share a column
    width: int
    #: first sampled step of each column
    first: tuple[int, ...]
    #: last sampled step of each column
    last: tuple[int, ...]
    #: number of sampled steps of each column
    num_steps: tuple[int, ...]
    #: largest L2 norm of the gradients of the module's own parameters
    gradient: tuple[tuple[float, ...], ...]
    #: largest relative change of the module's own parameters in a step
    update: tuple[tuple[float, ...], ...]
    #: mean standard deviation of the first output of the first call
    std: tuple[tuple[float, ...], ...]
    #: largest share of dead units
    dead: tuple[tuple[float, ...], ...]
    #: largest estimated number of NaN and Inf in all recorded tensors of the module
    nonfinite: tuple[tuple[float, ...], ...]


def layers_over_steps(
    seen: Iterable[SinkData], phase: Phase, paths: Sequence[str], max_columns: int
) -> LayersOverSteps:
    """Return the quantities of modules in all passes that were seen."""
    types: dict[str, str] = {}
    found: dict[int, dict[str, Quantities]] = {}
    for each in seen:
        found[each.step if phase == "train" else each.number] = _quantities_by_path(each)
        types |= {series.path: series.type_name for series in each.distributions}
    width = column_width(found, max_columns)
    columns = [list(steps) for _, steps in groupby(sorted(found), lambda step: step // width)]
    rows = [_merge_columns(path, columns, found) for path in paths]
    values: Any = {name: _values_of(name, rows) for name in Quantities._fields}
    return LayersOverSteps(
        phase=phase,
        paths=tuple(paths),
        types=tuple(types.get(path, "") for path in paths),
        width=width,
        first=tuple(steps[0] for steps in columns),
        last=tuple(steps[-1] for steps in columns),
        num_steps=tuple(map(len, columns)),
        **values,
    )


def _merge_columns(
    path: str, columns: Sequence[Sequence[int]], found: Mapping[int, Mapping[str, Quantities]]
) -> list[Quantities]:
    """Return the quantities of a module in each column."""
    merged = []
    for steps in columns:
        known = (found[step].get(path) for step in steps)
        merged.append(_merge_steps([each for each in known if each is not None]))
    return merged


def _values_of(name: str, rows: Sequence[Sequence[Quantities]]) -> tuple[tuple[float, ...], ...]:
    """Return one quantity of all modules and columns."""
    values = []
    for row in rows:
        values.append(tuple(getattr(each, name) for each in row))
    return tuple(values)


def column_width(steps: Collection[int], max_columns: int) -> int:
    """Return the smallest power of two with which the steps lie in so many columns."""
    width = 1
    while steps and max(steps) // width - min(steps) // width >= max_columns:
        width *= 2
    return width


def order_paths(series: Sequence[Series]) -> list[str]:
    """Return the paths of modules with parents before their children, in the order of outputs."""
    known = {each.path for each in series}
    outputs = [each.path for each in series if each.kind == "output"]
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


def _quantities_by_path(seen: SinkData) -> dict[str, Quantities]:
    """Return the quantities of each module in one pass."""
    by_path: dict[str, list[Series]] = defaultdict(list)
    for series in seen.distributions:
        by_path[series.path].append(series)
    return {
        path: _quantities_of({each: seen.distributions[each] for each in series})
        for path, series in by_path.items()
    }


def _quantities_of(found: Mapping[Series, Distribution]) -> Quantities:
    """Return the quantities of the module with these series."""
    gradients = [found[each].norm for each in found if each.kind == "param_grad"]
    parameters = [found[each] for each in found if each.kind == "param"]
    first = [found[each].std for each in found if _is_first_output(each)]
    dead = [each.dead for each in found.values() if not math.isnan(each.dead)]
    nonfinite = sum(_count_nonfinite(each) for each in found.values())
    return Quantities(
        gradient=math.hypot(*gradients) if gradients else math.nan,
        update=_relative_change(parameters),
        std=first[0] if first else math.nan,
        dead=max(dead, default=math.nan),
        nonfinite=nonfinite,
    )


def _is_first_output(series: Series) -> bool:
    return (series.kind, series.name, series.invocation) == ("output", "0", 0)


def _count_nonfinite(found: Distribution) -> int:
    """Return the estimated number of NaN and Inf among all values."""
    share = (found.nan + found.inf) / max(1, found.sampled)
    return round(share * found.numel)


def _relative_change(parameters: Sequence[Distribution]) -> float:
    """Return the length of the changes of parameters together, relative to their own length."""
    known = [each for each in parameters if not math.isnan(each.update)]
    length = math.hypot(*(each.norm for each in known))
    change = math.hypot(*(each.update * each.norm for each in known))
    return change / length if length else math.nan


def _merge_steps(steps: Sequence[Quantities]) -> Quantities:
    """Return the quantities over several steps: the mean deviation, and the largest others."""
    std = [each.std for each in steps if not math.isnan(each.std)]
    return Quantities(
        gradient=_largest(each.gradient for each in steps),
        update=_largest(each.update for each in steps),
        std=fmean(std) if std else math.nan,
        dead=_largest(each.dead for each in steps),
        nonfinite=_largest(each.nonfinite for each in steps),
    )


def _largest(values: Iterable[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
