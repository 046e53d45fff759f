"""The memory and time of a training step over ways to checkpoint it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchscan.analyses.checkpoint_choices import CheckpointWay, CheckpointWays
from torchscan.analyses.checkpoint_curve import CheckpointChoice
from torchscan.analyses.checkpoint_traces import CheckpointedTrace
from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.roofline import Roofline
from torchscan.errors import InputError
from torchscan.trace.trace import Trace

#: how often the best choice for a limit is corrected by what it needs indeed
_CORRECTIONS = 3

#: share of the memory that a slower choice must save to be listed
_WORTH = 0.01


class CheckpointEstimate(NamedTuple):
    """The memory and time of a trace on the device."""

    peak_bytes: int
    reserved_bytes: int
    fits: bool
    roofline: Roofline
    #: of the last batch, if a step has several
    trace: Trace


class CheckpointComparison:
    """Compares the ways to checkpoint a step.

    Args:
        without: the step without checkpoints.
        full: the trace of the step with all layers checkpointed.
        layers: their paths.
        estimate: returns the memory and time of a trace.
        room: bytes that the allocator may reserve.
    """

    def __init__(
        self,
        without: CheckpointEstimate,
        full: Trace,
        layers: Sequence[str],
        estimate: Callable[[Trace], CheckpointEstimate],
        room: int,
    ) -> None:
        if any(op.origin == "checkpoint" for op in without.trace.ops):
            raise InputError(
                "the model has checkpoints itself, so that others cannot be compared: give the "
                "model without them"
            )
        self._without = without
        self._layers = layers
        self._estimate = estimate
        self._room = room
        self._checkpointed = CheckpointedTrace(full, layers)
        self._all = estimate(full)
        offset = len(full.ops) - len(self._all.trace.ops)
        seconds = _seconds_by_call(self._all.trace, self._all.roofline, offset)
        self._ways = CheckpointWays(self._checkpointed, seconds)

    def choices(self) -> tuple[CheckpointChoice, ...]:
        """Return the choices, the fastest first."""
        found = [
            self._choice(
                CheckpointWay(checkpoint=False, plain=self._checkpointed.runs), self._without
            )
        ]
        found += map(self._choice, (*self._ways.usual(), *self._ways.by_operator()))
        best = self._best_within(found)
        if best is not None:
            found.append(best)
        found = _without_useless(found)
        ordered = sorted(found, key=lambda each: (each.time_estimate, each.reserved_bytes))
        least, choices = None, []
        for each in ordered:
            is_on_front = least is None or each.reserved_bytes < least
            choices.append(replace(each, is_on_front=is_on_front))
            least = each.reserved_bytes if is_on_front else least
        return tuple(choices)

    def _choice(
        self, way: CheckpointWay, estimate: CheckpointEstimate | None = None
    ) -> CheckpointChoice:
        is_recorded = way.checkpoint is True or estimate is not None
        if way.checkpoint is True:
            estimate = self._all
        if estimate is None:
            estimate = self._estimate(self._ways.trace_of(way))
        plain = {run.layer for run in way.plain}
        checkpointed = [each for each in self._layers if each not in plain]
        recomputed, others = _recomputed_flops(estimate.trace)
        return CheckpointChoice(
            checkpoint=way.checkpoint,
            num_checkpointed=len(checkpointed),
            saved=way.results,
            peak_bytes=estimate.peak_bytes,
            reserved_bytes=estimate.reserved_bytes,
            fits=estimate.fits,
            time_estimate=estimate.roofline.time_estimate,
            recomputed_flops=recomputed,
            recomputed_share=recomputed / others if others else 0.0,
            is_recorded=is_recorded,
        )

    def _best_within(self, known: Sequence[CheckpointChoice]) -> CheckpointChoice | None:
        """Return the choice of results that saves the most time and fits, or None if all do."""
        if known[0].fits or not self._all.fits:
            return None
        free = self._room - self._all.reserved_bytes
        for _ in range(_CORRECTIONS):
            way = self._ways.within(free)
            if way is None:
                return None
            choice = self._choice(way)
            if choice.fits:
                return choice
            free -= max(choice.reserved_bytes - self._room, free // 8)
        return None


def _seconds_by_call(trace: Trace, roofline: Roofline, offset: int) -> Mapping[int, float]:
    """Return the expected time of each call: loads are in the order of calls, without views."""
    seconds: dict[int, float] = {}
    loads = iter(roofline.operators)
    load = next(loads, None)
    for index, op in enumerate(trace.ops):
        if load is None:
            break
        if (op.signature.operator, op.phase) == (load.operator, load.phase):
            seconds[offset + index] = load.time_estimate
            load = next(loads, None)
    return seconds


def _recomputed_flops(trace: Trace) -> tuple[int, int]:
    """Return the FLOPs that checkpoints compute again, and all others."""
    recomputed = others = 0
    for op, cost in zip(trace.ops, call_costs(trace), strict=True):
        if op.origin == "checkpoint":
            recomputed += cost.flops
        else:
            others += cost.flops
    return recomputed, others


def _without_useless(choices: Sequence[CheckpointChoice]) -> list[CheckpointChoice]:
    """Leave out choices by operator if a faster one needs hardly more memory."""
    kept: list[CheckpointChoice] = []
    for each in choices:
        better = [
            other
            for other in choices
            if other is not each
            and other.time_estimate <= each.time_estimate
            and other.reserved_bytes <= (1 + _WORTH) * each.reserved_bytes
        ]
        if not each.saved or not better:
            kept.append(each)
    return kept
