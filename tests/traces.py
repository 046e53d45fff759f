"""Traces made by hand, of calls whose operands and costs do not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from torchscan import record
from torchscan.trace.events import ModuleCall, OpCall, OpSignature, Phase
from torchscan.trace.trace import Trace


def call_of(
    operator: Any,
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    *,
    arguments: Sequence[Any] = (),
    phase: Phase = "forward",
) -> OpCall:
    """Return a call that reads and returns the tensors of these numbers."""
    signature = OpSignature(
        op=operator, args=tuple(arguments), kwargs={}, outputs=(), is_view=False
    )
    return OpCall(signature, tuple(inputs), tuple(outputs), 0, phase)


def trace_of(calls: Sequence[OpCall], calls_by_path: Mapping[str, Sequence[int]]) -> Trace:
    """Return a trace of these calls, each of a module."""
    modules = []
    for index, (path, ops) in enumerate(calls_by_path.items()):
        modules.append(ModuleCall(index, path, "Module", 0, 0, None, (), (), (), tuple(ops)))
    return replace(record(nn.Identity(), (1,)), ops=tuple(calls), modules=tuple(modules))
