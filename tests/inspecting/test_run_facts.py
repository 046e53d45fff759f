"""The facts of a run, from steps whose times are known."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from torchscan import analyze_roofline
from torchscan.inspecting.facts import DeviceFacts, InspectedCall, StepFacts
from torchscan.inspecting.kept_steps import Observations, WatchedSteps
from torchscan.inspecting.run_device import RunProvenance
from torchscan.inspecting.run_summary import run_of
from torchscan.ops import OpCost
from torchscan.types import RunFacts

PROVENANCE = RunProvenance(device="CPU One", threads=1, torch_version="2", torchscan_version="0")
#: milliseconds
MS = 1_000_000


def call(path: str, parent: int | None, invocation: int = 0) -> InspectedCall:
    """A call of which nothing else is known."""
    values: dict[str, Any] = {each.name: None for each in fields(InspectedCall)}
    values |= {"path": path, "parent": parent, "invocation": invocation, "type_name": "Linear"}
    return InspectedCall(**values)


def on_device(forward: Sequence[int], backward: Sequence[int], **times: int) -> DeviceFacts:
    usual = {"backward_span": 0, "owned": 0, "leaves": 0, "waiting": 0, "whole": 0}
    milliseconds = {name: each * MS for name, each in (usual | times).items()}
    return DeviceFacts(forward=times_of(forward), backward=times_of(backward), **milliseconds)


def times_of(milliseconds: Sequence[int]) -> array[int]:
    return array("q", [each * MS for each in milliseconds])


def step(
    forward: Sequence[int],
    backward: Sequence[int] = (0, 0, 0),
    *,
    parents: Sequence[int] | None = None,
    device: DeviceFacts | None = None,
    period: int | None = None,
    between: int | None = None,
    counts: Any = None,
    is_counted: bool = True,
    **times: int,
) -> StepFacts:
    usual = {"backward_span": 0, "owned": 0, "leaves": 0, "optimizer": 0}
    return StepFacts(
        number=0,
        keys=(("", 0), ("0", 0), ("1", 0)),
        shapes=(),
        parents=array("q", parents or [-1] + [0] * (len(forward) - 1)),
        forward=times_of(forward),
        backward=times_of(backward),
        device=device,
        num_nodes=0,
        in_nodes=0,
        began=0,
        over=0,
        period=None if period is None else period * MS,
        between=None if between is None else between * MS,
        counts=counts or {},
        is_counted=is_counted,
        **{name: each * MS for name, each in (usual | times).items()},
    )


CALLS = (call("", None), call("0", 0), call("1", 0))


def watched(steps: Sequence[StepFacts], calls: Sequence[InspectedCall] = CALLS) -> WatchedSteps:
    return WatchedSteps(
        number=len(steps) + 2,
        warm_up=2,
        num_passes=len(steps) + 2,
        steps=steps,
        num_differing=1,
        calls=calls,
    )


def facts(
    steps: Sequence[StepFacts], calls: Sequence[InspectedCall] = CALLS, **options: Any
) -> RunFacts:
    return run_of(Observations(trains=True, usual=watched(steps, calls)), PROVENANCE, **options)


def median(latency: Any) -> float:
    """In milliseconds."""
    return round(1000 * latency.median, 6)


def test_steps_are_counted_without_those_that_warm_up() -> None:
    run = facts([step([5, 2, 1])] * 3)
    assert (run.steps, run.warm_up, run.timed, run.num_differing) == (3, 2, 3, 1)
    assert run.has_trained
    assert run.evaluation is None
    assert run.device is None
    assert run.expected is None


def test_times_of_a_step_are_split_into_its_parts() -> None:
    """Of a step of 50 ms, 10 are between steps, 9 forward, 20 backward and 4 in the optimizer.

    Of the backward pass, calls own 13 and storing gradients takes 2.
    """
    one = step(
        [9, 6, 2],
        backward_span=20,
        owned=13,
        leaves=2,
        optimizer=4,
        period=50,
        between=10,
    )
    run = facts([one])
    named = ("forward", "backward", "storing_gradients", "outside_modules", "optimizer")
    assert [median(getattr(run, name)) for name in named] == [9, 20, 2, 5, 4]
    assert [median(getattr(run, name)) for name in ("period", "between", "rest")] == [50, 10, 7]
    assert run.optimizer_steps == 1


def test_steps_without_a_next_one_or_an_optimizer_do_not_count_for_these() -> None:
    steps = [
        step([1, 0, 0], optimizer=4, period=20, between=3),
        step([1, 0, 0], period=30, between=5),
        step([1, 0, 0], optimizer=6),
    ]
    run = facts(steps)
    assert run.optimizer_steps == 2
    assert median(run.optimizer) == 5
    assert median(run.period) == 25
    assert median(run.between) == 4
    assert run.rest is not None
    assert (run.rest.min, run.rest.max) == pytest.approx((0.012, 0.024))


def test_all_calls_of_the_model_itself_are_its_forward_pass() -> None:
    run = facts([step([3, 1, 4], parents=(-1, 0, -1))])
    assert median(run.forward) == 7


def test_calls_have_their_times_over_all_steps() -> None:
    run = facts(
        [step([9, 4, 2], [8, 6, 1]), step([7, 2, 4], [6, 2, 3]), step([8, 9, 3], [7, 7, 2])]
    )
    assert [each.path for each in run.calls] == ["", "0", "1"]
    assert [median(each.forward) for each in run.calls] == [8, 4, 3]
    assert [median(each.backward) for each in run.calls] == [7, 6, 2]
    assert run.calls[1].forward.min == pytest.approx(0.002)
    assert run.calls[1].backward.max == pytest.approx(0.007)
    assert all(each.device_forward is each.device_backward is None for each in run.calls)
    assert all(each.macs is each.flops is each.expected_forward is None for each in run.calls)


def test_counts_of_calls_are_the_largest_of_any_step() -> None:
    counts = {1: (3, 0, 0, 0, 0, 0)}, {1: (1, 2, 0, 0, 0, 5), 2: (0, 0, 4, 0, 0, 0)}
    counted = facts([step([1, 1, 1], counts=each) for each in counts])
    model, first, second = counted.calls
    assert (first.forward_nan, first.forward_inf, first.grad_out_inf) == (3, 2, 5)
    assert (first.grad_in_nan, second.grad_in_nan, second.forward_nan) == (0, 4, 0)
    assert model.forward_nan == 0


def test_counts_of_0_are_unknown_if_a_step_was_not_counted() -> None:
    counts = {1: (3, 0, 0, 0, 0, 0)}
    run = facts([step([1, 1, 1], counts=counts), step([1, 1, 1], is_counted=False)])
    assert (run.calls[1].forward_nan, run.calls[1].forward_inf) == (3, None)
    assert run.calls[2].forward_nan is None


def test_times_on_the_device_are_of_the_steps_that_have_them() -> None:
    """Two of three steps; the device waits for 15 of 60 ms."""
    times: dict[str, Any] = {"backward_span": 30, "owned": 12, "leaves": 8}
    steps = [
        step([9, 5, 4], device=on_device([6, 2, 4], [12, 9, 3], waiting=5, whole=20, **times)),
        step([9, 5, 4]),
        step([9, 5, 4], device=on_device([8, 4, 4], [12, 7, 5], waiting=10, whole=40, **times)),
    ]
    run = facts(steps)
    assert run.device is not None
    parts = ("forward", "backward", "storing_gradients", "outside_modules")
    assert [median(getattr(run.device, name)) for name in parts] == [7, 30, 8, 10]
    assert run.device.waiting == 0.25
    assert [median(each.device_forward) for each in run.calls] == [7, 3, 4]
    assert [median(each.device_backward) for each in run.calls] == [12, 8, 4]


def test_a_device_without_any_time_does_not_wait() -> None:
    run = facts([step([1, 1, 1], device=on_device([0, 0, 0], [0, 0, 0]))])
    assert run.device is not None
    assert run.device.waiting == 0


def test_time_between_steps_is_not_idle_while_other_modules_run() -> None:
    """Of 100 ms, the last 20 are between steps; another module takes 5 of them, and 7 before."""
    steps = [
        replace(step([1, 1, 1], period=100, between=20), over=(1000 + 100 * number) * MS)
        for number in range(5)
    ]
    alone = share_between(steps)
    assert (alone.value, alone.min) == pytest.approx((0.2, 0.2))
    others = [((973 + 100 * each) * MS, (985 + 100 * each) * MS) for each in range(5)]
    assert share_between(steps, others=others).value == pytest.approx(0.15)
    assert share_between(steps[:4]) is None


def share_between(steps: Sequence[StepFacts], **options: Any) -> Any:
    evidence = facts(steps, **options).evidence
    assert evidence is not None
    return evidence.between


def test_evaluations_have_the_times_of_a_pass() -> None:
    """Each of two steps has two passes: of 4 and 6, and of 8 and 2 ms, on the device of 3 and 5."""
    calls = (call("", None), call("0", 0), call("", None, 1))
    device = on_device([3, 1, 5], [0, 0, 0])
    steps = [
        step([4, 1, 6], parents=(-1, 0, -1)),
        step([8, 3, 2], parents=(-1, 0, -1), device=device),
    ]
    usual = watched([step([1, 1, 1])])
    observed = Observations(trains=True, usual=usual, evaluation=watched(steps, calls))
    evaluation = run_of(observed, PROVENANCE).evaluation
    assert evaluation is not None
    assert (evaluation.passes, evaluation.timed) == (4, 4)
    assert median(evaluation.forward) == 5
    assert evaluation.device_forward is not None
    assert median(evaluation.device_forward) == 4
    assert [median(each.forward) for each in evaluation.calls] == [6, 2, 4]
    on_host = replace(observed, evaluation=watched(steps[:1], calls))
    evaluation = run_of(on_host, PROVENANCE).evaluation
    assert evaluation is not None
    assert evaluation.device_forward is None


def test_costs_are_those_of_the_call_inside_of_what_wraps_it() -> None:
    """The costs are of ``0`` in the model at ``inner``; ``innermost`` is another module."""
    calls = (
        call("", None),
        call("inner", 0),
        call("inner.0", 1),
        call("inner.0", 1, 1),
        call("innermost", 0),
    )
    costs = {("", 0): cost(70), ("0", 0): cost(40), ("0", 1): cost(30)}
    run = facts([step([1] * 5, [1] * 5)], calls, costs=costs, inner="inner")
    assert [each.macs for each in run.calls] == [70, 70, 40, 30, None]
    assert [each.flops for each in run.calls] == [140, 140, 80, 60, None]


def cost(macs: int) -> OpCost:
    return OpCost(macs=macs, flops=2 * macs)


def test_expected_times_are_those_of_the_roofline_with_everything_inside() -> None:
    """Two calls of a layer share its time."""
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, layer, nn.ReLU())
    roofline = analyze_roofline(
        model, (4,), training=True, optimizer="SGD", device="RTX 3090", loss=torch.sum
    )
    calls = (call("", None), call("0", 0), call("0", 0, 1), call("2", 0))
    run = facts([step([4] * 4, [4] * 4)], calls, roofline=roofline)
    forward = [each.expected_forward for each in run.calls]
    backward = [each.expected_backward for each in run.calls]
    for phase, times in (("forward", forward), ("backward", backward)):
        own = {path: time_of(roofline, path, phase) for path in ("", "0", "2")}
        half = own["0"] / 2
        assert times == pytest.approx([sum(own.values()), half, half, own["2"]])
    assert forward[1] is not None
    assert forward[1] > 0
    assert backward != forward
    assert run.expected is not None


def time_of(roofline: Any, path: str, phase: str) -> float:
    found = [each for each in roofline.operators if (each.layer, each.phase) == (path, phase)]
    return sum(each.time_estimate for each in found)
