"""The layout that torch's compiler gives images: channels last, if its own rule says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.trace import Trace

_CONVOLUTION = "aten.convolution"
_Kind = Literal["grouped", "small", "narrowing", "other"]

#: time of convolutions with channels last, relative to that of others, by the compiler's rule for
#: inference
_TIME: Mapping[_Kind, float] = {
    "grouped": 1.358,
    "small": 0.783,
    "narrowing": 0.725,
    "other": 0.823,
}
#: calls for each convolution from which on the compiler leaves the layout alone
_CALLS_FOR_EACH = 300


def makes_channels_last(trace: Trace, costs: tuple[OpCost, ...]) -> bool:
    """Return whether the compiler stores images in channels-last layout."""
    calls = zip(trace.ops, costs, strict=True)
    convolutions = [(op, cost) for op, cost in calls if op.signature.operator == _CONVOLUTION]
    work = [(_kind(op.signature), cost.macs) for op, cost in convolutions]
    if not work or len(trace.ops) >= _CALLS_FOR_EACH * len(work):
        return False
    kinds = {kind for kind, _ in work}
    if trace.provenance.backward:
        return kinds.isdisjoint(("grouped", "narrowing")) and kinds != {"small"}
    with_channels_last = sum(_TIME[kind] * macs for kind, macs in work)
    return with_channels_last <= sum(macs for _, macs in work)


def _kind(convolution: OpSignature) -> _Kind:
    weight = convolution.args[1]
    groups = convolution.args[8]
    outputs, inputs, *window = weight.shape
    if groups > 1 and inputs > 1:
        return "grouped"
    if max(outputs, inputs) <= 64:
        return "small"
    is_narrowing = 2 * outputs <= inputs and window[0] > 1
    return "narrowing" if is_narrowing else "other"


def with_channels_last(signature: OpSignature) -> OpSignature:
    """Return a convolution of operands with their channels last, and any other call as it is."""
    if "convolution" not in signature.operator:
        return signature
    return replace(signature, args=tuple(map(_move_channels, signature.args)))


def _move_channels(value: Any) -> Any:
    """Return an image or weight with its channels last, and any other argument as it is."""
    if not isinstance(value, TensorSpec) or len(value.shape) < 3:
        return value
    strides = [0] * len(value.shape)
    step = 1
    for dim in (1, *reversed(range(2, len(value.shape))), 0):
        strides[dim] = step
        step *= value.shape[dim]
    return replace(value, stride=tuple(strides))
