"""Evidence for verdicts about the time of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.inspecting.facts import StepFacts
from torchscan.inspecting.memory_trend import NUM_PARTS, MemoryTrend, split_into_parts

#: start and end of a call of another module, in nanoseconds since 1970
Interval = tuple[int, int]
_NANOSECONDS = 1e-9


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
        if len(steps) < NUM_PARTS:
            return None
        shares = map(_share_of, split_into_parts(steps))
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


def _idle_between(step: StepFacts, others: Sequence[Interval]) -> int:
    """Return the nanoseconds after a step in which neither the device nor another module works."""
    between, period = step.between or 0, step.period or 0
    if step.device is not None:  # the host may only wait for it, as in loss.item()
        between = min(between, max(0, period - step.device.whole))
    begin, end = step.over - between, step.over
    for first, last in others:
        between -= max(0, min(last, end) - max(first, begin))
    return max(0, between)
