"""The verdict on a run: the one fact that limits it most, and the evidence for it.

Facts that make a run wrong come before those that make it slow. What holds only in some parts of a
run is not a verdict: a statement that is as likely to hold in a part as not holds in all five in
one of 32 runs.
"""

from __future__ import annotations

import os
import statistics
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchscan.inspecting.facts import StepFacts
from torchscan.notes import Note

_T = TypeVar("_T")
#: ``RunFacts`` and ``GroupRun``, whose property ``verdict`` calls this module
RunFacts = Any
GroupRun = Any
#: start and end of a call of another module, in nanoseconds since 1970
Interval = tuple[int, int]
_NANOSECONDS = 1e-9
#: parts of a run, and so the steps that are needed at least
_NUM_PARTS = 5
#: share of the time between steps: without it, a run would take a fifth less
_MIN_BETWEEN = 0.2
#: the same on CUDA, where the optimizer's kernels, which have no events, run in that time
_MIN_BETWEEN_ON_DEVICE = 1 / 3
#: share of a step in which the device waits for the host, without which it would be a quarter
#: shorter
_MIN_WAITING = 0.25
#: seconds: on CPUs that we measured, dispatch and autograd took 5 to 10 µs per node
_MAX_NODE_TIME = 15e-6
#: share of forward and backward that these nodes take, so that they say something about the step
_MIN_IN_NODES = 0.25
#: steps in which memory that grows doubles: slower growth is not what limits a run
_MAX_STEPS_TO_DOUBLE = 10_000
#: compilations of a function that are usual: with the first shapes, with dynamic ones, and without
#: gradients
_USUAL_COMPILATIONS = 3
#: share of a module that stands out: everything else together takes less
_MIN_SLOW = 0.5
#: modules that a slowest one is compared with, at least
_MIN_MODULES = 3
#: readings of memory that are kept: of longer runs every second, every fourth, …
_MAX_READINGS = 512
_STATM = "/proc/self/statm"
#: memory that grows in a part by less than this share of the average is only warming up
_MIN_STEADY = 0.5
#: readings from which memory is judged: a part has four, as allocators of a CPU grow in jumps
_MIN_READINGS = 20


# -- the verdict ---------------------------------------------------------------------------------


def find_verdict(run: RunFacts) -> Note | None:
    """Return the verdict on a run, or None if no step was measured."""
    if run.out_of_memory is not None:
        failure: Note = run.out_of_memory
        return failure
    for note in _find_broken_values(run):
        return note
    if not run.steps:
        return None
    if run.num_timed < _NUM_PARTS:
        return Note.of("verdict-too-few-steps", steps=run.num_timed, needed=_NUM_PARTS)
    for note in _slow(run):
        return note
    path, type_name, share = _slowest_module(run)
    between = min_between = None
    if run.evidence is not None and run.evidence.between is not None:
        between, min_between = run.evidence.between.value, run.evidence.between.min
    return Note.of(
        "verdict-balanced",
        path=path,
        type_name=type_name,
        share=share,
        trains=run.has_backward,
        between=between,
        min_between=min_between,
        model=_name_model(run),
    )


def find_group_verdict(group: GroupRun) -> Note | None:
    """Return the verdict on several ranks: that on the first one, if there is no straggler."""
    for run in group.runs:
        for note in _find_broken_values(run):
            return note
    for straggler in group.stragglers:
        return Note.of("verdict-straggler", rank=straggler.rank, share=straggler.share)
    return find_verdict(group.runs[0])


def _find_broken_values(run: RunFacts) -> Iterator[Note]:
    """Yield values that are not finite and growing memory."""
    for found in run.nonfinite:
        yield Note.of(
            "verdict-nonfinite",
            kind=found.kind,
            step=found.step,
            is_evaluation=found.is_evaluation,
            phase=found.phase,
            path=found.path,
            type_name=found.type_name,
            operator=found.operator,
            num_steps=max(run.nonfinite_steps, 1),
        )
    memory = None if run.evidence is None else run.evidence.memory
    if memory is not None and memory.growth * _MAX_STEPS_TO_DOUBLE >= memory.size:
        yield Note.of(
            "verdict-memory-growth", growth=memory.growth, size=memory.size, steps=memory.steps
        )


def _slow(run: RunFacts) -> Iterator[Note]:
    """Yield what takes time that it need not, the most certain first."""
    if run.compilation is not None:
        frame = max(run.compilation.frames, key=lambda each: each.times, default=None)
        if frame is not None and frame.times > _USUAL_COMPILATIONS:
            reason = frame.reasons[-1] if frame.reasons else None
            yield Note.of(
                "verdict-recompilation", place=frame.place, times=frame.times, reason=reason
            )
    yield from _waits(run)
    path, type_name, share = _slowest_module(run)
    num_modules = len({path for path, _ in _times_by_module(run)})
    if share >= _MIN_SLOW and num_modules >= _MIN_MODULES:
        yield Note.of(
            "verdict-slow-module",
            path=path,
            type_name=type_name,
            share=share,
            trains=run.has_backward,
            model=_name_model(run),
        )


def _waits(run: RunFacts) -> Iterator[Note]:
    """Yield what the computation waits for."""
    evidence = run.evidence
    if evidence is None:
        return
    between, waiting = evidence.between, evidence.waiting
    limit = _MIN_BETWEEN if run.device is None else _MIN_BETWEEN_ON_DEVICE
    # other modules that train have backward passes and optimizers, which are not timed
    if between is not None and between.min >= limit and not run.trained_modules:
        yield Note.of(
            "verdict-input-bound", share=between.value, min=between.min, steps=evidence.steps
        )
    if waiting is not None and waiting.min >= _MIN_WAITING:
        yield Note.of(
            "verdict-host-bound", share=waiting.value, min=waiting.min, steps=run.num_timed
        )
    is_small = evidence.node_time <= _MAX_NODE_TIME
    in_nodes = evidence.num_nodes * evidence.node_time
    if run.device is None and is_small and in_nodes > _MIN_IN_NODES * run.step_time:
        yield Note.of(
            "verdict-small-operators", num_nodes=evidence.num_nodes, time=evidence.node_time
        )


def _name_model(run: RunFacts) -> str | None:
    """Return the name of the timed module if several train, or None."""
    for each in run.trained_modules:
        if each.is_timed:
            name: str = each.name
            return name
    return None


def _slowest_module(run: RunFacts) -> tuple[str, str, float]:
    """Return path, type and share of the module without others that takes the most time."""
    times = _times_by_module(run)
    (path, type_name), time = max(times.items(), key=lambda each: each[1], default=(("", ""), 0.0))
    return path, type_name, min(1.0, time / run.step_time) if run.step_time else 0.0


def _times_by_module(run: RunFacts) -> dict[tuple[str, str], float]:
    """Return the seconds of the modules without others, by path and type."""
    outer = {call.parent for call in run.calls}
    times: dict[tuple[str, str], float] = {}
    for index, call in enumerate(run.calls):
        if index not in outer:
            key = call.path, call.type_name
            times[key] = times.get(key, 0.0) + call.time
    return times


# -- evidence ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """A share of the time of several steps."""

    #: share in all steps together
    value: float
    #: minimum over five consecutive parts of the run
    min: float

    @classmethod
    def of(cls, steps: Sequence[tuple[int, int]]) -> TimeShare | None:
        """Return the share of ``(time, complete time)`` of each step, or None for under five."""
        if len(steps) < _NUM_PARTS:
            return None
        shares = map(_share_of, _split_into_parts(steps))
        return cls(value=_share_of(steps), min=min(shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements that the verdict on a run is derived from."""

    #: number of steps that another one follows, so that the time between them is known
    steps: int
    #: share of the time from step to step outside of steps and of other modules with parameters; on
    #: CUDA, at most the share in which the device was also outside of the step
    between: TimeShare | None
    #: share of the time in a step in which the CUDA device waited for the host, or None without one
    waiting: TimeShare | None
    #: number of autograd nodes in the backward pass of a step
    num_nodes: int
    #: seconds that a node takes on the host on average
    node_time: float
    #: memory of the training steps, or None with fewer than 20 of them
    memory: MemoryTrend | None = None


def evidence_of(
    steps: Sequence[StepFacts],
    others: Sequence[Interval] = (),
) -> Evidence:
    """Return the evidence in steps of one kind.

    Args:
        steps: the steps, in order.
        others: calls of other modules with parameters, which may run between the steps.
    """
    between = [(_idle_between(step, others), step.period) for step in steps if step.period]
    waiting = [(step.device.waiting, step.device.whole) for step in steps if step.device]
    num_nodes = sum(step.num_nodes for step in steps)
    in_nodes = sum(step.in_nodes for step in steps)
    return Evidence(
        steps=len(between),
        between=TimeShare.of(between),
        waiting=TimeShare.of(waiting),
        num_nodes=round(num_nodes / max(len(steps), 1)),
        node_time=in_nodes / max(num_nodes, 1) * _NANOSECONDS,
    )


def _share_of(steps: Sequence[tuple[int, int]]) -> float:
    part = sum(time for time, _ in steps)
    whole = sum(time for _, time in steps)
    return part / whole if whole else 0.0


def _split_into_parts(values: Sequence[_T]) -> list[Sequence[_T]]:
    """Return five consecutive parts of about equal length."""
    parts = []
    for number in range(_NUM_PARTS):
        start = len(values) * number // _NUM_PARTS
        end = len(values) * (number + 1) // _NUM_PARTS
        parts.append(values[start:end])
    return parts


def _idle_between(step: StepFacts, others: Sequence[Interval]) -> int:
    """Return the nanoseconds after a step in which neither the device nor another module works."""
    between, period = step.between or 0, step.period or 0
    if step.device is not None:  # the host may only wait for it, as in loss.item()
        between = min(between, max(0, period - step.device.whole))
    begin, end = step.over - between, step.over
    for first, last in others:
        between -= max(0, min(last, end) - max(first, begin))
    return max(0, between)


# -- memory --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrend:
    """Memory after optimizer steps: of CUDA's allocator, or the resident memory of the process."""

    #: number of optimizer steps after which memory was read or could have been
    steps: int
    #: bytes in the last fifth of the steps, in the median
    size: int
    #: bytes by which memory grows per step if it grows in each part of the run, else 0
    growth: float

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]]) -> MemoryTrend | None:
        """Return the trend of ``(step, bytes)``, or None if there are too few."""
        if len(sizes) < _MIN_READINGS:
            return None
        parts = _split_into_parts(sizes)
        medians = [_median_of(part, 1) for part in parts]
        num_steps = _median_of(parts[-1], 0) - _median_of(parts[0], 0)
        growth = (medians[-1] - medians[0]) / num_steps
        by_part = [after - before for before, after in pairwise(medians)]
        is_steady = min(by_part) > 0 and min(by_part) >= _MIN_STEADY * statistics.mean(by_part)
        return cls(
            steps=sizes[-1][0] + 1, size=round(medians[-1]), growth=growth if is_steady else 0.0
        )


def _median_of(readings: Sequence[tuple[int, int]], column: int) -> float:
    return statistics.median(reading[column] for reading in readings)


class MemoryLog:
    """Memory after the steps of the first optimizer that takes one."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._num_steps = 0
        #: steps from one reading to the next
        self._every = 1
        #: number of the step, and bytes
        self.sizes: list[tuple[int, int]] = []

    def note(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has taken a step."""
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        step, self._num_steps = self._num_steps, self._num_steps + 1
        if step % self._every:
            return
        size = _memory_in_use(optimizer.param_groups[0]["params"])
        if size is None:
            return
        self.sizes.append((step, size))
        if len(self.sizes) > _MAX_READINGS:
            del self.sizes[1::2]
            self._every *= 2


def _memory_in_use(parameters: list[Tensor]) -> int | None:
    """Return the bytes of the allocator of the parameters' device or, on a CPU, of the process."""
    device = parameters[0].device if parameters else torch.device("cpu")
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        with open(_STATM, "rb", buffering=0) as file:
            resident = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):  # only Linux has this file
        return None
    return resident * os.sysconf("SC_PAGE_SIZE")
