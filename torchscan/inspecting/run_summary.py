"""The facts of a run, from its steps: which steps are kept, what they have in common, and checks.

All steps are kept up to a thousand; of more, fewer and fewer of the earlier ones. Steps with a
backward pass train. Forward passes without one, such as those of a validation, are kept separately.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from torchscan.analyses.roofline import Roofline
from torchscan.inspecting.call_run import CallRun, DeviceRun, EvaluationRun, Latency
from torchscan.inspecting.evidence import Interval, evidence_of
from torchscan.inspecting.facts import COUNTED, DeviceFacts, InspectedCall, StepFacts
from torchscan.inspecting.kept_steps import Observations, WatchedSteps
from torchscan.inspecting.run import RunFacts
from torchscan.inspecting.run_device import Expected, RunProvenance
from torchscan.inspecting.step_timeline import Timeline
from torchscan.measured import Key
from torchscan.ops import OpCost
from torchscan.trace.events import Phase

_NONE_COUNTED = (0,) * len(COUNTED)


def run_of(
    watched: Observations,
    provenance: RunProvenance,
    *,
    costs: Mapping[Key, OpCost] = MappingProxyType({}),
    roofline: Roofline | None = None,
    inner: str = "",
    others: Sequence[Interval] = (),
) -> RunFacts:
    """Return the facts of the steps together.

    Costs and the roofline are those of the module at ``inner``, without what wraps it. ``others``
    are the calls of other modules.
    """
    usual = watched.usual
    steps = usual.steps
    num_steps = usual.number - usual.warm_up
    calls = _call_runs(usual, costs, roofline, inner)
    times = _times_of(steps)
    device = _device_run(steps)
    evidence = evidence_of(steps, others)
    evaluation = expected = None
    if watched.evaluation is not None:
        evaluation = _evaluation_run(watched.evaluation)
    if roofline is not None:
        expected = Expected.of(roofline)
    return RunFacts(
        steps=num_steps,
        warm_up=usual.warm_up,
        timed=len(steps),
        has_trained=watched.trains,
        evaluation=evaluation,
        calls=calls,
        **times,
        device=device,
        num_differing=usual.num_differing,
        nonfinite=tuple(watched.nonfinite),
        nonfinite_steps=watched.nonfinite_steps,
        expected=expected,
        checked=tuple(watched.checked),
        compilation=watched.compilation,
        provenance=provenance,
        timeline=usual.timeline or Timeline(),
        process=watched.process,
        exchanges=usual.exchanges,
        evidence=evidence,
    )


def _times_of(steps: Sequence[StepFacts]) -> dict[str, Any]:
    """Return the times on the host, by field of the run."""
    times: dict[str, list[int]] = {}
    times["forward"] = [step.of_model(step.forward) for step in steps]
    times["backward"] = [step.backward_span for step in steps]
    times["storing_gradients"] = [step.leaves for step in steps]
    times["outside_modules"] = [step.backward_span - step.leaves - step.owned for step in steps]
    times["optimizer"] = [step.optimizer for step in steps if step.optimizer]
    for name in ("period", "between", "rest"):
        known = [getattr(step, name) for step in steps]
        times[name] = [each for each in known if each is not None]
    found: dict[str, Any] = {name: Latency.of(each) for name, each in times.items()}
    found["optimizer_steps"] = len(times["optimizer"])
    return found


def _call_runs(
    usual: WatchedSteps, costs: Mapping[Key, OpCost], roofline: Roofline | None, inner: str
) -> tuple[CallRun, ...]:
    """Return the calls, with their costs and expected times."""
    paths = [_path_in(inner, call.path) for call in usual.calls]
    expected = None
    if roofline is not None:
        parents = [call.parent for call in usual.calls]
        expected = _expect_times(roofline, paths, parents)
    calls = []
    for index, call in enumerate(usual.calls):
        run = _call_run(call, index, usual.steps)
        key = (paths[index], call.invocation)
        cost = costs.get(key)
        if cost is not None:
            run = replace(run, macs=cost.macs, flops=cost.flops)
        if expected is not None:
            forward, backward = expected[index]
            run = replace(run, expected_forward=forward, expected_backward=backward)
        calls.append(run)
    return tuple(calls)


def _path_in(inner: str, path: str) -> str:
    """Return the path of a module in the one at ``inner``."""
    if not inner:
        return path
    prefix = f"{inner}."
    if not f"{path}.".startswith(prefix):
        return path
    return path[len(prefix) :]


def _expect_times(
    roofline: Roofline, paths: Sequence[str], parents: Sequence[int | None]
) -> list[tuple[float, float]]:
    """Return the expected seconds of each call, forward and backward, with everything in it.

    Calls of one module share its time equally.
    """
    own: dict[tuple[str, Phase], float] = defaultdict(float)
    for load in roofline.operators:
        own[load.layer, load.phase] += load.time_estimate
    num_calls = Counter(paths)
    forward: list[float] = []
    backward: list[float] = []
    for path in paths:
        number = num_calls[path]
        forward.append(own[path, "forward"] / number)
        backward.append(own[path, "backward"] / number)
    for index in reversed(range(len(paths))):
        parent = parents[index]
        if parent is not None:
            forward[parent] += forward[index]
            backward[parent] += backward[index]
    return list(zip(forward, backward, strict=True))


def _call_run(call: InspectedCall, index: int, steps: Sequence[StepFacts]) -> CallRun:
    """Return a call over several steps, without its cost."""
    described = {field.name: getattr(call, field.name) for field in fields(InspectedCall)}
    described |= zip(COUNTED, _max_counts(steps, index), strict=True)
    on_device = [step.device for step in steps if step.device is not None]
    device_forward = device_backward = None
    if on_device:
        device_forward = Latency.of(device.forward[index] for device in on_device)
        device_backward = Latency.of(device.backward[index] for device in on_device)
    forward = Latency.of(step.forward[index] for step in steps)
    backward = Latency.of(step.backward[index] for step in steps)
    return CallRun(
        **described,
        forward=forward,
        backward=backward,
        device_forward=device_forward,
        device_backward=device_backward,
        macs=None,
        flops=None,
        expected_forward=None,
        expected_backward=None,
    )


def _max_counts(steps: Sequence[StepFacts], index: int) -> list[int | None]:
    """Return the maximum of each count of a call. A 0 becomes None if a step was not counted."""
    by_step = [step.counts.get(index, _NONE_COUNTED) for step in steps]
    by_count = zip(*by_step, strict=True)
    largest: list[int | None] = [max(counts) for counts in by_count]
    if all(step.is_counted for step in steps):
        return largest
    return [count or None for count in largest]


def _evaluation_run(watched: WatchedSteps) -> EvaluationRun:
    """Return the times of a pass.

    Only the next step ends such a step, so it may have more than one pass.
    """
    steps = watched.steps
    num_passes = sum(call.parent is None for call in watched.calls)
    on_host = [step.of_model(step.forward) // num_passes for step in steps]
    devices = _on_device(steps)
    device_forward = None
    if devices:
        on_device = [step.of_model(device.forward) // num_passes for step, device in devices]
        device_forward = Latency.of(on_device)
    calls = [_call_run(call, index, steps) for index, call in enumerate(watched.calls)]
    num_timed = len(steps) * num_passes
    return EvaluationRun(
        passes=watched.num_passes,
        timed=num_timed,
        forward=Latency.of(on_host),
        device_forward=device_forward,
        calls=tuple(calls),
    )


def _device_run(steps: Sequence[StepFacts]) -> DeviceRun | None:
    """Return the times of a step on the device, or None without one."""
    devices = _on_device(steps)
    if not devices:
        return None
    forward = [step.of_model(device.forward) for step, device in devices]
    backward = [device.backward_span for _, device in devices]
    storing = [device.leaves for _, device in devices]
    outside = [device.backward_span - device.leaves - device.owned for _, device in devices]
    whole = sum(device.whole for _, device in devices)
    waiting = sum(device.waiting for _, device in devices)
    share = waiting / whole if whole else 0.0
    return DeviceRun(
        forward=Latency.of(forward),
        backward=Latency.of(backward),
        storing_gradients=Latency.of(storing),
        outside_modules=Latency.of(outside),
        waiting=share,
    )


def _on_device(steps: Sequence[StepFacts]) -> list[tuple[StepFacts, DeviceFacts]]:
    """Return the steps with times on a device, and these times."""
    return [(step, step.device) for step in steps if step.device is not None]
