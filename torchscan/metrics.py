"""The numbers of a whole model that budgets limit and tables list: how to compute, parse and print each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torchscan import units
from torchscan.analyses.memory_timeline import Moment
from torchscan.errors import InputError
from torchscan.scan import Scan
from torchscan.trace.trace import Trace

#: more than any model costs
_ENDLESS = 10**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a whole model. It asks a scan only for what it needs."""

    heading: str
    value: Callable[[Scan], Any]
    text: Callable[[Any], str]
    #: the unit that several of them share in a table; None: they have none
    scale: Callable[[Iterable[float]], units.Scale] | None = None
    #: text to number, for limits; None: it can't be limited
    parse: Callable[[str], float] | None = None
    #: the record of a scan that it is read from: the forward pass with operators whole, or the whole pass in pieces
    record: Literal["forward", "steps"] = "forward"
    #: whether it is a lower bound if an operator is unpriced
    is_cost: bool = False
    #: whether it is one if weights cannot be read
    has_weights: bool = False
    #: the keys of the info dict (of a layer, or overall) that add up to it; empty: it comes from elsewhere
    keys: tuple[str, ...] = ()
    #: of an estimate, the share by which it may be off
    share_off: Callable[[Scan], float] | None = None

    def trace(self, scan: Scan) -> Trace:
        """The record that it is read from."""
        return scan.forward.trace if self.record == "forward" else scan.steps

    def unpriced(self, scan: Scan) -> tuple[str, ...]:
        """The unpriced operators in that record."""
        return scan.forward.unpriced if self.record == "forward" else scan.unpriced_steps

    def doubts(self, scan: Scan) -> list[str]:
        """Why it is a lower bound: unpriced operators, modules that the record doesn't follow, weights that can't be read."""
        costs = [*self.unpriced(scan), *self.trace(scan).provenance.missed] if self.is_cost else []
        return [*costs, *(self.trace(scan).provenance.unread if self.has_weights else ())]

    def of_info(self, data: Mapping[str, Any]) -> int:
        """The sum of its keys in the info dict, of a layer or overall."""
        return int(sum(data[key] for key in self.keys))

    def read(self, scan: Scan, scale: units.Scale | None = None) -> str:
        """As text, by default with a unit of its own, with the range of an estimate; a lower bound is marked."""
        bound = "≥ " if self.doubts(scan) else ""
        value = self.value(scan)
        text = f"{bound}{self.text(value) if scale is None else scale.text(value)}"
        return text if self.share_off is None else f"{text} ± {100 * self.share_off(scan):.0f} %"

    def written(self, value: Any, *, is_bound: bool) -> str:
        """As text; a lower bound is marked."""
        return f"{'≥ ' if is_bound else ''}{self.text(value)}"


def _counted(heading: str, *keys: str, is_memory: bool = False, is_cost: bool = False, has_weights: bool = False) -> Metric:
    text, parse = (units.memory, units.parse_memory) if is_memory else (units.count, units.parse_count)

    def value(scan: Scan) -> int:
        return int(sum(scan.forward.counts["overall"][key] for key in keys))

    scale = partial(units.scale_of_wholes, is_memory=is_memory)
    return Metric(
        heading=heading, value=value, text=text, scale=scale, parse=parse, is_cost=is_cost, has_weights=has_weights, keys=keys
    )


def _estimated_memory(heading: str, value: Callable[[Scan], int], *, has_weights: bool = False) -> Metric:
    parse, scale = units.parse_memory, partial(units.scale_of_wholes, is_memory=True)
    return Metric(
        heading=heading, value=value, text=units.memory, scale=scale, parse=parse, record="steps", has_weights=has_weights
    )


def _activation_memory(scan: Scan) -> int:
    """The most bytes of activations at one time, as :func:`estimate_memory` understands them."""
    moment = activation_peak(scan)
    return 0 if moment is None else moment.by_kind["activations"]


def activation_peak(scan: Scan) -> Moment | None:
    """The moment when activations occupy the most memory."""
    return max(scan.memory.timeline, key=lambda moment: moment.by_kind["activations"], default=None)


def require_device(metrics: Collection[str], device: str | None) -> None:
    """Refuse a latency on no device before anything is recorded."""
    if "latency" in metrics and device is None:
        raise InputError("a latency needs a device: give device='NVIDIA H200', say (torchscan devices lists them)")


def _receptive_field(scan: Scan) -> str:
    """The most that a unit sees through windows alone, and whether the output sees everything (a pool, attention, a gate)."""
    fields = scan.forward.fields
    if fields is None:
        return "–"
    widest = max(
        (axis.size for layer in fields for axes in layer.outputs for axis in axes if axis.size is not None), default=None
    )
    is_global = any(axis.status == "global" for axes in fields.output.outputs for axis in axes)
    if widest is None:
        return "global" if is_global else "–"
    return f"{widest} (global)" if is_global else str(widest)


METRICS: Mapping[str, Metric] = {
    "params": _counted("Parameters", "grad_params", "nograd_params", has_weights=True),
    "trainable_params": _counted("Trainable", "grad_params"),
    "model_size": _counted("Model size", "param_size", "buffer_size", is_memory=True, has_weights=True),
    "macs": _counted("MACs", "macs", is_cost=True),
    "flops": _counted("FLOPs", "flops", is_cost=True),
    "dmas": _counted("DMAs", "dmas", is_cost=True),
    "activation_memory": _estimated_memory("Activations", _activation_memory),
    "peak_memory": _estimated_memory("Peak memory", lambda scan: scan.memory.peak_bytes, has_weights=True),
    "receptive_field": Metric(heading="RF", value=_receptive_field, text=str),
    "latency": Metric(
        heading="Latency",
        value=lambda scan: scan.roofline.time_estimate,
        text=units.duration,
        scale=partial(units.scale_of_durations, least=1.0),
        parse=units.parse_duration,
        record="steps",
        is_cost=True,
        share_off=lambda scan: scan.roofline.spread.share,
    ),
}


def limits_of(given: Mapping[str, float | str | None]) -> dict[str, float]:
    """Limits as numbers, without those that are None."""
    return {name: _number(name, value) for name, value in given.items() if value is not None}


def _number(name: str, value: Any) -> float:
    parse = METRICS[name].parse if name in METRICS else None
    if parse is None:
        limited = ", ".join(f"max_{each}" for each, metric in METRICS.items() if metric.parse is not None)
        raise InputError(f"max_{name} is not a limit: there are {limited}")
    if isinstance(value, str):
        return parse(value)
    is_number = hasattr(type(value), "__float__") and not isinstance(value, bool)  # including NumPy's
    if not is_number or not 0 <= value < _ENDLESS:
        raise InputError(f"max_{name} is {str(value)[:40]}: give a number, or a text such as '25M'")
    return float(value)
