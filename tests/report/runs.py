"""Inspected runs with times that are known, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tests.report.samples import Chain
from torchscan import inspect
from torchscan.inspecting.call_run import DeviceRun, Latency
from torchscan.inspecting.run import RunFacts

#: least, median and most, in milliseconds
Times = tuple[float, float, float]
NO_TIME: Times = (0.0, 0.0, 0.0)
STEADY: Times = (1.9, 2.0, 2.1)


def latency(times: Times) -> Latency:
    least, median, most = (each / 1000 for each in times)
    return Latency(median=median, min=least, max=most)


def on_device(run: RunFacts, times: Mapping[str, tuple[Times, Times]]) -> RunFacts:
    """The same with what calls took on a device."""
    taken = {
        path: (latency(forward), latency(backward)) for path, (forward, backward) in times.items()
    }
    made = (
        replace(call, device_forward=taken[call.path][0], device_backward=taken[call.path][1])
        for call in run.calls
    )
    forward, backward = taken[""]
    nothing = latency(NO_TIME)
    whole = DeviceRun(
        forward=forward,
        backward=backward,
        storing_gradients=nothing,
        outside_modules=nothing,
        waiting=0.0,
    )
    return replace(run, calls=tuple(made), device=whole)


def inspected(model: nn.Module, x: Any, steps: int = 3) -> RunFacts:
    """Training steps."""
    with inspect(model, warm_up=0) as run:
        for _ in range(steps):
            model(x).sum().backward()
    return run.facts


def run(times: Mapping[str, tuple[Times, Times]], *, steps: int = 3, **provenance: Any) -> RunFacts:
    """A chain of modules with these names, what each took forward and backward, and the model what all took together."""
    facts = inspected(Chain({name: nn.Linear(2, 2) for name in times}), torch.ones(1, 2))
    whole: Any = [
        tuple(sum(each[phase][figure] for each in times.values()) for figure in range(3))
        for phase in (0, 1)
    ]
    taken = {"": whole, **times}
    calls = [
        replace(call, forward=latency(taken[call.path][0]), backward=latency(taken[call.path][1]))
        for call in facts.calls
    ]
    return replace(
        facts,
        steps=steps,
        timed=None,
        calls=tuple(calls),
        forward=latency(whole[0]),
        backward=latency(whole[1]),
        storing_gradients=latency(NO_TIME),
        outside_modules=latency(NO_TIME),
        provenance=replace(facts.provenance, device="CPU One", **provenance),
    )
