"""Results of a budget check: metrics that exceed their limits, and the layers to look at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torchscan import units
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.errors import Give, MissingFormulaError
from torchscan.escapes import printable
from torchscan.metrics import (
    METRICS,
    OF_GENERATION,
    OF_PLAN,
    PER_SAMPLE,
    Measure,
    Metric,
    activation_peak,
    range_of,
)
from torchscan.notes import Note
from torchscan.report.columns import full_name_of
from torchscan.report.comparison import growth
from torchscan.report.info_data import Layer

#: that are named for each limit
MAX_LAYERS = 5
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
        head = f"{found}, {before}{limit} ({growth(self.allowed, self.value)})"
        layers = [f"  {name}: {what}" if what else f"  {name}" for name, what in self.layers]
        return "\n".join([head, *layers])


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
        metrics = [
            *(f"{heading_of(name, self.timed)} {self.written(name)}" for name in self.values),
            *filter(None, [self.step]),
        ]
        head = (
            f"{self.name}: {', '.join(metrics) or 'nothing is checked'}"
            if self.is_fine
            else f"{self.name} exceeds its budget"
        )
        body = [
            line for excess in self.excesses for line in str(excess).split("\n")
        ] + self.too_slow.splitlines()
        return "\n".join([head, *(f"  {line}" for line in [*body, *self.remarks])])

    def written(self, name: str) -> str:
        """Return the value of a metric as text: ``"12.3 ms ± 20 % for a batch of 32"``."""
        text = _MEASURES[name].written(self.values[name], is_bound=name in self.bounds)
        basis = self.bases.get(name, "")
        return f"{text}{range_of(self.error_shares.get(name))}{basis and f' {basis}'}"

    def written_limit(self, name: str) -> str:
        """Return the limit of a metric as text: ``"≤ 60.0 ms"``; "" if there is none."""
        if name not in self.limits:
            return ""
        metric = _MEASURES[name]
        return f"{'≥' if metric.is_min else '≤'} {metric.text(self.limits[name])}"


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
    """Check the metrics of a result against their limits; ``place`` is where errors say that the limits are."""
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
    doubts = {name: found for name, metric in metrics.items() if (found := metric.doubts(answer))}
    if strict and doubts:
        first = metrics[next(iter(doubts))]
        bound = "an upper" if first.is_min else "a lower"
        uncounted = dict.fromkeys(each for found in doubts.values() for each in found)
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
    """The metrics that exceed their limits."""
    return tuple(
        Excess(
            metric=name,
            value=value,
            allowed=limit,
            error_share=metrics[name].off(answer),
            layers=layers_of(name, answer),
        )
        for name, limit in limits.items()
        if metrics[name].exceeds(value := metrics[name].value(answer), limit)
    )


#: of the time of a pass, the share of launches from which on no layer is to blame
_LAUNCH_BOUND = 0.5


def launch_overhead(roofline: Roofline, *, is_per_sample: bool = False) -> Layers:
    """Return what to look at in a pass that mostly waits for the host; () if operators are what takes the time.

    A larger batch launches no fewer kernels, so it helps only limits per sample.
    """
    if roofline.time_share("launch") < _LAUNCH_BOUND:
        return ()
    launched = sum(each.limiter == "launch" for each in roofline.operators)
    time = units.duration(roofline.time_by_limiter["launch"])
    ways = ["a larger batch"] if is_per_sample else []
    if not roofline.compiled:
        ways.append(
            "torch.compile, which launches fewer kernels (analyze_roofline(compiled=True) "
            "estimates it)"
        )
    advice = ((f"try {', or '.join(ways)}", ""),) if ways else ()
    return ((f"launch overhead of {launched:,} operators", time), *advice)


def slowest_layers(roofline: Roofline) -> Layers:
    """Return the layers without others inside that take the longest."""
    parents = {each.name.rpartition(".")[0] for each in roofline.layers if each.name}
    leaves = [each for each in roofline.layers if each.name not in parents and each.time_estimate]
    longest = sorted(leaves, key=lambda each: -each.time_estimate)[:MAX_LAYERS]
    return tuple((each.name or "the model", units.duration(each.time_estimate)) for each in longest)


def largest_layers(metric: Metric, layers: Collection[Layer], samples: int = 1) -> Layers:
    """Return the layers that have the most of a metric of the info dict, divided by ``samples``."""
    named = []
    for layer in sorted(layers, key=metric.of_info, reverse=True)[:MAX_LAYERS]:
        value = metric.of_info(layer)
        if value:
            name = f"{full_name_of(layer)} ({layer['type']})"
            named.append((name, metric.text(value / samples)))
    return tuple(named)


def peak_layer(name: str, estimate: MemoryEstimate) -> Layers:
    """Return the layer in which memory is at its peak, or activations are."""
    if name == "peak_memory":
        return ((f"peak in {estimate.peak_layer or 'the model'}", estimate.peak_operator),)
    moment = activation_peak(estimate)
    if moment is None:
        return ()
    return ((f"peak in {moment.layer or 'the model'}", moment.operator),)
