"""The timeline of a step: when its calls and nodes started and ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.inspecting.timing import LEAVES, StepTimes
from torchscan.recording.module_calls import Call


class Slice(NamedTuple):
    """Start and end of an activity on the host."""

    #: index of its call, or None if gradients were accumulated
    call: int | None
    #: nanoseconds from the start of the step
    start: int
    #: nanoseconds from the start of the step
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step as it went on the host, in the order in which things started."""

    #: calls
    forward: tuple[Slice, ...] = ()
    #: nodes; consecutive nodes of one call are one slice, which includes recomputation
    backward: tuple[Slice, ...] = ()


def timeline_of(calls: Sequence[Call], times: StepTimes) -> Timeline:
    """Return the timeline of a step."""
    zero = times.zero
    forward: list[Slice] = []
    again: list[Slice] = []
    for call, end in _ended(calls, times):
        ran = Slice(call.index, times.started[call.index] - zero, end - zero)
        slices = again if call.index in times.again else forward
        slices.append(ran)
    nodes: list[Slice] = []
    for index, start, end in times.nodes:
        owner = None if index == LEAVES else index
        nodes.append(Slice(owner, start - zero, end - zero))
    backward = [*_merge_neighbors(_in_order(nodes)), *again]
    return Timeline(forward=tuple(forward), backward=tuple(_in_order(backward)))


def _ended(calls: Sequence[Call], times: StepTimes) -> list[tuple[Call, int]]:
    """Return each call with its end. If none was noticed, it is that of what ran in it."""
    ends: dict[int, int] = {}
    for call in reversed(calls):
        inside = [ends[child] for child in call.children if child not in times.again]
        start = times.started[call.index]
        ends[call.index] = times.ended.get(call.index) or max(inside, default=start)
    return [(call, ends[call.index]) for call in calls]


def _in_order(slices: Sequence[Slice]) -> list[Slice]:
    """Sort slices by their start. A slice that contains others comes before them."""
    return sorted(slices, key=lambda each: (each.start, -each.end))


def _merge_neighbors(nodes: Sequence[Slice]) -> Iterator[Slice]:
    """Neighbours of one call as one. What ran inside another node stays apart."""
    last: Slice | None = None
    for node in nodes:
        if last is not None and node.start < last.end:
            yield node
        elif last is not None and node.call == last.call:
            last = last._replace(end=node.end)
        else:
            yield from () if last is None else (last,)
            last = node
    yield from () if last is None else (last,)
