"""Metrics of a complete model: one pass, or one training step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.memory_timeline import Moment
from torchscan.analyses.receptive_field.receptive_field_result import AxisField, LayerField
from torchscan.errors import Give, InputError
from torchscan.hardware.device_specs import can_estimate_for
from torchscan.measures import COUNT_OPTIONS, DURATION_OPTIONS, MEMORY_OPTIONS, Measure
from torchscan.scan import Scan
from torchscan.trace.trace import Trace


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


def _counted(heading: str, *keys: str, **options: Any) -> Metric:
    """Return the sum of these keys in the info dict, by default a count."""

    def value(scan: Scan) -> int:
        return int(sum(scan.forward.counts["overall"][key] for key in keys))

    return Metric(heading=heading, value=value, keys=keys, **{**COUNT_OPTIONS, **options})


def activation_bytes(estimate: MemoryEstimate) -> int:
    """Return the most bytes of activations at one time."""
    moment = activation_peak(estimate)
    if moment is None:
        return 0
    return moment.by_kind["activations"]


def activation_peak(estimate: MemoryEstimate) -> Moment | None:
    """Return the moment when activations occupy the most memory, or None if no operator ran."""
    return max(estimate.timeline, key=lambda moment: moment.by_kind["activations"], default=None)


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
    **MEMORY_OPTIONS,
)
_PEAK_MEMORY = Metric(
    heading="Peak memory",
    value=lambda scan: scan.memory.peak_bytes,
    record="steps",
    has_weights=True,
    **MEMORY_OPTIONS,
)
_LATENCY = Metric(
    heading="Latency",
    value=lambda scan: scan.roofline.time_estimate,
    **DURATION_OPTIONS,
    record="steps",
    is_cost=True,
    error_share=lambda scan: scan.roofline.error_margin.share,
)

METRICS: Mapping[str, Metric] = {
    "params": _counted("Parameters", "grad_params", "nograd_params", has_weights=True),
    "trainable_params": _counted("Trainable", "grad_params"),
    "model_size": _counted(
        "Model size", "param_size", "buffer_size", has_weights=True, **MEMORY_OPTIONS
    ),
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
