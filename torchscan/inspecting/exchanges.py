"""When this process came to what it does together with others, by torch's flight recorder, which has its last collectives."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from torchscan.inspecting.facts import StepFacts
from torchscan.inspecting.timing import Timeline
from torchscan.plain import stored_as
from torchscan.torch_versions import flight_records, place_in_group, ranks_by_group

#: what launchers tell the processes that they start
_LAUNCH = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
ExchangePhase = Literal["forward", "backward", "outside"]


@stored_as(num_ranks="processes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The rank of this process, and its launch."""

    rank: int
    num_ranks: int
    #: what all processes of one start of the program have in common, as far as the launcher says it
    launch: str
    #: when it was met first, in seconds since 1970
    began: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective that each measured step has."""

    #: "all-reduce", "all-gather", …
    kind: str
    #: torch's name of the group, and which processes are in it
    group: str
    ranks: tuple[int, ...]
    #: the index of the call in which this process came to it, and when; None: in none, by the loss
    #: or a hook, say
    call: int | None
    phase: ExchangePhase | None
    #: nanoseconds from the start of the timeline; None: the step that this is of has no such
    #: collectives
    at: int | None
    #: of each step: which of its group's it is, and when this process came to it, in nanoseconds
    #: since 1970
    numbers: tuple[int, ...]
    arrivals: tuple[int, ...]


class Clock(NamedTuple):
    """The relation between a step's clock, which stands still during checks, and the machine's."""

    #: what the machine's clock is ahead of the processor's
    ahead: int
    #: when looking ended, by the processor's clock, and how much had been looked by then
    looked: Sequence[tuple[int, int]]

    @classmethod
    def ahead_now(cls) -> int:
        """Return the difference between the machine's clock and the processor's."""
        return time.time_ns() - time.perf_counter_ns()

    def own(self, moment: int) -> int:
        """A moment of the machine's clock on that of the step."""
        raw = moment - self.ahead
        before = bisect_right(self.looked, (raw, 0))
        return raw - (self.looked[before - 1][1] if before else 0)


class _ExchangeEntry(NamedTuple):
    kind: str
    group: str
    number: int
    arrival: int


class Group(NamedTuple):
    """The group of ranks that train together."""

    process: Process
    #: which are in each group, by torch's names
    ranks: Mapping[str, tuple[int, ...]]


def current_group() -> Group | None:
    """None: it trains alone."""
    place = place_in_group()
    if place is None:
        return None
    launch = "/".join(os.environ[name] for name in _LAUNCH if name in os.environ)
    return Group(
        Process(rank=place[0], num_ranks=place[1], launch=launch, began=time.time()),
        ranks_by_group(),
    )


def find_exchanges(
    steps: Sequence[StepFacts], timeline: Timeline, clock: Clock, zero: int, group: Group
) -> tuple[Exchange, ...]:
    """Return the collectives that most of the steps have in common.

    Only steps count whose collectives the flight recorder still holds. ``zero`` is the start of the
    timeline on the step's clock.
    """
    entries, is_cut = _remembered()
    found = [(step, here) for step in steps if (here := _during_step(entries, step, is_cut=is_cut))]
    if not found:
        return ()
    usual = Counter(_kinds(each) for _, each in reversed(found)).most_common(1)[0][0]
    # a step may have more at its end, and the last one less: a barrier, or none of what the next
    # would begin with
    alike = [each[: len(usual)] for _, each in found if _kinds(each)[: len(usual)] == usual]
    latest, final = found[-1]
    known = (
        [clock.own(each.arrival) - zero for each in final]
        if latest is steps[-1] and _agree(_kinds(final), usual)
        else []
    )
    moments = [*known, *[None] * len(usual)]
    return tuple(
        _exchange(each, group.ranks, timeline, at)
        for each, at in zip(zip(*alike, strict=True), moments, strict=False)
    )


def _agree(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two sequences are equal as far as the shorter one goes."""
    return all(first == second for first, second in zip(one, other, strict=False))


def _remembered() -> tuple[list[_ExchangeEntry], bool]:
    """Collectives in their order, and whether earlier ones may have been forgotten. Messages to one other are left alone."""
    records = flight_records()
    entries = sorted(
        (_entry(each) for each in records if not each["is_p2p"]), key=lambda each: each.arrival
    )
    oldest: dict[str, int] = {}
    for each in records:
        recorder = str(each["profiling_name"]).partition(":")[0]
        oldest[recorder] = min(oldest.get(recorder, each["record_id"]), each["record_id"])
    return entries, any(oldest.values())


def _entry(record: Mapping[str, Any]) -> _ExchangeEntry:
    kind = (
        str(record["profiling_name"])
        .rpartition(":")[2]
        .strip("_")
        .removesuffix("_base")
        .replace("_", "-")
    )
    return _ExchangeEntry(
        kind,
        str(record["process_group"][0]),
        int(record["collective_seq_id"]),
        int(record["time_created_ns"]),
    )


def _during_step(
    entries: Sequence[_ExchangeEntry], step: StepFacts, *, is_cut: bool
) -> list[_ExchangeEntry]:
    """Return the collectives of a step, or none if some may have been overwritten."""
    begin, end = (
        bisect_right(entries, moment, key=lambda each: each.arrival)
        for moment in (step.began, step.over)
    )
    return [] if is_cut and not begin else list(entries[begin:end])


def _kinds(entries: Sequence[_ExchangeEntry]) -> tuple[tuple[str, str], ...]:
    return tuple((each.kind, each.group) for each in entries)


def _exchange(
    entries: Sequence[_ExchangeEntry],
    ranks: Mapping[str, tuple[int, ...]],
    timeline: Timeline,
    at: int | None,
) -> Exchange:
    """Return an exchange of the same collective in each step."""
    last = entries[-1]
    call, phase = (None, None) if at is None else _place(timeline, at)
    return Exchange(
        kind=last.kind,
        group=last.group,
        ranks=ranks.get(last.group, ()),
        call=call,
        phase=phase,
        at=at,
        numbers=tuple(each.number for each in entries),
        arrivals=tuple(each.arrival for each in entries),
    )


def _place(timeline: Timeline, at: int) -> tuple[int | None, ExchangePhase]:
    """In which call a moment of the step is."""
    phases: tuple[tuple[ExchangePhase, Any], ...] = (
        ("backward", timeline.backward),
        ("forward", timeline.forward),
    )
    for phase, slices in phases:
        inside = [each for each in slices if each.start <= at <= each.end]
        if inside:
            return inside[-1].call, phase
    return None, "outside"


def time_by_place(
    timeline: Timeline, begin: int, end: int
) -> dict[tuple[int | None, ExchangePhase], int]:
    """Return the nanoseconds between two moments by the innermost call."""
    phases: tuple[tuple[ExchangePhase, Any], ...] = (
        ("forward", timeline.forward),
        ("backward", timeline.backward),
    )
    found: dict[tuple[int | None, ExchangePhase], int] = {}
    for phase, slices in phases:
        cut = [
            (max(each.start, begin), min(each.end, end), each.call)
            for each in slices
            if each.start < end and each.end > begin
        ]
        for (start, stop), inside in _innermost(cut):
            found[inside, phase] = found.get((inside, phase), 0) + stop - start
    return found


def _innermost(
    slices: Sequence[tuple[int, int, int | None]],
) -> list[tuple[tuple[int, int], int | None]]:
    """Stretches, and which of the slices that cover each began last."""
    edges = sorted({edge for start, stop, _ in slices for edge in (start, stop)})
    found: list[tuple[tuple[int, int], int | None]] = []
    open_: list[tuple[int, int, int | None]] = []
    coming = sorted(slices, key=lambda each: (each[0], -each[1]))[::-1]
    for start, stop in pairwise(edges):
        while coming and coming[-1][0] <= start:
            open_.append(coming.pop())
        open_ = [each for each in open_ if each[1] > start]
        if open_:
            found.append(((start, stop), open_[-1][2]))
    return found
