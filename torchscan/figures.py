"""The figures of a whole model that budgets limit and tables list: how each is found, read and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from torchscan import units
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.crawler import crawl_module
from torchscan.errors import InputError
from torchscan.estimator import analyze_roofline, estimate_memory
from torchscan.report.info import Info, InfoDict
from torchscan.trace.example_inputs import DTypes, Shapes
from torchscan.trace.passes import Mode
from torchscan.trace.precision import Precision

Source = Literal["pass", "field", "memory", "roofline"]


@dataclass(frozen=True, slots=True)
class Question:
    """Of which model, of what inputs, where."""

    module: nn.Module
    input_shape: Shapes | None = None
    dtype: DTypes | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    batch_size: int = 1
    #: None: "train" for a training step, else "eval"
    mode: Mode | None = None
    training: bool = False
    optimizer: str | None = None
    precision: Precision | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found: the info dict, and estimates where figures come from them."""

    info: Info
    memory: MemoryEstimate | None = None
    roofline: Roofline | None = None
    question: Question | None = field(default=None, repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether every operator of the pass has a price; if not, costs are lower bounds."""
        return bool(self.info["overall"]["complete"])


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a model."""

    heading: str
    source: Source
    value: Callable[[Measured], Any]
    text: Callable[[Any], str]
    #: text to number, for limits; None: it cannot be limited
    parse: Callable[[str], float] | None
    #: a lower bound where an operator has no price
    is_cost: bool = False


def _overall(*keys: str) -> Callable[[Measured], int]:
    return lambda measured: total_of(measured.info, *keys)


def total_of(info: InfoDict, *keys: str) -> int:
    """The sum of these figures of the whole model."""
    return int(sum(info["overall"][key] for key in keys))


def _cost(heading: str, key: str) -> Figure:
    return Figure(heading, "pass", _overall(key), units.count, units.parse_count, is_cost=True)


def _activation_memory(measured: Measured) -> int:
    """The most bytes that results hold at one time: what is kept, and what operators work in."""
    assert measured.memory is not None  # noqa: S101 - its source is "memory"
    alive = (moment.by_kind["activations"] + moment.by_kind["temporary"] for moment in measured.memory.timeline)
    return max(alive, default=0)


def _peak_memory(measured: Measured) -> int:
    assert measured.memory is not None  # noqa: S101 - its source is "memory"
    return measured.memory.peak_bytes


def _latency(measured: Measured) -> float:
    assert measured.roofline is not None  # noqa: S101 - its source is "roofline"
    return measured.roofline.time_estimate


def _receptive_field(measured: Measured) -> str:
    """The most that a unit sees by windows alone; and whether the output sees everything, by a pool, attention or a gate."""
    fields = [layer["receptive_field"] for layer in measured.info["layers"]]
    axes = [[axis for output in each or () for axis in output] for each in fields]
    widest = max((axis["rf"] for each in axes for axis in each if axis["rf"] is not None), default=None)
    is_global = any(axis["status"] == "global" for axis in axes[0])
    if widest is None:
        return "global" if is_global else "–"
    return f"{widest} (global)" if is_global else str(widest)


FIGURES: Mapping[str, Figure] = {
    "params": Figure("Parameters", "pass", _overall("grad_params", "nograd_params"), units.count, units.parse_count),
    "trainable_params": Figure("Trainable", "pass", _overall("grad_params"), units.count, units.parse_count),
    "model_size": Figure("Model size", "pass", _overall("param_size", "buffer_size"), units.memory, units.parse_memory),
    "macs": _cost("MACs", "macs"),
    "flops": _cost("FLOPs", "flops"),
    "dmas": _cost("DMAs", "dmas"),
    "activation_memory": Figure("Activations", "memory", _activation_memory, units.memory, units.parse_memory),
    "peak_memory": Figure("Peak memory", "memory", _peak_memory, units.memory, units.parse_memory),
    "receptive_field": Figure("RF", "field", _receptive_field, str, None),
    "latency": Figure("Latency", "roofline", _latency, units.duration, units.parse_duration),
}


def measure(question: Question, names: Collection[str]) -> Measured:
    """The passes that these figures need: one for counts, one more for memory, and one for times."""
    sources = {FIGURES[name].source for name in names}
    inputs: dict[str, Any] = {key: getattr(question, key) for key in ("input_shape", "dtype", "args", "kwargs", "batch_size")}
    step: dict[str, Any] = {key: getattr(question, key) for key in ("training", "optimizer", "precision", "mode")}
    if "roofline" in sources and question.device is None:
        raise InputError("a latency is that of a device: give device='NVIDIA H200', say (torchscan devices lists them)")
    return Measured(
        crawl_module(question.module, **inputs, mode=question.mode or "eval", receptive_field="field" in sources),
        estimate_memory(question.module, **inputs, **step, device=question.device) if "memory" in sources else None,
        analyze_roofline(question.module, **inputs, **step, device=str(question.device)) if "roofline" in sources else None,
        question,
    )
