"""A step of several passes whose gradients add up: the times of one pass, repeated.

The pass of a trace adds its gradients to those of earlier ones. So does each but the first, whose
additions are counted nevertheless.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchscan.analyses.collectives import Collective
from torchscan.analyses.roofline.analysis import group
from torchscan.analyses.roofline.roofline_result import GroupLoad, OperatorLoad, Roofline
from torchscan.trace.events import Phase

#: what all passes have so many times as one pass
_TOTALS = (
    *("macs", "flops", "elements_read", "elements_written", "bytes_read", "bytes_written"),
    *("time_bound", "time_estimate", "calls"),
)


def repeat_passes(roofline: Roofline, number: int) -> Roofline:
    """Return the roofline of a step of so many passes and one update."""
    if number == 1:
        return roofline
    one_pass = [each for each in roofline.operators if each.phase != "optimizer"]
    update = [each for each in roofline.operators if each.phase == "optimizer"]
    times: dict[Phase, float] = {
        phase: seconds if phase == "optimizer" else number * seconds
        for phase, seconds in roofline.time_by_phase.items()
    }
    time = math.fsum(times.values())
    busy = _busy_seconds(roofline, update, number)
    # The update belongs to no layer but the model.
    model, *layers = roofline.layers
    return replace(
        roofline,
        operators=(*one_pass * number, *update),
        layers=(
            _add_up(model.name, one_pass, update, number),
            *(_repeat(each, number) for each in layers),
        ),
        by_kind=_group_by_kind(one_pass, update, number),
        time_by_phase=times,
        time_estimate=time,
        time_bound=math.fsum(
            each.time_bound * (1 if each.phase == "optimizer" else number)
            for each in roofline.operators
        ),
        compute_utilization=busy["compute"] / time if time else 0.0,
        memory_utilization=busy["memory"] / time if time else 0.0,
    )


def repeat_collectives(collectives: Sequence[Collective], number: int) -> tuple[Collective, ...]:
    """Return the collectives of a step of so many passes, each of which communicates."""
    return tuple(
        replace(
            each,
            calls=number * each.calls,
            bytes=number * each.bytes,
            sent_bytes=number * each.sent_bytes,
            seconds=None if each.seconds is None else number * each.seconds,
        )
        for each in collectives
    )


def _busy_seconds(
    roofline: Roofline, update: Sequence[OperatorLoad], number: int
) -> Mapping[str, float]:
    """Return the seconds of products and of memory traffic at the peak rates; updates only move data."""
    moved = sum(each.bytes_read + each.bytes_written for each in update)
    update_seconds = moved / roofline.bandwidth
    products = roofline.compute_utilization * roofline.time_estimate
    traffic = roofline.memory_utilization * roofline.time_estimate
    all_traffic = number * max(0.0, traffic - update_seconds) + update_seconds
    return {"compute": number * products, "memory": all_traffic}


def _add_up(
    name: str, one_pass: Sequence[OperatorLoad], update: Sequence[OperatorLoad], number: int
) -> GroupLoad:
    counts = [number] * len(one_pass) + [1] * len(update)
    return group(name, [*one_pass, *update], counts)


def _group_by_kind(
    one_pass: Sequence[OperatorLoad], update: Sequence[OperatorLoad], number: int
) -> dict[str, GroupLoad]:
    names = dict.fromkeys(each.operator for each in (*one_pass, *update))
    groups = []
    for name in names:
        repeated = [each for each in one_pass if each.operator == name]
        single = [each for each in update if each.operator == name]
        groups.append(_add_up(name, repeated, single, number))
    groups.sort(key=lambda each: -each.time_estimate)
    return {each.name: each for each in groups}


def _repeat(load: GroupLoad, number: int) -> GroupLoad:
    totals = {name: number * getattr(load, name) for name in _TOTALS}
    return replace(load, **totals)
