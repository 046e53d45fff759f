"""Loads of calls, and of groups of calls, of which equal ones are added up once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torchscan.analyses.roofline.executed_pass import ExecutedPass
from torchscan.analyses.roofline.number_formats import Format
from torchscan.analyses.roofline.pass_times import Timing
from torchscan.analyses.roofline.roofline_result import GroupLoad, Limiter, OperatorLoad
from torchscan.analyses.totals import enclosing_paths
from torchscan.ops import OpCost
from torchscan.recording.folding.layer_repeats import Repeats
from torchscan.recording.folding.left_out_layers import LeftOut
from torchscan.trace.trace import Trace

#: what the loads of a group add up to
_COUNTS = (
    "macs",
    "flops",
    "elements_read",
    "elements_written",
    "bytes_read",
    "bytes_written",
)


class PassLoads:
    """The loads of calls; those of layers that are repeated are copies."""

    def __init__(self, execution: ExecutedPass, bounds: Mapping[int, float]) -> None:
        self._trace = execution.trace
        self._rates = execution.rates
        self._runs = {run.index: run for run in execution.runs}
        self._bounds = bounds
        #: loads of calls in the trace, with their values
        self._known: dict[tuple[int, float, Limiter], tuple[OperatorLoad, dict[str, Any]]] = {}

    def load(self, timing: Timing) -> OperatorLoad:
        """Return the load of a call."""
        key = timing.call, timing.seconds, timing.limiter
        if key not in self._known:
            new = self._new(timing)
            self._known[key] = new, _to_values(new)
        load, values = self._known[key]
        if timing.layer is None:
            return load
        return OperatorLoad(**{**values, "layer": _rename(load.layer, timing.layer)})

    def _new(self, timing: Timing) -> OperatorLoad:
        """Return the load of a call in the trace.

        The lower bound of a collective is zero, as if links were infinitely fast.
        """
        op = self._trace.ops[timing.call]
        run = self._runs.get(timing.call)
        cost, time_bound = OpCost(), 0.0
        precision: Format = "fp32"
        if run is not None:
            cost, precision, time_bound = run.cost, run.form, self._bounds[timing.call]
        counts = {name: getattr(cost, name) for name in _COUNTS}
        return OperatorLoad(
            operator=op.signature.operator,
            layer=self._trace.path_of(op),
            call=self._trace.modules[op.module_call].call,
            phase=op.phase,
            precision=precision,
            intensity=_intensity(counts),
            ridge=self._rates.ridge(precision, of_products=bool(cost.macs)),
            limiter=timing.limiter,
            time_bound=time_bound,
            time_estimate=timing.seconds,
            **counts,
        )


def _to_values(load: OperatorLoad | GroupLoad) -> dict[str, Any]:
    """Return the fields of a load, of which copies are made faster than by ``replace``."""
    return {each.name: getattr(load, each.name) for each in fields(load)}


def _rename(path: str, layer: LeftOut | None) -> str:
    """Return the path of a module in a layer that repeats the one in the trace."""
    renamed = None if layer is None else layer.renamed(path)
    return renamed or path


def _intensity(counts: Mapping[str, int]) -> float | None:
    moved = counts["bytes_read"] + counts["bytes_written"]
    return counts["flops"] / moved if moved else None


class EqualLoads:
    """The loads of a pass, where equal calls of layers that are repeated have the same number."""

    def __init__(self, loads: Sequence[OperatorLoad], timings: Sequence[Timing]) -> None:
        #: number of each call in order
        self.numbers: list[int] = []
        #: load by number
        self.loads: list[OperatorLoad] = []
        self._timings = timings
        self._groups: dict[tuple[int, ...], dict[str, Any]] = {}
        known: dict[tuple[int, float, Limiter], int] = {}
        for load, timing in zip(loads, timings, strict=True):
            key = timing.call, timing.seconds, timing.limiter
            number = known.setdefault(key, len(self.loads))
            if number == len(self.loads):
                self.loads.append(load)
            self.numbers.append(number)

    def group_by_kind(self) -> dict[str, GroupLoad]:
        """Return the calls of each operator as one, the longest first."""
        members: dict[str, list[int]] = {}
        for number in self.numbers:
            members.setdefault(self.loads[number].operator, []).append(number)
        groups = [self._group(name, numbers) for name, numbers in members.items()]
        groups.sort(key=lambda each: -rounded(each.time_estimate))
        return {each.name: each for each in groups}

    def group_by_layer(self, trace: Trace, repeats: Repeats | None) -> tuple[GroupLoad, ...]:
        """Return each layer with everything that it calls, in order of first call."""
        around = enclosing_paths(trace)
        members: dict[str, list[int]] = {path: [] for path in _paths(trace, repeats)}
        known: dict[tuple[int, int | None], list[list[int]]] = {}
        for number, timing in zip(self.numbers, self._timings, strict=True):
            layer = timing.layer
            place = trace.ops[timing.call].module_call
            repeated = None if layer is None else layer.call.index
            key = place, repeated
            if key not in known:
                known[key] = [members[_rename(path, layer)] for path in around[place]]
            for each in known[key]:
                each.append(number)
        return tuple(self._group(path, numbers) for path, numbers in members.items())

    def _group(self, name: str, numbers: Sequence[int]) -> GroupLoad:
        """Return several calls as one; equal groups are added up once."""
        key = tuple(numbers)
        if key not in self._groups:
            counts = Counter(numbers)
            loads = [self.loads[each] for each in counts]
            added = group(name, loads, list(counts.values()))
            self._groups[key] = _to_values(added)
        return GroupLoad(**{**self._groups[key], "name": name})


def rounded(time: float) -> float:
    """Round to nine digits, so that equal work has equal times and keeps its order in sorting."""
    return float(f"{time:.8e}")


def _paths(trace: Trace, repeats: Repeats | None) -> Iterable[str]:
    """Return the paths of all modules that are called, in order of first call."""
    left_out = () if repeats is None else repeats.layers
    layers = {each.call.index: each for each in left_out}
    paths: dict[str, None] = {}
    for call in trace.modules:
        layer = layers.get(call.index)
        inside = [call] if layer is None else layer.calls_in(trace)
        for each in inside:
            paths[_rename(each.path, layer)] = None
    return paths


def group(
    name: str, loads: Sequence[OperatorLoad], counts: Sequence[int] | None = None
) -> GroupLoad:
    """Return several calls as one; ``counts`` is how often each takes place."""
    counted = list(zip(loads, counts or [1] * len(loads), strict=True))
    totals = dict.fromkeys(_COUNTS, 0)
    seconds_by_limiter: dict[Limiter, float] = {}
    for each, count in counted:
        for statistic in _COUNTS:
            totals[statistic] += count * getattr(each, statistic)
        seconds = seconds_by_limiter.get(each.limiter, 0.0)
        seconds_by_limiter[each.limiter] = seconds + count * each.time_estimate

    heaviest = max(loads, key=lambda each: each.time_estimate, default=None)
    ridge, precision = None, None
    if heaviest is not None:
        ridge, precision = heaviest.ridge, heaviest.precision
    limiter: Limiter = "memory"
    if seconds_by_limiter:
        limiter = max(seconds_by_limiter, key=seconds_by_limiter.__getitem__)
    time_bound = math.fsum(count * each.time_bound for each, count in counted)
    time_estimate = math.fsum(count * each.time_estimate for each, count in counted)
    return GroupLoad(
        name=name,
        calls=sum(count for _, count in counted),
        intensity=_intensity(totals),
        ridge=ridge,
        precision=precision,
        limiter=limiter,
        time_bound=time_bound,
        time_estimate=time_estimate,
        **totals,
    )
