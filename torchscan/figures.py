"""The figures of a whole model that budgets limit and tables list: how each is found, read and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from torchscan import units
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.memory_timeline import Moment
from torchscan.analyses.roofline import Roofline
from torchscan.crawler import crawl_module
from torchscan.errors import InputError
from torchscan.estimator import analyze_roofline, estimate_memory
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.precision import Precision
from torchscan.recording.request import Mode
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.report.info import Info

#: more than anything costs
_ENDLESS = 10**30

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
    optimizer: OptimizerChoice | None = None
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
    #: of a layer what adds up to it; none, where it comes from elsewhere
    keys: tuple[str, ...] = ()

    def written(self, value: Any, *, is_complete: bool) -> str:
        """As text; a cost that is only known from below is marked."""
        return f"{'' if is_complete or not self.is_cost else '≥ '}{self.text(value)}"


def _counted(heading: str, *keys: str, text: Callable[[Any], str], parse: Callable[[str], float], is_cost: bool) -> Figure:
    def value(measured: Measured) -> int:
        return int(sum(measured.info["overall"][key] for key in keys))

    return Figure(heading, "pass", value, text, parse, is_cost, keys)


def _parameters(heading: str, *keys: str) -> Figure:
    return _counted(heading, *keys, text=units.count, parse=units.parse_count, is_cost=False)


def _cost(heading: str, key: str) -> Figure:
    return _counted(heading, key, text=units.count, parse=units.parse_count, is_cost=True)


def _activation_memory(measured: Measured) -> int:
    """The most bytes of activations at one time, as :func:`estimate_memory` understands them."""
    moment = activation_peak(measured)
    return 0 if moment is None else moment.by_kind["activations"]


def activation_peak(measured: Measured) -> Moment | None:
    """When activations occupy the most."""
    assert measured.memory is not None  # noqa: S101 - its source is "memory"
    return max(measured.memory.timeline, key=lambda moment: moment.by_kind["activations"], default=None)


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
    "params": _parameters("Parameters", "grad_params", "nograd_params"),
    "trainable_params": _parameters("Trainable", "grad_params"),
    "model_size": _counted(
        "Model size", "param_size", "buffer_size", text=units.memory, parse=units.parse_memory, is_cost=False
    ),
    "macs": _cost("MACs", "macs"),
    "flops": _cost("FLOPs", "flops"),
    "dmas": _cost("DMAs", "dmas"),
    "activation_memory": Figure("Activations", "memory", _activation_memory, units.memory, units.parse_memory),
    "peak_memory": Figure("Peak memory", "memory", _peak_memory, units.memory, units.parse_memory),
    "receptive_field": Figure("RF", "field", _receptive_field, str, None),
    "latency": Figure("Latency", "roofline", _latency, units.duration, units.parse_duration, is_cost=True),
}


def measure(question: Question, names: Collection[str]) -> Measured:
    """The passes that these figures need: one for counts, one more for memory, and one for times."""
    sources = {FIGURES[name].source for name in names}
    inputs: dict[str, Any] = {key: getattr(question, key) for key in ("input_shape", "dtype", "args", "kwargs", "batch_size")}
    step: dict[str, Any] = {key: getattr(question, key) for key in ("training", "optimizer", "precision", "mode")}
    if "roofline" in sources and question.device is None:
        raise InputError("a latency is that of a device: give device='NVIDIA H200', say (torchscan devices lists them)")
    mode = question.mode or ("train" if question.training else "eval")
    info = crawl_module(question.module, **inputs, mode=mode, receptive_field="field" in sources)
    memory = estimate_memory(question.module, **inputs, **step, device=question.device) if "memory" in sources else None
    if "roofline" not in sources:
        return Measured(info, memory, None, question)
    return Measured(info, memory, analyze_roofline(question.module, **inputs, **step, device=str(question.device)), question)


def limits_of(given: Mapping[str, float | str | None]) -> dict[str, float]:
    """Limits as numbers, without those that are None."""
    return {name: _number(name, value) for name, value in given.items() if value is not None}


def _number(name: str, value: Any) -> float:
    parse = FIGURES[name].parse if name in FIGURES else None
    if parse is None:
        limited = ", ".join(f"max_{each}" for each, figure in FIGURES.items() if figure.parse is not None)
        raise InputError(f"max_{name} is no limit: there are {limited}")
    if isinstance(value, str):
        return parse(value)
    is_number = hasattr(type(value), "__float__") and not isinstance(value, bool)  # NumPy's too
    if not is_number or not 0 <= value < _ENDLESS:
        raise InputError(f"max_{name} is {str(value)[:40]}: give a number, or a text such as '25M'")
    return float(value)
