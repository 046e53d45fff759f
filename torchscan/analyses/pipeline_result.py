"""The plan of a pipeline: its stages, its ranks, and what each needs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torchscan.analyses.pipeline_schedule import (
    Action,
    Schedule,
    StageTimes,
    Task,
    actions_of,
    ideal_bubble,
    order_of,
)
from torchscan.analyses.plan_result import RankPlan
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.units import duration, memory, share

#: attributes of a plan that are plain data
_PLAIN = (
    *("schedule", "microbatches", "batch_size", "device", "passes", "time_estimate"),
    *("bubble", "ideal_bubble", "params"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage. Bytes are those of one rank."""

    #: position of the stage in the model
    index: int
    #: pipeline rank that has the stage
    rank: int
    #: plan of one microbatch on the first device of the stage, which is rank 0 of its own mesh
    plan: RankPlan
    #: seconds of a microbatch's forward pass
    forward: float
    #: seconds of a microbatch's backward pass
    backward: float
    #: seconds of the optimizer's step
    optimizer: float
    #: bytes that a microbatch sends to the next stage
    sent_bytes: int
    #: seconds that sending takes
    transfer_time: float
    #: bytes of parameters, gradients and optimizer state
    resident_bytes: int
    #: bytes that one microbatch saves from its forward pass for its backward pass
    saved_bytes: int
    #: peak of a forward pass beyond the resident bytes, with what its microbatch saves
    forward_bytes: int
    #: peak of a backward pass beyond the resident bytes, with what its microbatch has saved
    backward_bytes: int
    #: peak of the optimizer's step beyond the resident bytes
    optimizer_bytes: int
    #: bytes of the context, and of the allocator's reserve beyond tensors
    overhead_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRank:
    """One rank along the pipeline."""

    #: position of the rank along the pipeline
    rank: int
    #: indices of its stages
    stages: tuple[int, ...]
    #: seconds in which the rank computes
    busy: float
    #: share of the step in which the rank does not compute
    bubble: float
    #: largest number of microbatches in flight at once, counted for each stage
    in_flight: int
    #: largest number of bytes of tensors at once
    peak_bytes: int
    #: bytes of the peak, the context and the allocator's reserve
    needed_bytes: int
    #: True if ``needed_bytes`` fit on the device
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan(Result):
    """A training step of a model in stages."""

    schedule: Schedule
    microbatches: int
    #: samples of a microbatch, or None if inputs were given
    batch_size: int | None
    device: str
    #: mesh over which each stage is sharded, or None
    mesh: Mapping[str, int] | None
    stages: tuple[StagePlan, ...]
    ranks: tuple[PipelineRank, ...]
    #: forward and backward passes, in no particular order
    actions: tuple[Action, ...]
    #: seconds of all forward and backward passes
    passes: float
    #: seconds of the complete step, with the optimizer
    time_estimate: float
    assumptions: tuple[Note, ...]
    warnings: tuple[Note, ...]

    @property
    def bubble(self) -> float:
        """The share of the passes' time in which processes wait, in the mean."""
        busy = sum(each.busy for each in self.ranks)
        return 1 - busy / (len(self.ranks) * self.passes)

    @property
    def ideal_bubble(self) -> float:
        """The bubble if all stages took equally long and communication took no time."""
        num_ranks = len(self.ranks)
        return ideal_bubble(num_ranks, self.microbatches, len(self.stages) // num_ranks)

    @property
    def largest_rank(self) -> PipelineRank:
        """The process that needs the most memory."""
        return max(self.ranks, key=lambda each: each.needed_bytes)

    @property
    def params(self) -> int:
        """Parameters that all stages hold."""
        return sum(each.plan.local_params for each in self.stages)

    def __repr__(self) -> str:
        """Return a short text: there may be thousands of passes."""
        what = f"{len(self.stages)} stages, {self.microbatches} microbatches, {self.schedule}"
        time, needed = duration(self.time_estimate), memory(self.largest_rank.needed_bytes)
        return f"<PipelinePlan of {what}: {time} a step, {share(self.bubble)} bubbles, {needed}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        stages = []
        for stage in self.stages:
            fields = {name: getattr(stage, name) for name in StagePlan.__slots__}
            stages.append({**fields, "plan": stage.plan.to_dict()})
        actions = []
        for action in self.actions:
            ends = {"start": action.start, "end": action.end}
            actions.append({"rank": action.rank, **action.task._asdict(), **ends})
        ranks = [asdict(each) for each in self.ranks]
        return {
            **plain,
            "mesh": None if self.mesh is None else dict(self.mesh),
            "assumptions": to_plain(self.assumptions),
            "warnings": to_plain(self.warnings),
            "stages": stages,
            "ranks": ranks,
            "actions": actions,
        }


def plan_of_stages(
    schedule: Schedule,
    microbatches: int,
    stages: Sequence[StagePlan],
    number: int,
    memory_bytes: int,
    **told: Any,
) -> PipelinePlan:
    """Return the plan that follows from the stages: order, times and memory.

    ``told`` are the fields that do not follow from them.
    """
    times = [StageTimes(each.forward, each.backward, each.transfer_time) for each in stages]
    actions = actions_of(order_of(schedule, number, microbatches, len(stages)), times)
    passes = max(each.end for each in actions)
    ranks: list[PipelineRank] = []
    ends: list[float] = []
    for rank in range(number):
        own_stages = [stage for stage in stages if stage.rank == rank]
        own_actions = [each for each in actions if each.rank == rank]
        ranks.append(_describe_rank(rank, own_stages, own_actions, passes, memory_bytes))
        last_pass = max(each.end for each in own_actions)
        ends.append(last_pass + sum(each.optimizer for each in own_stages))
    return PipelinePlan(
        schedule=schedule,
        microbatches=microbatches,
        stages=tuple(stages),
        ranks=tuple(ranks),
        actions=tuple(actions),
        passes=passes,
        time_estimate=max(ends),
        **told,
    )


def _describe_rank(
    rank: int,
    stages: Sequence[StagePlan],
    actions: Sequence[Action],
    passes: float,
    memory_bytes: int,
) -> PipelineRank:
    """Return what a rank needs and how long it computes, given its stages and actions."""
    in_order = sorted(actions, key=lambda each: each.start)
    busy = sum(each.end - each.start for each in in_order)
    stage_by_index = {each.index: each for each in stages}
    peak, in_flight = most_at_once(stage_by_index, [each.task for each in in_order])
    needed = peak + max(each.overhead_bytes for each in stages)
    return PipelineRank(
        rank=rank,
        stages=tuple(each.index for each in stages),
        busy=busy,
        bubble=1 - busy / passes,
        in_flight=in_flight,
        peak_bytes=peak,
        needed_bytes=needed,
        fits=needed <= memory_bytes,
    )


class StageMemory(Protocol):
    """Bytes of a stage, as :class:`StagePlan` has them."""

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay during all passes."""

    @property
    def saved_bytes(self) -> int:
        """Bytes that a microbatch saves from its forward pass for its backward pass."""

    @property
    def forward_bytes(self) -> int:
        """Peak of a forward pass."""

    @property
    def backward_bytes(self) -> int:
        """Peak of a backward pass."""

    @property
    def optimizer_bytes(self) -> int:
        """Peak of the optimizer's step."""


def most_at_once(stages: Mapping[int, StageMemory], tasks: Sequence[Task]) -> tuple[int, int]:
    """Return the peak bytes of a rank, and its largest number of microbatches in flight.

    A pass needs its own memory beside what the others in flight keep. They keep it until the
    gradients of parameters are computed.
    """
    held = sum(each.resident_bytes for each in stages.values())
    directions = {task.direction for task in tasks}
    last = "weight" if "weight" in directions else "backward"
    kept, flying, most = 0, 0, 0
    peak = held + max(each.optimizer_bytes for each in stages.values())
    for task in tasks:
        stage = stages[task.stage]
        if task.direction == "forward":
            peak = max(peak, held + kept + stage.forward_bytes)
            kept, flying = kept + stage.saved_bytes, flying + 1
        if task.direction == "backward":
            peak = max(peak, held + kept - stage.saved_bytes + stage.backward_bytes)
        if task.direction == last:
            kept, flying = kept - stage.saved_bytes, flying - 1
        most = max(most, flying)
    return peak, most
