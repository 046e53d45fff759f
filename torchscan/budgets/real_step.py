"""Measured time of a real step, checked against a budget's limit on the limit's device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from torchscan import units
from torchscan.budgets.budget_file import Budget
from torchscan.budgets.outcome import basis_of
from torchscan.hardware.device_names import is_part
from torchscan.inspecting.run import RunFacts, name_of_device, slowest_modules
from torchscan.inspecting.step_execution import RealSteps, local_device
from torchscan.inspecting.step_time import StepExcess
from torchscan.inspection import inspect
from torchscan.notes import Note
from torchscan.recording.request import PassRequest
from torchscan.targets import Built, Target, inputs_of, with_model

#: measured, after one that warms up
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
    device = _device_for(limit.measured_on)
    here = name_of_device(device)
    if not is_part(limit.measured_on, here):
        remark = Note.of("step-on-other-device", limit_device=limit.measured_on, device=here)
        return StepOutcome(remark=remark)
    facts = with_model(
        target, partial(_measured, budget, device), folder=budget.folder, with_data=True
    )
    time = units.duration(facts.step_time / samples)
    excess, most = "", limit.most * samples * (1 + limit.tolerance)
    if facts.step_time > most:
        per_sample = ""
        if samples > 1:
            one = f"{time} {basis}, at most {units.duration(limit.most)}"
            per_sample = f" for a batch of {samples:,}: {one}"
        slowest = slowest_modules(facts.calls)
        excess = str(
            StepExcess(facts.step_time, most, facts.provenance.device, slowest, per_sample)
        )
    return StepOutcome(
        taken=f"Step {time}{basis and f' {basis}'} on {facts.provenance.device}", excess=excess
    )


def _device_for(measured_on: str) -> torch.device:
    """The card of this machine, if there is one; for a limit on its processor, that."""
    cpu = torch.device("cpu")
    return cpu if is_part(measured_on, name_of_device(cpu)) else local_device(None)


def _measured(budget: Budget, device: torch.device, built: Built) -> RunFacts:
    request = PassRequest(
        module=built.converted(budget.dtype).module,
        mode=budget.mode or ("train" if budget.training else "eval"),
        backward=budget.training,
        optimizer=budget.optimizer,
        batch_size=budget.batch_size,
        **inputs_of(str(budget.target), built, budget.inputs, budget.dtype),
    )
    steps = RealSteps(request, device, budget.precision)
    with inspect(steps.module, warm_up=1, expected=False) as run:
        for _ in range(1 + _STEPS):
            steps.take()
    return run.facts
