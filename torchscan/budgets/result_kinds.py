"""The types of results that can be limited, with the metrics of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.roofline import Roofline
from torchscan.budgets.excess_layers import (
    Layers,
    largest_layers,
    launch_overhead,
    peak_layer,
    slowest_layers,
)
from torchscan.budgets.generation_limits import layers_of_generation, warnings_of_generation
from torchscan.budgets.plan_limits import layers_of_plan
from torchscan.generation_metrics import OF_GENERATION
from torchscan.measures import Answer, Measure
from torchscan.metrics import METRICS, activation_bytes
from torchscan.notes import Note
from torchscan.plain import from_plain
from torchscan.plan_metrics import OF_PLAN
from torchscan.report.info_data import data_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMetric(Measure[Answer]):
    """One number of a result."""

    #: what the number leaves out, which makes it a lower bound
    missing: Callable[[Answer], Iterable[str]]

    def doubts(self, answer: Answer) -> list[str]:
        """Return what the number leaves out."""
        return list(self.missing(answer))


def _as_in_models(
    name: str, value: Callable[[Any], Any], missing: Callable[[Any], Any]
) -> ResultMetric[Any]:
    """Return a metric of a model, read from a result instead."""
    metric = METRICS[name]
    heading, text, parse = metric.heading, metric.text, metric.parse
    return ResultMetric(heading=heading, value=value, text=text, parse=parse, missing=missing)


class ResultKind(ABC):
    """One type of result that can be limited."""

    type: ClassVar[type[Any]]
    #: the result in messages: "a memory estimate"
    label: ClassVar[str]
    #: a call that returns one, and a limit for it
    source: ClassVar[str]
    example: ClassVar[str]

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Measure[Any]]:
        """The metrics that can be limited."""

    @abstractmethod
    def title(self, result: Any) -> str:
        """Return the title of an outcome."""

    @abstractmethod
    def layers(self, name: str, result: Any, samples: int) -> Layers:
        """Return the layers to look at if a metric, divided by ``samples``, exceeds its limit."""

    def remarks(self, result: Any) -> Sequence[Note]:  # noqa: ARG002 - most have none
        """Return the warnings of a result that are not about a limit."""
        return ()

    def timed(self, result: Any) -> str:  # noqa: ARG002 - most have no times
        """Return what a latency is of, for its heading: ``"batch 32, fp16"``."""
        return ""

    def batch_size(self, result: Any) -> int | None:
        """Return the samples of the batch, or None if they are not known."""
        found: int | None = result.batch_size
        return found


class _MemoryKind(ResultKind):
    type = MemoryEstimate
    label = "a memory estimate"
    source = "estimate_memory(module, …)"
    example = 'max_peak_memory="20 GiB"'

    @property
    def metrics(self) -> Mapping[str, Measure[Any]]:
        peak = _as_in_models(
            "peak_memory",
            lambda each: each.peak_bytes,
            lambda each: list(map(str, each.unreadable_weights)),
        )
        activations = _as_in_models("activation_memory", activation_bytes, lambda _: ())
        return {"activation_memory": activations, "peak_memory": peak}

    def title(self, result: MemoryEstimate) -> str:  # noqa: ARG002 - it has no name
        return "The memory estimate"

    def layers(self, name: str, result: MemoryEstimate, samples: int) -> Layers:  # noqa: ARG002
        return peak_layer(name, result)


class _RooflineKind(ResultKind):
    type = Roofline
    label = "a roofline"
    source = "analyze_roofline(module, …)"
    example = 'max_latency="12 ms"'

    @property
    def metrics(self) -> Mapping[str, Measure[Any]]:
        time = _as_in_models(
            "latency", lambda each: each.time_estimate, lambda each: each.without_formula
        )
        return {"latency": replace(time, error_share=lambda each: each.error_margin.share)}

    def timed(self, result: Roofline) -> str:
        return result.basis

    def title(self, result: Roofline) -> str:
        return f"The roofline of {result.device}"

    def layers(self, name: str, result: Roofline, samples: int) -> Layers:  # noqa: ARG002
        overhead = launch_overhead(result, is_per_sample=samples > 1)
        return overhead or slowest_layers(result)


class _GenerationKind(ResultKind):
    type = Generation
    label = "a generation"
    source = "analyze_generation(module, …)"
    example = 'max_time_per_token="60 ms"'

    @property
    def metrics(self) -> Mapping[str, Measure[Any]]:
        return OF_GENERATION

    def title(self, result: Generation) -> str:
        return f"Generation on {result.device}"

    def layers(self, name: str, result: Generation, samples: int) -> Layers:  # noqa: ARG002
        return layers_of_generation(name, result)

    def remarks(self, result: Generation) -> Sequence[Note]:
        return warnings_of_generation(result)


class _PlanKind(ResultKind):
    type = Plan
    label = "a plan"
    source = "torchscan.parallel.plan(…)"
    example = 'max_peak_memory="70 GiB"'

    @property
    def metrics(self) -> Mapping[str, Measure[Any]]:
        return OF_PLAN

    def timed(self, result: Plan) -> str:
        return "" if result.roofline is None else result.roofline.basis

    def title(self, result: Plan) -> str:
        return f"Rank {result.largest_rank.rank} of {result.num_ranks:,}"

    def layers(self, name: str, result: Plan, samples: int) -> Layers:  # noqa: ARG002
        return layers_of_plan(name, result)

    def remarks(self, result: Plan) -> Sequence[Note]:
        return result.warnings


class _InfoKind(ResultKind):
    type = Mapping
    label = "an info dict"
    source = "crawl_module(module, …)"
    example = 'max_params="25M"'

    @property
    def metrics(self) -> Mapping[str, Measure[Any]]:
        return {name: self._metric(name) for name, metric in METRICS.items() if metric.keys}

    def title(self, result: Mapping[str, Any]) -> str:
        if "selection" in result:  # its first layer may be any
            return "The model"
        return next((each["type"] for each in result["layers"]), "The model")

    def layers(self, name: str, result: Mapping[str, Any], samples: int) -> Layers:
        return largest_layers(METRICS[name], result["layers"], samples)

    def batch_size(self, result: Mapping[str, Any]) -> int | None:
        found: int | None = result["provenance"]["batch_size"]
        return found

    def _metric(self, name: str) -> Measure[Any]:
        """Return a metric that is the sum of keys of the dict."""
        metric = METRICS[name]

        def missing(info: Mapping[str, Any]) -> list[str]:
            data = data_of(info)  # with the keys of this version
            names: list[str] = []
            if metric.is_cost:
                names += [*data["without_formula"], *data["provenance"]["unrecorded_modules"]]
            if metric.has_weights:
                notes = data["provenance"].get("unreadable_weights", ())
                names += [str(from_plain(Note, each)) for each in notes]
            return names

        return _as_in_models(name, lambda info: metric.of_info(info["overall"]), missing)


RESULT_KINDS = (_MemoryKind(), _RooflineKind(), _GenerationKind(), _PlanKind(), _InfoKind())


def kind_of(value: object) -> ResultKind | None:
    """Return the type of result that a value is, or None if it can't be limited as a result."""
    return next((kind for kind in RESULT_KINDS if isinstance(value, kind.type)), None)
