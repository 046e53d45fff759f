"""Seconds of a pipeline's passes for many stage times: the order of tasks is worked out once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torchscan.analyses.pipeline_schedule import (
    Direction,
    Schedule,
    StageTimes,
    Task,
    order_of,
)


class _Step(NamedTuple):
    """A task, after all on which it depends."""

    rank: int
    stage: int
    direction: Direction
    #: place of the task whose result it needs, or None
    needs: int | None
    #: stage from which that result is sent, or None if it is in the same stage
    sender: int | None


@lru_cache(maxsize=512)
def rank_orders(
    schedule: Schedule, processes: int, microbatches: int, stages: int
) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each rank in order."""
    return tuple(map(tuple, order_of(schedule, processes, microbatches, stages)))


@lru_cache(maxsize=512)
def _steps(schedule: Schedule, processes: int, microbatches: int, stages: int) -> tuple[_Step, ...]:
    """Return all tasks in an order in which each comes after those that it needs."""
    orders = rank_orders(schedule, processes, microbatches, stages)
    places: dict[Task, int] = {}
    steps: list[_Step] = []
    left = list(map(deque, orders))
    while any(left):
        before = len(steps)
        for rank, tasks in enumerate(left):
            while tasks:
                task = tasks[0]
                needed, sender = _needed(task, stages)
                if needed is not None and needed not in places:
                    break
                places[task] = len(steps)
                needs = None if needed is None else places[needed]
                steps.append(_Step(rank, task.stage, task.direction, needs, sender))
                tasks.popleft()
        if len(steps) == before:
            raise ValueError("deadlock: ranks wait for each other")
    return tuple(steps)


def _needed(task: Task, stages: int) -> tuple[Task | None, int | None]:
    """Return the task whose result another one needs, and the stage that sends it."""
    stage, direction, microbatch = task
    if direction == "weight":
        return Task(stage, "backward", microbatch), None
    if direction == "forward":
        sender = stage - 1
        return (None, None) if stage == 0 else (Task(sender, "forward", microbatch), sender)
    if stage == stages - 1:
        return Task(stage, "forward", microbatch), None
    return Task(stage + 1, "backward", microbatch), stage


def passes_time(
    schedule: Schedule, processes: int, microbatches: int, times: Sequence[StageTimes]
) -> float:
    """Return the seconds until the last rank has done all passes."""
    free = [0.0] * processes
    done: list[float] = []
    seconds = {
        (stage, direction): time.seconds(direction)
        for stage, time in enumerate(times)
        for direction in _DIRECTIONS
    }
    for rank, stage, direction, needs, sender in _steps(
        schedule, processes, microbatches, len(times)
    ):
        start = free[rank]
        if needs is not None:
            arrival = done[needs]
            if sender is not None:
                arrival += times[sender].transfer_time
            start = max(start, arrival)
        free[rank] = start + seconds[stage, direction]
        done.append(free[rank])
    return max(free)


_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "weight")


def split_evenly(times: Sequence[float], first: float, last: float, stages: int) -> list[int]:
    """Return the number of layers before each further stage, so that the longest one is shortest.

    What is left over goes to the first stage, which has the most microbatches in flight.

    Args:
        times: the seconds of each layer.
        first: the seconds of what comes before the layers, in the first stage.
        last: the seconds of what comes after them, in the last one.
        stages: the number of stages, at most as many as layers.
    """
    backwards = list(reversed(times))
    low, high = 0.0, first + sum(times) + last
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _fill(backwards, last, first, stages, middle) is None:
            low = middle
        else:
            high = middle
    boundaries = _fill(backwards, last, first, stages, high * _ROUNDING) or []
    return [len(times) - boundary for boundary in reversed(boundaries)]


#: steps of the search for the shortest stage, and room for rounding
_HALVINGS = 24
_ROUNDING = 1 + 1e-9


def _fill(
    times: Sequence[float], first: float, last: float, stages: int, limit: float
) -> list[int] | None:
    """Return the boundaries of stages that take no longer than a limit, or None."""
    boundaries: list[int] = []
    index = 0
    for stage in range(stages):
        room = limit - (first if stage == 0 else 0.0)
        room -= last if stage == stages - 1 else 0.0
        most = len(times) - (stages - stage - 1)
        begin, filled = index, 0.0
        while index < most and (index == begin or filled + times[index] <= room):
            filled += times[index]
            index += 1
        if filled > room:
            return None
        boundaries.append(index)
    return boundaries[:-1] if index == len(times) else None
