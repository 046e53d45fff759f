"""Results of a budget check: metrics that exceed their limits, and the layers to look at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torchscan.budgets.excess_layers import Layers
from torchscan.errors import Give, MissingFormulaError
from torchscan.escapes import printable
from torchscan.generation_metrics import OF_GENERATION
from torchscan.measures import Measure, range_of
from torchscan.metrics import METRICS, PER_SAMPLE
from torchscan.notes import Note
from torchscan.plan_metrics import OF_PLAN
from torchscan.report.comparison_table import growth

Answer = TypeVar("Answer")

#: all metrics; those that a model and a plan have in common have the same name and text
_MEASURES: Mapping[str, Measure[Any]] = {**OF_PLAN, **METRICS, **OF_GENERATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """One metric that exceeds its limit."""

    metric: str
    value: float
    allowed: float
    #: the baseline's value, or None if the limit is in the budget
    before: float | None = None
    #: of an estimate, the share by which it may be off
    error_share: float | None = None
    #: the layers to look at, each with what it adds
    layers: Layers
    #: what the value is of, if not of a single sample: "for a batch of 32", "per sample"
    basis: str = ""
    #: what a time is of, for its heading: "batch 32, fp16"
    timed: str = ""

    def __str__(self) -> str:
        metric = _MEASURES[self.metric]
        value, allowed = metric.text(self.value), metric.text(self.allowed)
        if value == allowed:  # the excess is smaller than the digits shown
            value, allowed = f"{self.value:,.12g}", f"{self.allowed:,.12g}"
        before = "" if self.before is None else f"{metric.text(self.before)} before, "
        limit = f"at {'least' if metric.is_min else 'most'} {allowed}"
        basis = f" {self.basis}" if self.basis else ""
        heading = heading_of(self.metric, self.timed)
        found = f"{heading}: {value}{range_of(self.error_share)}{basis}"
        lines = [f"{found}, {before}{limit} ({growth(self.allowed, self.value)})"]
        for name, what in self.layers:
            lines.append(f"  {name}: {what}" if what else f"  {name}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a check."""

    name: str
    values: Mapping[str, float]
    excesses: tuple[Excess, ...] = ()
    #: remarks that aren't about exceeded limits
    remarks: tuple[Note, ...] = ()
    #: the metrics that are only bounds
    bounds: frozenset[str] = frozenset()
    #: by metric what its value is of, as in :class:`Excess`
    bases: Mapping[str, str] = field(default_factory=dict)
    #: what a latency is of, for its heading: "batch 32, fp16"
    timed: str = ""
    #: by metric of an estimate, the share by which it may be off
    error_shares: Mapping[str, float] = field(default_factory=dict)
    #: by metric its limit; a metric without one is checked against a baseline, or only shown
    limits: Mapping[str, float] = field(default_factory=dict)
    #: by metric the text of a value that has no limit, for a comment
    shown: Mapping[str, str] = field(default_factory=dict)
    #: what a real step took, and if that is too long, by how much and where
    step: str = ""
    too_slow: str = ""

    @property
    def is_fine(self) -> bool:
        """True if every metric is within its limits."""
        return not self.excesses and not self.too_slow

    @property
    def is_empty(self) -> bool:
        """True if nothing was checked."""
        return not self.values and not self.step

    def joined(self, other: Outcome) -> Outcome:
        """Return both results together: this one, and that of another check of the same model."""
        return replace(
            self,
            values={**self.values, **other.values},
            excesses=(*self.excesses, *other.excesses),
            remarks=(*self.remarks, *other.remarks),
            bounds=self.bounds | other.bounds,
            bases={**self.bases, **other.bases},
            error_shares={**self.error_shares, **other.error_shares},
            limits={**self.limits, **other.limits},
            timed=self.timed or other.timed,
            shown={**self.shown, **other.shown},
        )

    def with_basis(self, basis: str, timed: str = "", *, is_per_sample: bool = False) -> Outcome:
        """Return the outcome with what its costs are of: "for a batch of 32".

        ``timed`` is what a latency is of, for its heading, which has the batch already.
        """
        bases = {name: basis for name in self.values if name in PER_SAMPLE and basis}
        if timed and not is_per_sample:
            bases.pop("latency", None)
        excesses = []
        for each in self.excesses:
            of_time = timed if each.metric == "latency" else ""
            excesses.append(replace(each, basis=bases.get(each.metric, ""), timed=of_time))
        return replace(self, bases=bases, excesses=tuple(excesses), timed=timed)

    def __str__(self) -> str:
        """One line if all is well; otherwise what exceeds its limit, and the layers to look at."""
        lines = [f"{self.name} exceeds its budget"]
        if self.is_fine:
            metrics = [
                f"{heading_of(name, self.timed)} {self.written(name)}" for name in self.values
            ]
            if self.step:
                metrics.append(self.step)
            lines = [f"{self.name}: {', '.join(metrics) or 'nothing is checked'}"]
        for excess in self.excesses:
            lines += [f"  {line}" for line in str(excess).split("\n")]
        lines += [f"  {line}" for line in self.too_slow.splitlines()]
        lines += [f"  {remark}" for remark in self.remarks]
        return "\n".join(lines)

    def written(self, name: str) -> str:
        """Return the value of a metric as text: ``"12.3 ms ± 20 % for a batch of 32"``."""
        text = _MEASURES[name].written(self.values[name], is_bound=name in self.bounds)
        text += range_of(self.error_shares.get(name))
        basis = self.bases.get(name, "")
        return f"{text} {basis}" if basis else text

    def written_limit(self, name: str) -> str:
        """Return the limit of a metric as text: ``"≤ 60.0 ms"``; "" if there is none."""
        if name not in self.limits:
            return ""
        metric = _MEASURES[name]
        sign = "≥" if metric.is_min else "≤"
        return f"{sign} {metric.text(self.limits[name])}"


def heading_of(name: str, timed: str = "") -> str:
    """Return what a metric is called in reports, and of a latency what it is of."""
    heading = _MEASURES[name].heading
    return f"{heading} ({timed})" if timed and name == "latency" else heading


def basis_of(batch_size: int | None, *, is_per_sample: bool) -> str:
    """Return what a cost is of: ``"for a batch of 32"``, ``"per sample"``, or "" for one sample."""
    if batch_size is None or batch_size == 1:
        return ""
    return "per sample" if is_per_sample else f"for a batch of {batch_size:,}"


def compare_with_limits(
    name: str,
    answer: Answer,
    metrics: Mapping[str, Measure[Answer]],
    limits: Mapping[str, float],
    layers_of: Callable[[str, Answer], Layers],
    *,
    strict: bool,
    place: str = "",
    remarks: Collection[Note] = (),
) -> Outcome:
    """Check the metrics of a result against their limits.

    ``place`` is where errors say that the limits are.
    """
    return Outcome(
        name=printable(name),
        bounds=bounds_among(place or name, answer, metrics, strict=strict),
        values={each: metric.value(answer) for each, metric in metrics.items()},
        excesses=excesses_among(answer, metrics, limits, layers_of),
        error_shares=shares_off_among(answer, metrics),
        limits=limits,
        remarks=tuple(remarks),
    )


def shares_off_among(answer: Answer, metrics: Mapping[str, Measure[Answer]]) -> dict[str, float]:
    """Return the share by which each estimate among the metrics may be off."""
    shares = {name: metric.off(answer) for name, metric in metrics.items()}
    return {name: share for name, share in shares.items() if share is not None}


def bounds_among(
    place: str, answer: Answer, metrics: Mapping[str, Measure[Answer]], *, strict: bool
) -> frozenset[str]:
    """Return the metrics of which only a bound is known.

    A bound can't be shown to be within a limit, so ``strict`` refuses it.
    """
    doubts: dict[str, list[str]] = {}
    uncounted: dict[str, None] = {}
    for name, metric in metrics.items():
        doubts_of_metric = metric.doubts(answer)
        if doubts_of_metric:
            doubts[name] = doubts_of_metric
            uncounted |= dict.fromkeys(doubts_of_metric)
    if strict and doubts:
        first = metrics[next(iter(doubts))]
        bound = "an upper" if first.is_min else "a lower"
        raise MissingFormulaError.about(
            place,
            f"only {bound} bound is known for {first.heading}, because this is not counted: "
            f"{', '.join(uncounted)}: add cost formulas (docs/adding-operators.md), or accept the "
            "bound with ",
            Give("strict", False),
        )
    return frozenset(doubts)


def excesses_among(
    answer: Answer,
    metrics: Mapping[str, Measure[Answer]],
    limits: Mapping[str, float],
    layers_of: Callable[[str, Answer], Layers],
) -> tuple[Excess, ...]:
    """Return the metrics that exceed their limits."""
    excesses: list[Excess] = []
    for name, limit in limits.items():
        metric = metrics[name]
        value = metric.value(answer)
        if metric.exceeds(value, limit):
            share, layers = metric.off(answer), layers_of(name, answer)
            excesses.append(
                Excess(metric=name, value=value, allowed=limit, error_share=share, layers=layers)
            )
    return tuple(excesses)
