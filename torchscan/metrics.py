"""The numbers that budgets limit and tables list, of a model, generation or plan: how each is computed and printed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.memory_timeline import Moment
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.roofline import Roofline
from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import can_estimate_for
from torchscan.report.generation_table import OF_BATCH, OF_MODEL
from torchscan.scan import Scan
from torchscan.trace.trace import Trace

Answer = TypeVar("Answer")

#: more than any model costs
_ENDLESS = 10**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(ABC, Generic[Answer]):
    """One number, read from an answer."""

    heading: str
    value: Callable[[Answer], Any]
    text: Callable[[Any], str]
    #: the unit that several of them share in a table; None: they have none
    scale: Callable[[Iterable[float]], units.Scale] | None = None
    #: text to number, for limits; None: it can't be limited
    parse: Callable[[str], float] | None = None
    #: whether its limit is the least that it may be
    is_min: bool = False
    #: of an estimate, the share by which it may be off
    error_share: Callable[[Answer], float] | None = None

    @abstractmethod
    def doubts(self, answer: Answer) -> list[str]:
        """Why it is only a bound."""

    def exceeds(self, value: float, limit: float) -> bool:
        """Return whether a value is beyond its limit."""
        return value < limit if self.is_min else value > limit

    def read(self, answer: Answer, scale: units.Scale | None = None) -> str:
        """Return the text of a value with its error margin. A lower bound is marked.

        ``scale`` sets the unit; by default it fits the value.
        """
        value = self.value(answer)
        text = self.written(value, is_bound=bool(self.doubts(answer)), scale=scale)
        return f"{text}{range_of(self.off(answer))}"

    def off(self, answer: Answer) -> float | None:
        """Return the error margin as a share, or None if the value is not an estimate."""
        return None if self.error_share is None else self.error_share(answer)

    def written(self, value: Any, *, is_bound: bool, scale: units.Scale | None = None) -> str:
        """Return the text of a value. A bound is marked."""
        sign = "≤ " if self.is_min else "≥ "
        return (
            f"{sign if is_bound else ''}{self.text(value) if scale is None else scale.text(value)}"
        )


def range_of(error_share: float | None) -> str:
    """``0.4 -> " ± 40 %"``, to follow an estimate."""
    return "" if error_share is None else f" ± {100 * error_share:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Measure[Scan]):
    """One number of a whole model. It asks a scan only for what it needs."""

    #: the record of a scan that it is read from: the forward pass with operators whole, or the whole pass in pieces
    record: Literal["forward", "steps"] = "forward"
    #: whether it is a lower bound if an operator has no cost formula
    is_cost: bool = False
    #: whether it is one if weights cannot be read
    has_weights: bool = False
    #: the keys of the info dict (of a layer, or overall) that add up to it; empty: it comes from elsewhere
    keys: tuple[str, ...] = ()

    def trace(self, scan: Scan) -> Trace:
        """The record that it is read from."""
        return scan.forward.trace if self.record == "forward" else scan.steps

    def without_formula(self, scan: Scan) -> tuple[str, ...]:
        """The operators without a cost formula in that record."""
        return (
            scan.forward.without_formula if self.record == "forward" else scan.steps_without_formula
        )

    def doubts(self, answer: Scan) -> list[str]:
        """Return what makes it a bound: missing formulas, unrecorded modules, unreadable weights."""
        costs = (
            [*self.without_formula(answer), *self.trace(answer).provenance.unrecorded_modules]
            if self.is_cost
            else []
        )
        unread = self.trace(answer).provenance.unreadable_weights if self.has_weights else ()
        return [*costs, *map(str, unread)]

    def of_info(self, data: Mapping[str, Any]) -> int:
        """The sum of its keys in the info dict, of a layer or overall."""
        return int(sum(data[key] for key in self.keys))


#: how each kind of number is written and read
_COUNT: Mapping[str, Any] = {
    "text": units.count,
    "parse": units.parse_count,
    "scale": units.scale_of_wholes,
}
_MEMORY: Mapping[str, Any] = {
    "text": units.memory,
    "parse": units.parse_memory,
    "scale": partial(units.scale_of_wholes, is_memory=True),
}
_DURATION: Mapping[str, Any] = {
    "text": units.duration,
    "parse": units.parse_duration,
    "scale": partial(units.scale_of_durations, least=1.0),
}


def _counted(heading: str, *keys: str, **options: Any) -> Metric:
    """Return the sum of these keys in the info dict, by default a count."""

    def value(scan: Scan) -> int:
        return int(sum(scan.forward.counts["overall"][key] for key in keys))

    return Metric(heading=heading, value=value, keys=keys, **{**_COUNT, **options})


def activation_bytes(estimate: MemoryEstimate) -> int:
    """Return the most bytes of activations at one time."""
    moment = activation_peak(estimate)
    return 0 if moment is None else moment.by_kind["activations"]


def activation_peak(estimate: MemoryEstimate) -> Moment | None:
    """Return the moment when activations occupy the most memory, or None if no operator ran."""
    return max(estimate.timeline, key=lambda moment: moment.by_kind["activations"], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMetric(Measure[Generation]):
    """One number of what generating text takes."""

    #: whether it depends on all weights, or else on all operators
    has_weights: bool = False

    def doubts(self, answer: Generation) -> list[str]:
        """Return what makes it a bound: missing formulas, unrecorded modules, unreadable weights."""
        if self.has_weights:
            return [str(weights) for weights in answer.unreadable_weights]
        return [] if self.error_share is None else list(answer.without_formula)


def _generated(name: str, parse: Callable[[str], float], **rest: Any) -> GenerationMetric:
    """An attribute of a generation, in the words of its table. None means as many as one likes."""
    heading, text = {**OF_MODEL, **OF_BATCH}[name]

    def value(made: Generation) -> float:
        found = getattr(made, name)
        return math.inf if found is None else float(found)

    return GenerationMetric(
        heading=heading,
        value=value,
        text=lambda found: text(None if found == math.inf else found),
        parse=parse,
        **rest,
    )


def _share_of_all(made: Generation) -> float:
    """Return the error margin of an answer: those of both phases, weighted by their times."""
    rest = (made.new - 1) * made.per_token
    first = made.first_token_of_all
    of_token = max(abs(made.margin.low), abs(made.margin.high))
    off = first * made.prefill.error_margin.share + rest * of_token
    return off / (first + rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMetric(Measure[Plan]):
    """A value of a planned rank: the one with the highest peak memory."""

    #: whether it depends on the costs of operators; on all weights
    is_cost: bool = False
    has_weights: bool = False

    def doubts(self, answer: Plan) -> list[str]:
        """Return what makes it a bound: missing formulas, unrecorded modules, unreadable weights."""
        trace = answer.largest_rank.trace
        costs = (
            [
                *operators_without_formula(trace, call_costs(trace)),
                *trace.provenance.unrecorded_modules,
            ]
            if self.is_cost
            else []
        )
        unread = trace.provenance.unreadable_weights if self.has_weights else ()
        return [*costs, *map(str, unread)]


def _timed(plan: Plan) -> Roofline:
    if plan.roofline is None:
        raise InputError(
            "times need a device: give plan() ",
            Give("device", "NVIDIA H200"),
            ", for example (`torchscan devices` lists all)",
        )
    return plan.roofline


def require_device(metrics: Collection[str], device: str | None) -> None:
    """Refuse a latency on no device before anything is recorded."""
    if "latency" in metrics and not can_estimate_for(device):
        raise InputError(
            "a latency needs a device: give ",
            Give("device", "NVIDIA H200"),
            ", for example (`torchscan devices` lists all)",
        )


def _receptive_field(scan: Scan) -> str:
    """The most that a unit sees through windows alone, and whether the output sees everything (a pool, attention, a gate)."""
    fields = scan.forward.fields
    if fields is None:
        return "–"
    widest = max(
        (
            axis.size
            for layer in fields
            for axes in layer.outputs
            for axis in axes
            if axis.size is not None
        ),
        default=None,
    )
    is_global = any(axis.status == "global" for axes in fields.output.outputs for axis in axes)
    if widest is None:
        return "global" if is_global else "–"
    return f"{widest} (global)" if is_global else str(widest)


METRICS: Mapping[str, Metric] = {
    "params": _counted("Parameters", "grad_params", "nograd_params", has_weights=True),
    "trainable_params": _counted("Trainable", "grad_params"),
    "model_size": _counted("Model size", "param_size", "buffer_size", has_weights=True, **_MEMORY),
    "macs": _counted("MACs", "macs", is_cost=True),
    "flops": _counted("FLOPs", "flops", is_cost=True),
    "dmas": _counted("DMAs", "dmas", is_cost=True),
    "activation_memory": Metric(
        heading="Activations",
        value=lambda scan: activation_bytes(scan.memory),
        record="steps",
        **_MEMORY,
    ),
    "peak_memory": Metric(
        heading="Peak memory",
        value=lambda scan: scan.memory.peak_bytes,
        record="steps",
        has_weights=True,
        **_MEMORY,
    ),
    "receptive_field": Metric(heading="RF", value=_receptive_field, text=str),
    "latency": Metric(
        heading="Latency",
        value=lambda scan: scan.roofline.time_estimate,
        **_DURATION,
        record="steps",
        is_cost=True,
        error_share=lambda scan: scan.roofline.error_margin.share,
    ),
}


#: the metrics that are divided by the batch size for limits per sample
PER_SAMPLE = tuple(name for name, metric in METRICS.items() if metric.is_cost)

#: what generating text takes and gives
OF_GENERATION: Mapping[str, GenerationMetric] = {
    "time_per_token": _generated(
        "per_token",
        units.parse_duration,
        error_share=lambda made: max(abs(made.margin.low), abs(made.margin.high)),
    ),
    "time_per_token_under_load": _generated(
        "per_token_under_load",
        units.parse_duration,
        error_share=lambda made: max(abs(made.margin.low), abs(made.margin.high)),
    ),
    "first_token": _generated(
        "first_token",
        units.parse_duration,
        error_share=lambda made: made.prefill.error_margin.share,
    ),
    "tokens_per_second": _generated(
        "tokens_per_second", units.parse_count, is_min=True, error_share=_share_of_all
    ),
    "weights": _generated("weights_bytes", units.parse_memory, has_weights=True),
    "cache_per_token": _generated("cache_bytes_per_token", units.parse_memory),
    "context": _generated("max_context", units.parse_tokens, is_min=True, has_weights=True),
    "batch_size": _generated("max_batch_size", units.parse_count, is_min=True, has_weights=True),
}

#: what a process of a mesh holds, sends and takes
OF_PLAN: Mapping[str, PlanMetric] = {
    "local_params": PlanMetric(
        heading="Parameters per rank",
        value=lambda made: made.local_params,
        **_COUNT,
        has_weights=True,
    ),
    "peak_memory": PlanMetric(
        heading=METRICS["peak_memory"].heading,
        value=lambda made: made.memory.peak_bytes,
        **_MEMORY,
        has_weights=True,
    ),
    "sent": PlanMetric(
        heading="Sent per rank",
        value=lambda made: made.sent_bytes,
        **_MEMORY,
    ),
    "latency": PlanMetric(
        heading=METRICS["latency"].heading,
        value=lambda made: _timed(made).time_estimate,
        **_DURATION,
        error_share=lambda made: _timed(made).error_margin.share,
        is_cost=True,
    ),
    "waiting": PlanMetric(
        heading="Waiting for links",
        value=lambda made: _timed(made).time_share("links"),
        text=units.share,
        parse=units.parse_share,
    ),
}


def limits_in(metrics: Mapping[str, Measure[Any]]) -> dict[str, str]:
    """The names of limits, each with what it limits: ``{"max_params": "params", "min_context": "context"}``."""
    return {
        f"{'min' if metric.is_min else 'max'}_{name}": name
        for name, metric in metrics.items()
        if metric.parse is not None
    }


def limits_of(
    given: Mapping[str, float | str | None], metrics: Mapping[str, Measure[Any]] = METRICS
) -> dict[str, float]:
    """Metrics with their limits as numbers, of limits by name, without those that are None."""
    known = limits_in(metrics)
    for name in given:
        if name not in known:
            raise InputError(f"{name} is not a limit: choose from {', '.join(known)}")
    return {
        known[name]: _number(name, value, metrics[known[name]])
        for name, value in given.items()
        if value is not None
    }


def _number(name: str, value: Any, metric: Measure[Any]) -> float:
    if isinstance(value, str) and metric.parse is not None:
        return metric.parse(value)
    is_number = hasattr(type(value), "__float__") and not isinstance(
        value, bool
    )  # including NumPy's
    if not is_number or not 0 <= value < _ENDLESS:
        raise InputError.of_value(name, value, "give a number, or a text such as '25M'")
    number = float(value)
    if metric.parse is units.parse_duration:
        return units.checked_seconds(name, number)
    meant = _with_units(number, metric)
    if meant:
        raise InputError(Argument(name), f" is {value}, a number without a unit: give {meant}")
    return number


#: bare numbers above which a limit is more likely to be of another unit: bytes, and a share of all
_MAX_BARE_BYTES, _MAX_BARE_SHARE = 2.0**50, 1.0


def _with_units(number: float, metric: Measure[Any]) -> str:
    """Return what may have been meant by a number above any sense, or "" if it makes sense."""
    if metric.parse is units.parse_memory and number > _MAX_BARE_BYTES:
        return "bytes, or a text such as '16 GiB'"
    if metric.parse is units.parse_share and number > _MAX_BARE_SHARE:
        return f"'{number:g} %', or a share from 0 to 1"
    return ""
