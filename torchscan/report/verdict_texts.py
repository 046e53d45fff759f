"""Sentences of verdicts on runs, each with the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchscan import units
from torchscan.notes import Note, register_texts
from torchscan.plain import from_plain

#: characters of torch's reason for a recompilation
_MAX_REASON = 120
#: share of the time between steps that asks for an explanation
_MIN_BETWEEN = 0.2
#: where NaN or Inf was produced, by phase
_PLACES = {
    "forward": "the output of {name}",
    "backward": "a gradient in {name}",
    "input": "the input of {name}",
    "loss": "the loss",
    "gradient": "a gradient of {name}",
    "optimizer": "a parameter of {name}",
    "update": "a parameter or buffer of {name}",
}
#: what to do about NaN or Inf, by the phase in which it was produced
_CURES = {
    "forward": "check the range of its inputs",
    "backward": "check the values that its backward pass divides by",
    "input": "check the data",
    "loss": "check the loss and its targets",
    "gradient": "check the code that writes to gradients",
    "optimizer": "lower the learning rate",
    "update": "check the code that writes to parameters",
}

#: short names, for the card of a page
_NAMES = {
    "verdict-out-of-memory": "out of memory",
    "verdict-memory-growth": "memory grows",
    "verdict-recompilation": "recompiles",
    "verdict-input-bound": "input-bound",
    "verdict-host-bound": "launch-bound",
    "verdict-small-operators": "launch-bound",
    "verdict-slow-module": "one slow module",
    "verdict-balanced": "nothing stands out",
}


def name_verdict(verdict: str) -> str:
    """Return a verdict in two or three words."""
    return _NAMES.get(verdict, verdict)


def describe_nonfinite(
    kind: str,
    step: int,
    is_evaluation: bool,
    phase: str,
    path: str,
    type_name: str,
    operator: str | None,
    num_steps: int,
) -> str:
    """Return where NaN or Inf was first produced, and what to check."""
    when = f"in step {step}"
    if is_evaluation:
        when = f"in evaluation pass {step}"
    counted = ""
    if num_steps > 1:
        when = f"first {when}"
        counted = f" ({num_steps:,} steps have it)"
    name = _name_module(path, type_name)
    where = _PLACES.get(phase, "{name}").format(name=name)
    by = "" if operator is None else f", by {operator}"
    cure = _CURES.get(phase, "check its inputs")
    return f"{kind} {when}, in {where}{by}{counted}: {cure}"


def describe_out_of_memory_verdict(
    request: int,
    used: int,
    reserved: int,
    kind: str,
    share: float,
    place: str,
    place_size: int,
    suggestion: Mapping[str, Any] | None,
) -> str:
    """Return what held the memory of the GPU, and what would have helped."""
    failed = f"a request of {units.memory(request)} failed with {units.memory(used)} in use"
    held = f"{units.memory(reserved)} reserved, {units.share(share)} for {kind}"
    if place:
        held += f", most of them in {place} ({units.memory(place_size)})"
    text = f"{failed} ({held})"
    if suggestion is None:
        return text
    return f"{text}; would help: {from_plain(Note, suggestion)}"


def describe_memory_growth(growth: float, size: int, steps: int) -> str:
    """Return by how much memory grows, and what may keep it."""
    rate = f"memory grows by {units.memory(growth)} per step, steadily over {steps:,} steps"
    left = f"it doubles in {max(1, round(size / growth)):,} more"
    cure = "look for tensors that are kept, such as losses that are summed without .item()"
    return f"{rate}, and {left}: {cure}"


def describe_recompilation(place: str, times: int, reason: str | None) -> str:
    """Return the function that is recompiled, with torch's last reason."""
    text = " ".join((reason or "").split())
    if len(text) > _MAX_REASON:
        text = f"{text[:_MAX_REASON]}…"
    because = ""
    if text:
        because = f" ({text})"
    cure = "keep what changes constant, or compile with dynamic=True"
    return f"{place} was compiled {times} times{because}: {cure}"


def describe_input_bound(share: float, min: float, steps: int) -> str:  # noqa: A002 - a value
    """Return the share of the time between steps, and how to shorten it."""
    shares = f"{units.share(share)} of the time passes between steps"
    margin = f"at least {units.share(min)} in each fifth of {steps} steps"
    limit = "the data loader or other code of the loop limits the run"
    cure = "give the loader more workers, or move code out of the loop"
    return f"{shares} ({margin}), so {limit}: {cure}"


def describe_host_bound(share: float, min: float, steps: int) -> str:  # noqa: A002 - a value
    """Return the share of the time in which the device waits, and how to feed it."""
    shares = f"the device waits for the host {units.share(share)} of a step"
    margin = f"at least {units.share(min)} in each fifth of {steps} steps"
    cure = "try a larger batch, torch.compile or CUDA graphs"
    return f"{shares} ({margin}), so launches limit the run: {cure}"


def describe_small_operators(num_nodes: int, time: float) -> str:
    """Return how small operators are, and how to make them larger."""
    nodes = f"{num_nodes:,} operators of the backward pass take {units.duration(time)} each"
    cure = "try a larger batch, fused operators or torch.compile"
    return f"{nodes}, mostly the overhead of launching them: {cure}"


def describe_slow_module(
    path: str, type_name: str, share: float, trains: bool, model: str | None = None
) -> str:
    """Return the module that takes most of a step."""
    name = _name_module(path, type_name)
    passes = _name_passes(trains, model)
    return f"{name} takes {units.share(share)} of {passes}: start there"


def describe_balanced(
    path: str,
    type_name: str,
    share: float,
    trains: bool,
    between: float | None,
    min_between: float | None = None,
    model: str | None = None,
) -> str:
    """Return that nothing stands out, with the largest share of a module."""
    largest = f"{_name_module(path, type_name)} with {units.share(share)}"
    rest = ""
    if between is not None:
        rest = f"; {units.share(between)} of the time is between steps"
    if between is not None and min_between is not None and between >= _MIN_BETWEEN:
        rest += f" (but {units.share(min_between)} in one fifth of the steps)"
    passes = _name_passes(trains, model)
    return f"nothing stands out; the largest share of {passes} is {largest}{rest}"


def describe_too_few_steps(steps: int, needed: int) -> str:
    """Return how many steps a verdict needs."""
    noun = "steps were"
    if steps == 1:
        noun = "step was"
    return f"{steps} {noun} timed, which is too few: time {needed} or more"


def describe_straggler_verdict(rank: int, share: float) -> str:
    """Return the rank that the others wait for, and what to compare."""
    cure = "compare its data, device and CPU cores with those of the others"
    return f"rank {rank} holds up the others for {units.share(share)} of a step: {cure}"


def _name_module(path: str, type_name: str) -> str:
    """Return ``2 (Entropy)``."""
    name = path or "the model"
    if not type_name:
        return name
    return f"{name} ({type_name})"


def _name_passes(trains: bool, model: str | None) -> str:
    passes = "forward and backward" if trains else "the forward pass"
    return passes if model is None else f"{passes} of {model}"


VERDICT_TEXTS: dict[str, Any] = {
    "verdict-name": name_verdict,
    "verdict-nonfinite": describe_nonfinite,
    "verdict-out-of-memory": describe_out_of_memory_verdict,
    "verdict-memory-growth": describe_memory_growth,
    "verdict-recompilation": describe_recompilation,
    "verdict-input-bound": describe_input_bound,
    "verdict-host-bound": describe_host_bound,
    "verdict-small-operators": describe_small_operators,
    "verdict-slow-module": describe_slow_module,
    "verdict-balanced": describe_balanced,
    "verdict-too-few-steps": describe_too_few_steps,
    "verdict-straggler": describe_straggler_verdict,
}
register_texts(VERDICT_TEXTS)
