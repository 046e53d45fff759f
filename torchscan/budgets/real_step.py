"""Measured time of a real step, checked against a budget's limit on the limit's device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from torchscan import units
from torchscan.budgets.budget_file import Budget
from torchscan.budgets.outcome import basis_of
from torchscan.errors import BudgetError
from torchscan.hardware.device_specs import is_part
from torchscan.inspection import inspect
from torchscan.recording.request import PassRequest
from torchscan.runtime.provenance import name_of_device
from torchscan.runtime.run import RunFacts
from torchscan.runtime.step_execution import RealSteps, local_device
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
    remark: str = ""


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
        per = f" {basis}" if samples > 1 else ""
        where = f"at most {units.duration(limit.most)}{per} on {limit.measured_on}"
        return StepOutcome(
            remark=f"the time of a step, {where}, is not checked without --timings (in pytest, --torchscan-timings)"
        )
    device = _device_for(limit.measured_on)
    here = name_of_device(device)
    if not is_part(limit.measured_on, here):
        return StepOutcome(
            remark=f"the time of a step is not checked: its limit is for {limit.measured_on}, and this is {here}"
        )
    facts = with_model(
        target, partial(_measured, budget, device), folder=budget.folder, with_data=True
    )
    time = units.duration(facts.step_time / samples)
    excess = _excess(facts, limit.most * samples, limit.tolerance)
    if excess and samples > 1:
        first, *layers = excess.split("\n")
        said = f"{first} for a batch of {samples:,}: {time} {basis}, at most "
        excess = "\n".join([f"{said}{units.duration(limit.most)}", *layers])
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


def _excess(facts: RunFacts, most: float, tolerance: float) -> str:
    try:
        facts.assert_step_time(
            f"{most:.12f} s", tolerance=tolerance
        )  # a bare number of many seconds is refused
    except BudgetError as error:
        return str(error)
    return ""
