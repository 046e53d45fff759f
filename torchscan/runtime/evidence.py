"""Measurements behind the verdict on a run: where time between and in steps goes, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.runtime.facts import StepFacts
from torchscan.runtime.memory_log import MemoryTrend
from torchscan.runtime.run_parts import NUM_PARTS, split_into_parts

_NANOSECONDS = 1e-9
#: start and end of a call of another module, in nanoseconds since 1970
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """A share of the time of several steps."""

    #: share in all steps together
    value: float
    #: minimum over five consecutive parts of the run
    min: float

    @classmethod
    def of(cls, parts: Sequence[int], wholes: Sequence[int]) -> TimeShare | None:
        """Return the share of a time in each step, or None if there are fewer than five steps."""
        if len(wholes) < NUM_PARTS or not sum(wholes):
            return None
        shares = [
            _divide(sum(part), sum(whole))
            for part, whole in zip(split_into_parts(parts), split_into_parts(wholes), strict=True)
        ]
        return cls(value=sum(parts) / sum(wholes), min=min(shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the verdict on a run is derived from."""

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
    followed = [step for step in steps if step.period is not None]
    on_device = [step.device for step in steps if step.device is not None]
    num_nodes = sum(step.num_nodes for step in steps)
    in_nodes = sum(step.in_nodes for step in steps)
    return Evidence(
        steps=len(followed),
        between=TimeShare.of(
            [_idle_between(step, others) for step in followed],
            [step.period or 0 for step in followed],
        ),
        waiting=TimeShare.of(
            [device.waiting for device in on_device], [device.whole for device in on_device]
        ),
        num_nodes=round(num_nodes / len(steps)) if steps else 0,
        node_time=_divide(in_nodes, num_nodes) * _NANOSECONDS,
    )


def _idle_between(step: StepFacts, others: Sequence[Interval]) -> int:
    """Return the nanoseconds after a step in which neither the device nor another module works."""
    between, period = step.between or 0, step.period or 0
    if step.device is not None:  # the host may only wait for it, as in loss.item()
        between = min(between, max(0, period - step.device.whole))
    start, end = step.over - between, step.over
    used = sum(max(0, min(last, end) - max(first, start)) for first, last in others)
    return max(0, between - used)


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
