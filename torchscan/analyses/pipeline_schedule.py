"""Stages of a model in several processes: the order of their passes, and how long each waits.

Of ``p`` processes, ``m`` microbatches and ``v`` stages in each process that all take the same,
bubbles are a share of a step::

    GPipe, 1F1B:            (p − 1) / (m + p − 1)
    Interleaved1F1B:        (p − 1) / (v · m + p − 1)

InterleavedZeroBubble computes the gradients of parameters apart from those of inputs, which the
stage before waits for. A rank computes as many of them later as there are ranks before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Schedule = Literal["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble"]
#: "weight": the part of the backward pass that computes gradients of parameters, if it runs apart
Direction = Literal["forward", "backward", "weight"]


class Task(NamedTuple):
    """A pass of one microbatch through one stage."""

    stage: int
    direction: Direction
    microbatch: int


class Action(NamedTuple):
    """A task of a rank, with its times in seconds from the start of the step."""

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
    """Return the tasks of the GPipe schedule: all forward passes, then all backward passes."""
    forward = [Task(process, "forward", each) for each in range(microbatches)]
    return [*forward, *(task._replace(direction="backward") for task in forward)]


def _one_by_one(process: int, processes: int, microbatches: int, _: int) -> list[Task]:
    """Return the tasks of the 1F1B schedule.

    As many forward passes run first as there are stages from here on; then one backward pass and
    one forward pass alternate.
    """
    early = min(microbatches, processes - process)
    forward = [Task(process, "forward", each) for each in range(microbatches)]
    backward = [Task(process, "backward", each) for each in range(microbatches)]
    return _alternate(forward, backward, early - 1)


def _interleaved(process: int, processes: int, microbatches: int, chunks: int) -> list[Task]:
    """Return the tasks of the interleaved 1F1B schedule, with several stages per rank.

    All microbatches of a round pass through one stage, then through the next.
    """
    size = microbatches // max(1, microbatches // processes)
    number = microbatches * chunks
    early = min(number, (chunks - 1) * size + 2 * (processes - 1 - process))
    forward: list[Task] = []
    backward: list[Task] = []
    for place in range(number):
        # In each round of ``size`` microbatches, all chunks have their turn.
        turn, place_in_turn = divmod(place, size)
        passes, chunk = divmod(turn, chunks)
        microbatch = passes * size + place_in_turn
        forward.append(Task(chunk * processes + process, "forward", microbatch))
        stage = (chunks - 1 - chunk) * processes + process
        backward.append(Task(stage, "backward", microbatch))
    return _alternate(forward, backward, early)


def _alternate(forward: Sequence[Task], backward: Sequence[Task], early: int) -> list[Task]:
    """Return ``early`` forward passes, then one of each in turn, then the other backward passes."""
    order = [*forward[:early]]
    for pair in zip(forward[early:], backward, strict=False):
        order += pair
    return [*order, *backward[len(forward) - early :]]


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
    """Return the tasks with their times.

    Each runs as soon as its process is free and its input has arrived: in a forward pass from the
    stage before, in a backward pass from the next one.
    """
    left = [deque(order) for order in orders]
    free = [0.0] * len(orders)
    done: dict[Task, float] = {}
    actions: list[Action] = []
    while any(left):
        ready: list[tuple[int, float]] = []
        for process, order in enumerate(left):
            since = _ready(order[0], times, done) if order else None
            if since is not None:
                ready.append((process, since))
        if not ready:
            raise ValueError("deadlock: these ranks wait for each other")
        for process, since in ready:
            task = left[process].popleft()
            start = max(free[process], since)
            end = start + times[task.stage].seconds(task.direction)
            free[process] = done[task] = end
            actions.append(Action(process, task, start, end))
    return actions


def _ready(task: Task, times: Sequence[StageTimes], done: Mapping[Task, float]) -> float | None:
    """Return when the input of a task arrives, or None if that is not known yet."""
    stage, direction, microbatch = task
    if direction == "weight":
        return done.get(Task(stage, "backward", microbatch))
    if direction == "forward":
        if stage == 0:
            return 0.0
        before, link = Task(stage - 1, direction, microbatch), times[stage - 1]
    elif stage == len(times) - 1:
        return done.get(Task(stage, "forward", microbatch))
    else:
        before, link = Task(stage + 1, direction, microbatch), times[stage]
    end = done.get(before)
    return None if end is None else end + link.transfer_time


def ideal_bubble(processes: int, microbatches: int, chunks: int = 1) -> float:
    """Return the share of a step in which each process is idle.

    This holds if all stages take equally long and communication takes no time.
    """
    return (processes - 1) / (chunks * microbatches + processes - 1)
