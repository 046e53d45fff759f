"""What a check found: which metrics exceed their limits, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torchscan import units
from torchscan.analyses.roofline import GroupLoad
from torchscan.errors import UnpricedError
from torchscan.metrics import METRICS, OF_GENERATION, OF_PLAN, Measure, range_of
from torchscan.report.compare import growth

#: that are named for each limit
MOST_LAYERS = 5
#: layers to look at, each with what it adds
Layers = tuple[tuple[str, str], ...]
Answer = TypeVar("Answer")

#: what a model and a plan have in common has the same name and is written alike
_MEASURES: Mapping[str, Measure[Any]] = {**OF_PLAN, **METRICS, **OF_GENERATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """One metric that exceeds its limit."""

    metric: str
    value: float
    allowed: float
    #: the baseline's value; None: the limit is in the budget
    before: float | None = None
    #: of an estimate, the share by which it may be off
    share_off: float | None = None
    #: the layers to look at, each with what it adds
    layers: Layers

    def __str__(self) -> str:
        metric = _MEASURES[self.metric]
        value, allowed = metric.text(self.value), metric.text(self.allowed)
        if value == allowed:  # the excess is smaller than the digits shown
            value, allowed = f"{self.value:,.12g}", f"{self.allowed:,.12g}"
        before = "" if self.before is None else f"{metric.text(self.before)} before, "
        limit = f"at {'least' if metric.is_least else 'most'} {allowed}"
        head = f"{metric.heading}: {value}{range_of(self.share_off)}, {before}{limit} ({growth(self.allowed, self.value)})"
        return "\n".join([head, *(f"  {name}: {what}" if what else f"  {name}" for name, what in self.layers)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a check."""

    name: str
    values: Mapping[str, float]
    excesses: tuple[Excess, ...] = ()
    #: remarks that aren't about exceeded limits
    remarks: tuple[str, ...] = ()
    #: the metrics that are only bounds
    bounds: frozenset[str] = frozenset()
    #: what a real step took, and if that is too long, by how much and where
    step: str = ""
    too_slow: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether every metric is within its limits."""
        return not self.excesses and not self.too_slow

    @property
    def is_empty(self) -> bool:
        """Whether nothing was checked."""
        return not self.values and not self.step

    def joined(self, other: Outcome) -> Outcome:
        """With what another check of the same model found."""
        return replace(
            self,
            values={**self.values, **other.values},
            excesses=(*self.excesses, *other.excesses),
            remarks=(*self.remarks, *other.remarks),
            bounds=self.bounds | other.bounds,
        )

    def __str__(self) -> str:
        """One line if all is well; otherwise what exceeds its limit, and the layers to look at."""
        known = {name: _MEASURES[name].written(value, is_bound=name in self.bounds) for name, value in self.values.items()}
        metrics = [*(f"{_MEASURES[name].heading} {text}" for name, text in known.items()), *filter(None, [self.step])]
        head = (
            f"{self.name}: {', '.join(metrics) or 'nothing is checked'}" if self.is_fine else f"{self.name} exceeds its budget"
        )
        body = [line for excess in self.excesses for line in str(excess).split("\n")] + self.too_slow.splitlines()
        return "\n".join([head, *(f"  {line}" for line in [*body, *self.remarks])])


def bounds_among(place: str, answer: Answer, metrics: Mapping[str, Measure[Answer]], *, strict: bool) -> frozenset[str]:
    """Those of which only a bound is known, which can't be shown to be within a limit: where ``strict``, they are refused."""
    doubts = {name: found for name, metric in metrics.items() if (found := metric.doubts(answer))}
    if strict and doubts:
        first = metrics[next(iter(doubts))]
        raise UnpricedError(
            f"{place}: only {'an upper' if first.is_least else 'a lower'} bound is known for {first.heading}, because this is "
            f"not counted: {', '.join(dict.fromkeys(each for found in doubts.values() for each in found))}; "
            "price operators (docs/adding-operators.md), or accept the bound with strict=False"
        )
    return frozenset(doubts)


def excesses_among(
    answer: Answer,
    metrics: Mapping[str, Measure[Answer]],
    limits: Mapping[str, float],
    layers_of: Callable[[str, Answer], Layers],
) -> tuple[Excess, ...]:
    """The metrics that exceed their limits."""
    return tuple(
        Excess(
            metric=name,
            value=value,
            allowed=limit,
            share_off=metrics[name].off(answer),
            layers=layers_of(name, answer),
        )
        for name, limit in limits.items()
        if metrics[name].exceeds(value := metrics[name].value(answer), limit)
    )


def slowest(layers: list[GroupLoad]) -> Layers:
    """The layers that take the longest."""
    longest = sorted(layers, key=lambda each: -each.time_estimate)[:MOST_LAYERS]
    return tuple((each.name or "the model", units.duration(each.time_estimate)) for each in longest if each.time_estimate)
