"""The stages of a pipeline, recorded one by one, with the times and bytes of their passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.analyses.memory_timeline import Moment
from torchscan.analyses.pipeline_result import StagePlan
from torchscan.analyses.plan_result import RankPlan
from torchscan.analyses.roofline import Fabric, Roofline
from torchscan.errors import InputError, naming
from torchscan.ranks.rank_recording import RankQuestion, held_in, planned, rank_plan
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.sharding import Apply
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecorder:
    """Records the stages one by one, each with the outputs of the previous one."""

    stages: Sequence[nn.Module]
    num_ranks: int
    mesh: Mapping[str, int] | None
    apply: Apply | None
    fabric: Fabric

    def record(self, asked: RankQuestion, loss: Callable[[Any], Tensor] | None) -> list[StagePlan]:
        """Return the plans of all stages; ``loss`` is computed from the output of the last one."""
        plans: list[StagePlan] = []
        last = len(self.stages) - 1
        for number in range(last):
            with naming(f"stage {number}"):
                plan = self._plan_of(number, asked)
            outputs = _outputs_of(plan.trace, number)
            sent = sum(each.numel() * each.element_size() for each in outputs)
            rank = number % self.num_ranks
            seconds = self._transfer_time(number, sent)
            plans.append(_stage(number, rank, plan, sent, seconds))
            asked = replace(
                asked,
                input_shape=None,
                dtype=None,
                kwargs=None,
                batch_size=1,
                args=self._inputs_after(number, outputs),
            )
        with naming(f"stage {last}"):
            plan = self._plan_of(last, replace(asked, loss=loss))
        plans.append(_stage(last, last % self.num_ranks, plan, 0, 0.0))
        return plans

    def _plan_of(self, number: int, asked: RankQuestion) -> RankPlan:
        """Return the plan of a stage's first device."""
        module = self.stages[number]
        if self.mesh is not None and self.apply is not None:
            return planned(module, self.mesh, self.apply, 0, asked, self.fabric)
        scan = asked.scan_of(module)
        place = {"pp": number % self.num_ranks}
        return rank_plan(scan, scan.steps, scan.memory, 0, place, {}, self.fabric)

    def _transfer_time(self, number: int, size: int) -> float:
        """Return the seconds to send tensors from a stage to the next, device by device."""
        num_devices = 1
        if self.mesh is not None:
            num_devices = prod(self.mesh.values())
        source = number % self.num_ranks * num_devices
        target = (number + 1) % self.num_ranks * num_devices
        if source == target:
            return 0.0
        return self.fabric.transfer_time(source, target, size)

    def _inputs_after(self, number: int, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the inputs of the next stage, which sends back their gradients."""
        device: torch.device | str = "cpu"
        of_next = next(iter(tensors_of(self.stages[number + 1])), None)
        if of_next is not None and self.mesh is None:
            device = of_next.device
        inputs: list[Tensor] = []
        for output in outputs:
            given = torch.empty_like(output, device=device)
            inputs.append(given.requires_grad_(output.is_floating_point()))
        return tuple(inputs)


def _outputs_of(trace: Trace, number: int) -> list[Tensor]:
    """Return the outputs of a stage, without data."""
    named = [name for name in trace.root.output_names if "'" in name]
    if named:
        keys = ", ".join(each.strip("[]") for each in named)
        raise InputError(
            f"stage {number} returns a dict of {keys}: return a tensor or a tuple of tensors, "
            "which the next stage takes"
        )
    specs = [trace.tensors[each].spec for each in trace.root.outputs]
    return [torch.empty(each.shape, dtype=each.dtype, device="meta") for each in specs]


def _stage(number: int, rank: int, plan: RankPlan, sent: int, transfer_time: float) -> StagePlan:
    roofline, verdict = plan.roofline, plan.memory.verdict
    assert roofline is not None and verdict is not None  # noqa: PT018, S101 - there is a device
    forward_time, backward_time, optimizer_time = _times_of(roofline)
    resident, saved, forward, backward, optimizer = _sizes_of(plan)
    reserve = max(0, verdict.reserved_bytes - plan.memory.peak_bytes)
    return StagePlan(
        index=number,
        rank=rank,
        plan=plan,
        forward=forward_time,
        backward=backward_time,
        optimizer=optimizer_time,
        sent_bytes=sent,
        transfer_time=transfer_time,
        resident_bytes=resident,
        saved_bytes=saved,
        forward_bytes=forward,
        backward_bytes=backward,
        optimizer_bytes=optimizer,
        overhead_bytes=reserve + verdict.cuda_context_bytes,
    )


def _times_of(roofline: Roofline) -> tuple[float, float, float]:
    """Return the seconds of the second microbatch, forward and backward, and of the optimizer.

    The gradients of the second one are added to those of the first.
    """
    times: dict[Phase, list[float]] = defaultdict(list)
    for phase, loads in groupby(roofline.operators, lambda each: each.phase):
        times[phase].append(sum(each.time_estimate for each in loads))
    forward = times["forward"][-1]
    backward = times["backward"][-1]
    return forward, backward, sum(times["optimizer"])


def _sizes_of(plan: RankPlan) -> tuple[int, int, int, int, int]:
    """Return the bytes of the second microbatch: resident, saved, and the peak of each pass.

    The peaks count what is needed beyond the resident bytes. Gradients that are sent back are not
    resident, as they are in the trace of one stage. Parameters that stay all-gathered after the
    forward pass are, because other stages run meanwhile.
    """
    runs: dict[Phase, list[list[Moment]]] = defaultdict(list)
    for phase, moments in groupby(plan.memory.timeline, lambda each: each.phase):
        runs[phase].append(list(moments))
    forward = runs["forward"][-1]
    backward = runs["backward"][-1]
    optimizer = [moment for run in runs["optimizer"] for moment in run]
    first = forward[0].by_kind
    last = forward[-1].by_kind

    # Other gradients in the trace do not belong to parameters.
    trained = [each for each in held_in(plan.trace) if each.requires_grad and each.is_used]
    own_gradients = sum(each.stored_bytes for each in trained)
    sent_back = max(0, first["gradients"] - own_gradients)
    resident = first["parameters"] + first["buffers"] + first["optimizer"]
    resident += first["gradients"] - sent_back + last["gathered"]
    peaks: list[int] = []
    for run in (forward, backward, optimizer):
        totals = [each.total - resident - sent_back for each in run]
        peaks.append(max(totals, default=0))
    of_forward, of_backward, of_optimizer = peaks
    saved = last["inputs"] + last["activations"]
    return resident, saved, of_forward, of_backward, of_optimizer
