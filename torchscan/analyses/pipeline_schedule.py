"""Stages of a model in several processes: which of them does what when, for how long it waits, and what it holds meanwhile.

Of ``p`` processes, ``m`` microbatches and ``v`` stages in each process that all take the same, bubbles are a share of a step::

    GPipe, 1F1B:            (p − 1) / (m + p − 1)
    Interleaved1F1B:        (p − 1) / (v · m + p − 1)

InterleavedZeroBubble computes the gradients of parameters apart from those of inputs, which the
stage before waits for. A rank computes as many of them later as there are ranks before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol

from torchscan.analyses.plan_result import RankPlan
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result
from torchscan.units import duration, memory, share

Schedule = Literal["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble"]
#: "weight": the part of the backward pass that computes gradients of parameters, if it runs apart
Direction = Literal["forward", "backward", "weight"]


class Task(NamedTuple):
    """A pass of one microbatch through one stage."""

    stage: int
    direction: Direction
    microbatch: int


class Action(NamedTuple):
    """When a process does it, in seconds from the start of the step."""

    rank: int
    task: Task
    start: float
    end: float


def order_of(
    schedule: Schedule, processes: int, microbatches: int, stages: int
) -> list[list[Task]]:
    """Return the tasks of each rank in order. Stage ``s`` is on rank ``s % processes``."""
    return [
        _ORDERS[schedule](process, processes, microbatches, stages // processes)
        for process in range(processes)
    ]


def _gpipe(process: int, _: int, microbatches: int, __: int) -> list[Task]:
    """All forward passes, then all backward passes."""
    passes: tuple[Direction, ...] = ("forward", "backward")
    return [Task(process, direction, each) for direction in passes for each in range(microbatches)]


def _one_by_one(process: int, processes: int, microbatches: int, _: int) -> list[Task]:
    """Return the tasks of the 1F1B schedule.

    As many forward passes run first as there are stages from here on; then one backward pass and
    one forward pass alternate.
    """
    early = min(microbatches, processes - process)
    return _in_turn(
        [Task(process, "forward", each) for each in range(microbatches)],
        [Task(process, "backward", each) for each in range(microbatches)],
        early - 1,
    )


def _interleaved(process: int, processes: int, microbatches: int, chunks: int) -> list[Task]:
    """Return the tasks of the interleaved 1F1B schedule, with several stages per rank.

    All microbatches of a round pass through one stage, then through the next.
    """
    size = microbatches // max(1, microbatches // processes)
    number = microbatches * chunks
    early = min(number, (chunks - 1) * size + 2 * (processes - 1 - process))
    forward = [
        _chunk(place, size, chunks, processes, process, "forward") for place in range(number)
    ]
    backward = [
        _chunk(place, size, chunks, processes, process, "backward") for place in range(number)
    ]
    return _in_turn(forward, backward, early)


def _chunk(
    place: int, size: int, chunks: int, processes: int, process: int, direction: Direction
) -> Task:
    """The pass number ``place`` of a process: rounds of ``size`` microbatches, in each of which all chunks have their turn."""
    turn, within = divmod(place, size)
    chunk = turn % chunks if direction == "forward" else chunks - 1 - turn % chunks
    return Task(chunk * processes + process, direction, turn // chunks * size + within)


def _in_turn(forward: Sequence[Task], backward: Sequence[Task], early: int) -> list[Task]:
    """So many of the first, then one of each in turn, then what is left of the second."""
    pairs = [each for pair in zip(forward[early:], backward, strict=False) for each in pair]
    return [*forward[:early], *pairs, *backward[len(forward) - early :]]


def _zero_bubble(process: int, processes: int, microbatches: int, chunks: int) -> list[Task]:
    """Return the tasks of the interleaved schedule with gradients of parameters apart.

    They come as many backward passes later as there are ranks before, and the rest at the end.
    """
    order: list[Task] = []
    later: deque[Task] = deque()
    for task in _interleaved(process, processes, microbatches, chunks):
        order.append(task)
        if task.direction == "backward":
            later.append(task._replace(direction="weight"))
            if len(later) > process:
                order.append(later.popleft())
    return [*order, *later]


_ORDERS = {
    "GPipe": _gpipe,
    "1F1B": _one_by_one,
    "Interleaved1F1B": _interleaved,
    "InterleavedZeroBubble": _zero_bubble,
}


class StageTimes(NamedTuple):
    """Seconds that a microbatch takes in a stage, and on the way to the next one."""

    forward: float
    backward: float
    transfer_time: float
    #: seconds of the backward pass for gradients of parameters, if they are computed apart
    weight: float = 0.0

    def seconds(self, direction: Direction) -> float:
        """Return the seconds of a task."""
        if direction == "forward":
            return self.forward
        return self.weight if direction == "weight" else self.backward - self.weight


def actions_of(orders: Sequence[Sequence[Task]], times: Sequence[StageTimes]) -> list[Action]:
    """Each as soon as its process is free and what it needs has come: forward from the stage before, backward from the next."""
    left = [deque(order) for order in orders]
    free = [0.0] * len(orders)
    done: dict[Task, float] = {}
    found: list[Action] = []
    while any(left):
        ready = [
            (process, since)
            for process, order in enumerate(left)
            if order and (since := _ready(order[0], times, done)) is not None
        ]
        if not ready:
            raise ValueError("deadlock: these ranks wait for each other")
        for process, since in ready:
            task = left[process].popleft()
            start = max(free[process], since)
            free[process] = done[task] = start + times[task.stage].seconds(task.direction)
            found.append(Action(process, task, start, done[task]))
    return found


def _ready(task: Task, times: Sequence[StageTimes], done: Mapping[Task, float]) -> float | None:
    """Return when the input of a task arrives, or None if that is not known yet."""
    stage, direction, microbatch = task
    if direction == "weight":
        return done.get(Task(stage, "backward", microbatch))
    if direction == "forward":
        return (
            0.0
            if stage == 0
            else _come(done.get(Task(stage - 1, direction, microbatch)), times[stage - 1])
        )
    if stage == len(times) - 1:
        return done.get(Task(stage, "forward", microbatch))
    return _come(done.get(Task(stage + 1, direction, microbatch)), times[stage])


def _come(done: float | None, way: StageTimes) -> float | None:
    return None if done is None else done + way.transfer_time


def ideal_bubble(processes: int, microbatches: int, chunks: int = 1) -> float:
    """The share of a step that each process is idle, where all stages take the same and nothing takes time on its way."""
    return (processes - 1) / (chunks * microbatches + processes - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage. Bytes are those of one rank."""

    #: position of the stage in the model
    index: int
    #: pipeline rank that has the stage
    rank: int
    #: plan of one microbatch
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
        return 1 - sum(each.busy for each in self.ranks) / (len(self.ranks) * self.passes)

    @property
    def ideal_bubble(self) -> float:
        """The bubble if all stages took equally long and communication took no time."""
        return ideal_bubble(len(self.ranks), self.microbatches, len(self.stages) // len(self.ranks))

    @property
    def largest_rank(self) -> PipelineRank:
        """The process that needs the most memory."""
        return max(self.ranks, key=lambda each: each.needed_bytes)

    @property
    def params(self) -> int:
        """That all stages hold."""
        return sum(each.plan.local_params for each in self.stages)

    def __repr__(self) -> str:
        """A short one: there may be thousands of passes."""
        what = f"{len(self.stages)} stages, {self.microbatches} microbatches, {self.schedule}"
        how = f"{duration(self.time_estimate)} a step, {share(self.bubble)} bubbles, {memory(self.largest_rank.needed_bytes)}"
        return f"<PipelinePlan of {what}: {how}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        names = (
            "schedule",
            "microbatches",
            "batch_size",
            "device",
            "passes",
            "time_estimate",
            "bubble",
            "ideal_bubble",
            "params",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "mesh": None if self.mesh is None else dict(self.mesh),
            "assumptions": to_plain(self.assumptions),
            "warnings": to_plain(self.warnings),
            "stages": [
                {
                    name: each.plan.to_dict() if name == "plan" else getattr(each, name)
                    for name in StagePlan.__slots__
                }
                for each in self.stages
            ],
            "ranks": [asdict(each) for each in self.ranks],
            "actions": [
                {
                    "rank": each.rank,
                    **each.task._asdict(),
                    "start": each.start,
                    "end": each.end,
                }
                for each in self.actions
            ],
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
    own = [[stage for stage in stages if stage.rank == process] for process in range(number)]
    ends = [max(each.end for each in actions if each.rank == process) for process in range(number)]
    return PipelinePlan(
        schedule=schedule,
        microbatches=microbatches,
        stages=tuple(stages),
        ranks=tuple(
            _process(each, held, actions, passes, memory_bytes) for each, held in enumerate(own)
        ),
        actions=tuple(actions),
        passes=passes,
        time_estimate=max(
            end + sum(each.optimizer for each in held) for end, held in zip(ends, own, strict=True)
        ),
        **told,
    )


def _process(
    number: int,
    stages: Sequence[StagePlan],
    actions: Sequence[Action],
    passes: float,
    memory_bytes: int,
) -> PipelineRank:
    own = sorted((each for each in actions if each.rank == number), key=lambda each: each.start)
    busy = sum(each.end - each.start for each in own)
    peak, in_flight = most_at_once(
        {each.index: each for each in stages}, [each.task for each in own]
    )
    needed = peak + max(each.overhead_bytes for each in stages)
    return PipelineRank(
        rank=number,
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
    last = "weight" if any(task.direction == "weight" for task in tasks) else "backward"
    kept, flying = 0, 0
    peak, most = held + max(each.optimizer_bytes for each in stages.values()), 0
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
