"""Expected costs of real calls, from a pass on shapes alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.roofline import Roofline
from torchscan.errors import TorchscanError
from torchscan.hardware.this_machine import cpu_name
from torchscan.ops import OpCost
from torchscan.precisions import Precision
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.module_calls import Given
from torchscan.recording.state import original_of
from torchscan.recording.trace_building import warn_of_unused_iterations
from torchscan.scan import Scan
from torchscan.trace.trace import Trace

#: path of a module, and which of its calls
_Key = tuple[str, int]
_MIXED: Mapping[torch.dtype, Precision] = {
    torch.float16: "fp16-mixed",
    torch.bfloat16: "bf16-mixed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expected costs and times, as far as they are available."""

    #: of each call's forward pass, with everything in it
    costs: Mapping[_Key, OpCost] = field(default_factory=dict)
    roofline: Roofline | None = None
    #: where the recorded module is in the one that was called: a wrapper's paths are longer
    inner: str = ""


def expectation_of(
    model: nn.Module,
    given: Given,
    *,
    training: bool,
    device: str | None,
    is_timed: bool,
    autocast: torch.dtype | None,
    loop_iterations: int | None,
) -> Expectation:
    """Return what a call of the model costs, and if ``is_timed`` what it takes on the device."""
    args, kwargs = given
    asked: dict[str, Any] = {
        "args": args,
        "kwargs": kwargs,
        "mode": "same",
        "execute": "abstract",
        "loop_iterations": loop_iterations,
    }
    precision = None if autocast is None else _MIXED.get(autocast)
    step = {"precision": precision, "training": training}
    roofline = _roofline(model, asked | step, device) if is_timed else None
    original = original_of(model)
    return Expectation(
        costs=_costs(model, asked),
        roofline=roofline,
        inner=next((path for path, module in model.named_modules() if module is original), ""),
    )


def _costs(model: nn.Module, asked: dict[str, Any]) -> Mapping[_Key, OpCost]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model has run, and has given them
            trace = Scan(model, **asked).trace
            costs = _by_call(trace)
    except Exception:  # whatever it is: the model has run, and goes on
        return {}
    warn_of_unused_iterations(asked["loop_iterations"], model, trace.provenance.assumptions)
    return costs


def _roofline(model: nn.Module, asked: dict[str, Any], device: str | None) -> Roofline | None:
    """Return the roofline on a device, or None if that is not known.

    By default, it is the device of the model.
    """
    named = cpu_name() if device is None and not is_on_cuda(model) else device
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example that it does not fit: it has run
            return Scan(model, device=named, **asked).roofline
    except TorchscanError:
        if device is not None:
            raise
        return None
    except Exception:  # as above
        return None


def _by_call(trace: Trace) -> dict[_Key, OpCost]:
    costs = [OpCost() for _ in trace.modules]
    for op, cost in zip(trace.ops, call_costs(trace), strict=True):
        costs[op.module_call] += cost
    for call in reversed(trace.modules):
        if call.parent is not None:
            costs[call.parent] += costs[call.index]
    return {(call.path, call.call): cost for call, cost in zip(trace.modules, costs, strict=True)}
