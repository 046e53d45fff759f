"""A step of several passes whose gradients add up: the times of one pass, repeated.

The pass of a trace adds its gradients to those of earlier ones. So does each but the first, whose
additions are counted nevertheless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from torchscan.analyses.collectives import Collective
from torchscan.analyses.roofline.pass_loads import group
from torchscan.analyses.roofline.roofline_result import GroupLoad, OperatorLoad, Roofline
from torchscan.trace.events import Phase

#: what all passes have so many times as one pass
_TOTALS = [each.name for each in fields(GroupLoad) if each.type in ("int", "float")]


def repeat_passes(roofline: Roofline, number: int) -> Roofline:
    """Return the roofline of a step of so many passes and one update."""
    if number == 1 or not roofline.time_estimate:
        return roofline
    step = _RepeatedPasses(roofline, number)
    # The update belongs to no layer but the model.
    layers = []
    for each in roofline.layers[1:]:
        values: dict[str, Any] = {name: number * getattr(each, name) for name in _TOTALS}
        layers.append(replace(each, **values))
    passes = step.one_pass * number
    repeated = replace(roofline, operators=(*passes, *step.update), layers=(step.whole, *layers))
    return replace(
        repeated,
        by_kind=step.group_by_kind(),
        time_by_phase=step.time_by_phase(),
        time_estimate=step.whole.time_estimate,
        time_bound=step.whole.time_bound,
        compute_utilization=step.compute_utilization(),
        memory_utilization=step.memory_utilization(),
    )


def repeat_collectives(collectives: Sequence[Collective], number: int) -> tuple[Collective, ...]:
    """Return the collectives of a step of so many passes, which all communicate, and an update."""
    repeated = []
    for each in collectives:
        if each.phase == "optimizer":
            repeated.append(each)
            continue
        calls, size, sent = number * each.calls, number * each.bytes, number * each.sent_bytes
        seconds = None if each.seconds is None else number * each.seconds
        more = replace(each, calls=calls, bytes=size, sent_bytes=sent, seconds=seconds)
        repeated.append(more)
    return tuple(repeated)


class _RepeatedPasses:
    """The passes and the update of one step."""

    def __init__(self, roofline: Roofline, number: int) -> None:
        self._roofline = roofline
        self._number = number
        loads = roofline.operators
        self.one_pass = [each for each in loads if each.phase != "optimizer"]
        self.update = [each for each in loads if each.phase == "optimizer"]
        self.whole = self._add_up(roofline.total.name, self.one_pass, self.update)

    def time_by_phase(self) -> dict[Phase, float]:
        """Return the seconds of all passes, and of the update."""
        times: dict[Phase, float] = {}
        for phase, seconds in self._roofline.time_by_phase.items():
            times[phase] = seconds if phase == "optimizer" else self._number * seconds
        return times

    def group_by_kind(self) -> dict[str, GroupLoad]:
        """Return the calls of each operator, that which takes longest first."""
        passes: defaultdict[str, list[OperatorLoad]] = defaultdict(list)
        updates: defaultdict[str, list[OperatorLoad]] = defaultdict(list)
        for each in self.one_pass:
            passes[each.operator].append(each)
        for each in self.update:
            updates[each.operator].append(each)
        groups = []
        for name in {**passes, **updates}:
            whole = self._add_up(name, passes[name], updates[name])
            groups.append(whole)
        groups.sort(key=lambda each: -each.time_estimate)
        return {each.name: each for each in groups}

    def compute_utilization(self) -> float:
        """Return the share of products at the peak rate, of which an update has none."""
        seconds = self._roofline.compute_utilization * self._roofline.time_estimate
        return self._number * seconds / self.whole.time_estimate

    def memory_utilization(self) -> float:
        """Return the share of memory traffic at full bandwidth."""
        seconds = self._roofline.memory_utilization * self._roofline.time_estimate
        moved = sum(each.bytes_read + each.bytes_written for each in self.update)
        in_update = min(seconds, moved / self._roofline.bandwidth)
        in_passes = self._number * (seconds - in_update)
        return (in_passes + in_update) / self.whole.time_estimate

    def _add_up(
        self, name: str, one_pass: Sequence[OperatorLoad], update: Sequence[OperatorLoad]
    ) -> GroupLoad:
        counts = [self._number] * len(one_pass) + [1] * len(update)
        return group(name, [*one_pass, *update], counts)
