"""Measured time of a real step, checked against a budget's limit on the limit's device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from torchscan import units
from torchscan.budgets.budget_definition import Budget
from torchscan.budgets.outcome import basis_of
from torchscan.hardware.device_names import is_part
from torchscan.inspecting.call_run import slowest_modules
from torchscan.inspecting.run import RunFacts
from torchscan.inspecting.run_device import name_of_device
from torchscan.inspecting.step_execution import RealSteps, local_device
from torchscan.inspecting.step_time import StepExcess
from torchscan.inspection import inspect
from torchscan.notes import Note
from torchscan.recording.request import PassRequest
from torchscan.targets import Built, Target, inputs_of, with_model

#: number of steps that are measured, after one that warms up
_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The time of a step and its excess over the limit, or the reason why it was not measured."""

    #: ``Step 12.3 ms on NVIDIA H200``
    taken: str = ""
    #: excess over the limit, with the slowest modules; empty if there is none
    excess: str = ""
    remark: Note | None = None


def check_step_time(budget: Budget, target: Target, *, timings: bool) -> StepOutcome:
    """Run steps of the target and check their time against the limit.

    Nothing is run without ``timings``, or on another device than that of the limit.
    """
    limit = budget.step_time
    if limit is None:
        return StepOutcome()
    samples = budget.batch_size if budget.per_sample else 1
    basis = basis_of(budget.batch_size, is_per_sample=budget.per_sample)
    if not timings:
        remark = Note.of(
            "step-needs-timings",
            limit=limit.most,
            is_per_sample=samples > 1,
            device=limit.measured_on,
        )
        return StepOutcome(remark=remark)
    device = torch.device("cpu")
    if not is_part(limit.measured_on, name_of_device(device)):
        device = local_device(None)  # the GPU of this machine, if there is one
    here = name_of_device(device)
    if not is_part(limit.measured_on, here):
        remark = Note.of("step-on-other-device", limit_device=limit.measured_on, device=here)
        return StepOutcome(remark=remark)
    measure = partial(_measure, budget, device)
    facts = with_model(target, measure, folder=budget.folder, with_data=True)
    time = units.duration(facts.step_time / samples)
    excess, most = "", limit.most * samples * (1 + limit.tolerance)
    if facts.step_time > most:
        per_sample = ""
        if samples > 1:
            one = f"{time} {basis}, at most {units.duration(limit.most)}"
            per_sample = f" for a batch of {samples:,}: {one}"
        slowest = slowest_modules(facts.calls)
        step = StepExcess(facts.step_time, most, facts.provenance.device, slowest, per_sample)
        excess = str(step)
    if basis:
        time = f"{time} {basis}"
    return StepOutcome(taken=f"Step {time} on {facts.provenance.device}", excess=excess)


def _measure(budget: Budget, device: torch.device, built: Built) -> RunFacts:
    module = built.converted(budget.dtype).module
    mode = budget.mode or ("train" if budget.training else "eval")
    inputs = inputs_of(str(budget.target), built, budget.inputs, budget.dtype)
    request = PassRequest(
        module=module,
        mode=mode,
        backward=budget.training,
        optimizer=budget.optimizer,
        batch_size=budget.batch_size,
        **inputs,
    )
    steps = RealSteps(request, device, budget.precision)
    with inspect(steps.module, warm_up=1, expected=False) as run:
        for _ in range(1 + _STEPS):
            steps.take()
    return run.facts
