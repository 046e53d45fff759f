"""The layout that torch's compiler gives images: channels last, where by its own rule that pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.trace import Trace

_Kind = Literal["grouped", "small", "narrowing", "other"]

#: how long convolutions take with their channels last, of what they take otherwise: what the compiler goes by in inference
_TIME: Mapping[_Kind, float] = {
    "grouped": 1.358,
    "small": 0.783,
    "narrowing": 0.725,
    "other": 0.823,
}
#: with fewer convolutions among the calls it doesn't bother
_CALLS_FOR_EACH = 300


def makes_channels_last(trace: Trace, costs: tuple[OpCost, ...]) -> bool:
    """Return whether the compiler stores images in channels-last layout."""
    calls = zip(trace.ops, costs, strict=True)
    work = [
        (_kind(op.signature), cost.macs)
        for op, cost in calls
        if op.signature.operator == "aten.convolution"
    ]
    if not work or len(trace.ops) >= _CALLS_FOR_EACH * len(work):
        return False
    kinds = {kind for kind, _ in work}
    if trace.provenance.backward:
        return kinds.isdisjoint(("grouped", "narrowing")) and kinds != {"small"}
    return sum(_TIME[kind] * macs for kind, macs in work) <= sum(macs for _, macs in work)


def _kind(convolution: OpSignature) -> _Kind:
    weight, groups = convolution.args[1], convolution.args[8]
    outputs, inputs, *window = weight.shape
    if groups > 1 and inputs > 1:
        return "grouped"
    if max(outputs, inputs) <= 64:
        return "small"
    return "narrowing" if 2 * outputs <= inputs and window[0] > 1 else "other"


def with_channels_last(signature: OpSignature) -> OpSignature:
    """A convolution of operands with their channels last; any other call as it is."""
    if "convolution" not in signature.operator:
        return signature
    return replace(signature, args=tuple(map(_turned, signature.args)))


def _turned(value: Any) -> Any:
    if not isinstance(value, TensorSpec) or len(value.shape) < 3:
        return value
    strides, step = [0] * len(value.shape), 1
    for dim in (1, *reversed(range(2, len(value.shape))), 0):
        strides[dim] = step
        step *= value.shape[dim]
    return replace(value, stride=tuple(strides))
