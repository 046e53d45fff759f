"""The numbers that budgets limit and tables list: how each is computed, printed and read.

They are about a model, about generation, or about the plan of a mesh.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from torchscan import units
from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.memory_timeline import Moment
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.receptive_field.receptive_field_result import AxisField, LayerField
from torchscan.analyses.roofline import Roofline
from torchscan.errors import Give, InputError
from torchscan.hardware.device_specs import can_estimate_for
from torchscan.report.generation_table import OF_BATCH, OF_MODEL
from torchscan.scan import Scan
from torchscan.trace.trace import Trace

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(ABC, Generic[Answer]):
    """One number, read from an answer."""

    heading: str
    value: Callable[[Answer], Any]
    text: Callable[[Any], str]
    #: returns the unit that several of them share in a table, or None if they have none
    scale: Callable[[Iterable[float]], units.Scale] | None = None
    #: converts the text of a limit to a number, or None if there are no limits
    parse: Callable[[str], float] | None = None
    #: True if its limit is a minimum
    is_min: bool = False
    #: returns the share by which an estimate may be off, or None if it is not an estimate
    error_share: Callable[[Answer], float] | None = None

    @abstractmethod
    def doubts(self, answer: Answer) -> list[str]:
        """Return the reasons why a value is only a bound."""

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
        if self.error_share is None:
            return None
        return self.error_share(answer)

    def written(self, value: Any, *, is_bound: bool, scale: units.Scale | None = None) -> str:
        """Return the text of a value. A bound is marked."""
        text = self.text(value) if scale is None else scale.text(value)
        if not is_bound:
            return text
        sign = "≤" if self.is_min else "≥"
        return f"{sign} {text}"


def range_of(error_share: float | None) -> str:
    """Return the text that follows an estimate: ``0.4 -> " ± 40 %"``."""
    if error_share is None:
        return ""
    return f" ± {100 * error_share:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Measure[Scan]):
    """One number of a whole model. It asks a scan only for what it needs."""

    #: the trace that it is read from: that of the fused forward pass, or of the decomposed pass
    record: Literal["forward", "steps"] = "forward"
    #: True if it is a lower bound when an operator has no cost formula
    is_cost: bool = False
    #: True if it is a lower bound when weights cannot be read
    has_weights: bool = False
    #: the keys of the info dict (of a layer, or overall) that add up to it, if any do
    keys: tuple[str, ...] = ()

    def trace(self, scan: Scan) -> Trace:
        """Return the trace that it is read from."""
        if self.record == "forward":
            return scan.forward.trace
        return scan.steps

    def without_formula(self, scan: Scan) -> tuple[str, ...]:
        """Return the operators without a cost formula in that trace."""
        if self.record == "forward":
            return scan.forward.without_formula
        return scan.steps_without_formula

    def doubts(self, answer: Scan) -> list[str]:
        """Return the reasons why it is a bound.

        They are operators without a formula, unrecorded modules, and unreadable weights.
        """
        doubts: list[str] = []
        if self.is_cost:
            doubts += self.without_formula(answer)
            doubts += self.trace(answer).provenance.unrecorded_modules
        if self.has_weights:
            doubts += map(str, self.trace(answer).provenance.unreadable_weights)
        return doubts

    def of_info(self, data: Mapping[str, Any]) -> int:
        """Return the sum of its keys in the info dict, of a layer or overall."""
        return int(sum(data[key] for key in self.keys))


#: options of a measure by the kind of its number
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
    if moment is None:
        return 0
    return moment.by_kind["activations"]


def activation_peak(estimate: MemoryEstimate) -> Moment | None:
    """Return the moment when activations occupy the most memory, or None if no operator ran."""
    return max(estimate.timeline, key=lambda moment: moment.by_kind["activations"], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMetric(Measure[Generation]):
    """One number about text generation."""

    #: True if it depends on all weights; else it depends on all operators
    has_weights: bool = False

    def doubts(self, answer: Generation) -> list[str]:
        """Return the reasons why it is a bound.

        They are operators without a formula, unrecorded modules, and unreadable weights.
        """
        if self.has_weights:
            return [str(weights) for weights in answer.unreadable_weights]
        if self.error_share is None:
            return []
        return list(answer.without_formula)


def _generated(name: str, parse: Callable[[str], float], **rest: Any) -> GenerationMetric:
    """Return the metric of an attribute of a generation, whose None means no limit."""
    heading, format_value = {**OF_MODEL, **OF_BATCH}[name]

    def value(made: Generation) -> float:
        found = getattr(made, name)
        return math.inf if found is None else float(found)

    def text(found: float) -> str:
        return format_value(None if found == math.inf else found)

    return GenerationMetric(heading=heading, value=value, text=text, parse=parse, **rest)


def _share_per_token(made: Generation) -> float:
    """Return the error margin of a token after the first."""
    return max(abs(made.margin.low), abs(made.margin.high))


def _share_of_prefill(made: Generation) -> float:
    """Return the error margin of the first token."""
    return made.prefill.error_margin.share


def _share_of_all(made: Generation) -> float:
    """Return the error margin of an answer: those of both phases, weighted by their times."""
    rest = (made.new - 1) * made.per_token
    first = made.first_token_of_all
    off = first * _share_of_prefill(made) + rest * _share_per_token(made)
    return off / (first + rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMetric(Measure[Plan]):
    """A value of a planned rank: the one with the highest peak memory."""

    #: True if it depends on the costs of operators
    is_cost: bool = False
    #: True if it depends on all weights
    has_weights: bool = False

    def doubts(self, answer: Plan) -> list[str]:
        """Return the reasons why it is a bound.

        They are operators without a formula, unrecorded modules, and unreadable weights.
        """
        trace = answer.largest_rank.trace
        doubts: list[str] = []
        if self.is_cost:
            doubts += operators_without_formula(trace, call_costs(trace))
            doubts += trace.provenance.unrecorded_modules
        if self.has_weights:
            doubts += map(str, trace.provenance.unreadable_weights)
        return doubts


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
    """Return the text of the widest field that units see through windows alone.

    It tells if the output sees everything, for example by a pool, attention or a gate.
    """
    fields = scan.forward.fields
    if fields is None:
        return "–"
    sizes = [axis.size for layer in fields for axis in _axes_of(layer) if axis.size is not None]
    is_global = any(axis.status == "global" for axis in _axes_of(fields.output))
    if not sizes:
        return "global" if is_global else "–"
    widest = max(sizes)
    return f"{widest} (global)" if is_global else str(widest)


def _axes_of(layer: LayerField) -> Iterator[AxisField]:
    for axes in layer.outputs:
        yield from axes


_ACTIVATIONS = Metric(
    heading="Activations",
    value=lambda scan: activation_bytes(scan.memory),
    record="steps",
    **_MEMORY,
)
_PEAK_MEMORY = Metric(
    heading="Peak memory",
    value=lambda scan: scan.memory.peak_bytes,
    record="steps",
    has_weights=True,
    **_MEMORY,
)
_LATENCY = Metric(
    heading="Latency",
    value=lambda scan: scan.roofline.time_estimate,
    **_DURATION,
    record="steps",
    is_cost=True,
    error_share=lambda scan: scan.roofline.error_margin.share,
)

METRICS: Mapping[str, Metric] = {
    "params": _counted("Parameters", "grad_params", "nograd_params", has_weights=True),
    "trainable_params": _counted("Trainable", "grad_params"),
    "model_size": _counted("Model size", "param_size", "buffer_size", has_weights=True, **_MEMORY),
    "macs": _counted("MACs", "macs", is_cost=True),
    "flops": _counted("FLOPs", "flops", is_cost=True),
    "dmas": _counted("DMAs", "dmas", is_cost=True),
    "activation_memory": _ACTIVATIONS,
    "peak_memory": _PEAK_MEMORY,
    "receptive_field": Metric(heading="RF", value=_receptive_field, text=str),
    "latency": _LATENCY,
}


#: the metrics that are divided by the batch size for limits per sample
PER_SAMPLE = tuple(name for name, metric in METRICS.items() if metric.is_cost)

#: metrics of text generation
OF_GENERATION: Mapping[str, GenerationMetric] = {
    "time_per_token": _generated("per_token", units.parse_duration, error_share=_share_per_token),
    "time_per_token_under_load": _generated(
        "per_token_under_load", units.parse_duration, error_share=_share_per_token
    ),
    "first_token": _generated("first_token", units.parse_duration, error_share=_share_of_prefill),
    "tokens_per_second": _generated(
        "tokens_per_second", units.parse_count, is_min=True, error_share=_share_of_all
    ),
    "weights": _generated("weights_bytes", units.parse_memory, has_weights=True),
    "cache_per_token": _generated("cache_bytes_per_token", units.parse_memory),
    "context": _generated("max_context", units.parse_tokens, is_min=True, has_weights=True),
    "batch_size": _generated("max_batch_size", units.parse_count, is_min=True, has_weights=True),
}

_PARAMS_OF_RANK = PlanMetric(
    heading="Parameters per rank",
    value=lambda made: made.local_params,
    **_COUNT,
    has_weights=True,
)
_PEAK_OF_RANK = PlanMetric(
    heading=_PEAK_MEMORY.heading,
    value=lambda made: made.memory.peak_bytes,
    **_MEMORY,
    has_weights=True,
)
_SENT_BY_RANK = PlanMetric(
    heading="Sent per rank",
    value=lambda made: made.sent_bytes,
    **_MEMORY,
)
_LATENCY_OF_RANK = PlanMetric(
    heading=_LATENCY.heading,
    value=lambda made: _timed(made).time_estimate,
    **_DURATION,
    error_share=lambda made: _timed(made).error_margin.share,
    is_cost=True,
)
_WAITING = PlanMetric(
    heading="Waiting for links",
    value=lambda made: _timed(made).time_share("links"),
    text=units.share,
    parse=units.parse_share,
)

#: metrics of a rank of a mesh
OF_PLAN: Mapping[str, PlanMetric] = {
    "local_params": _PARAMS_OF_RANK,
    "peak_memory": _PEAK_OF_RANK,
    "sent": _SENT_BY_RANK,
    "latency": _LATENCY_OF_RANK,
    "waiting": _WAITING,
}
