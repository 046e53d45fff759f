"""A step's collectives, and when this rank arrived at each, from torch's flight recorder."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, eq
from typing import Any, Literal, NamedTuple

from torchscan.inspecting.facts import StepFacts
from torchscan.inspecting.step_timeline import Timeline
from torchscan.plain import stored_as
from torchscan.torch_versions import flight_records, place_in_group, ranks_by_group

#: environment variables by which launchers identify a start of the program
_LAUNCH = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
)
ExchangePhase = Literal["forward", "backward", "outside"]
#: where time is spent: the index of a call, or None outside of all calls, and its phase
Place = tuple[int | None, ExchangePhase]


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
    #: the index of the call in which this rank arrived, or None outside of all calls
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
        """Convert a moment of the machine's clock to that of the step."""
        raw = moment - self.ahead
        before = bisect_right(self.looked, (raw, 0))
        if not before:
            return raw
        _, looked = self.looked[before - 1]
        return raw - looked


class _ExchangeEntry(NamedTuple):
    """A collective of the flight recorder."""

    kind: str
    group: str
    number: int
    arrival: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _ExchangeEntry:
        """Return the entry of a record, such as one named ``"nccl:_all_gather_base"``."""
        _, _, operator = str(record["profiling_name"]).rpartition(":")
        kind = operator.strip("_").removesuffix("_base").replace("_", "-")
        return cls(
            kind=kind,
            group=str(record["process_group"][0]),
            number=int(record["collective_seq_id"]),
            arrival=int(record["time_created_ns"]),
        )


_ARRIVAL = attrgetter("arrival")
#: the kinds and groups of collectives, in their order
_Signature = tuple[tuple[str, str], ...]


class Group(NamedTuple):
    """The group of ranks that train together."""

    process: Process
    #: which are in each group, by torch's names
    ranks: Mapping[str, tuple[int, ...]]


def current_group() -> Group | None:
    """Return the group that this process trains in, or None if it trains alone."""
    place = place_in_group()
    if place is None:
        return None
    rank, num_ranks = place
    launch = "/".join(os.environ[name] for name in _LAUNCH if name in os.environ)
    process = Process(rank=rank, num_ranks=num_ranks, launch=launch, began=time.time())
    return Group(process, ranks_by_group())


def find_exchanges(
    steps: Sequence[StepFacts], timeline: Timeline, clock: Clock, zero: int, group: Group
) -> tuple[Exchange, ...]:
    """Return the collectives that most of the steps have in common.

    Only steps count whose collectives the flight recorder still holds. ``zero`` is the start of the
    timeline on the step's clock.
    """
    found = _read_steps(steps)
    if not found:
        return ()

    # Of equally common signatures the newest counts.
    signatures = Counter(_signature(in_step) for _, in_step in reversed(found))
    (common, _), *_ = signatures.most_common(1)
    length = len(common)
    # A step may have more at its end, such as a barrier.
    candidates = [in_step[:length] for _, in_step in found]
    matching = [in_step for in_step in candidates if _signature(in_step) == common]

    moments: list[int | None] = [None] * length
    last_step, in_last_step = found[-1]
    # The last step may have fewer: it lacks those with which the next one would begin.
    agrees = all(map(eq, _signature(in_last_step), common))
    if last_step is steps[-1] and agrees:
        for index, entry in enumerate(in_last_step[:length]):
            moments[index] = clock.own(entry.arrival) - zero

    exchanges = []
    for in_steps, moment in zip(zip(*matching, strict=True), moments, strict=True):
        exchange = _to_exchange(in_steps, group.ranks, timeline, moment)
        exchanges.append(exchange)
    return tuple(exchanges)


def _read_steps(steps: Sequence[StepFacts]) -> list[tuple[StepFacts, list[_ExchangeEntry]]]:
    """Return the steps with collectives none of which was overwritten, and these."""
    entries, is_cut = _read_flight_recorder()
    found: list[tuple[StepFacts, list[_ExchangeEntry]]] = []
    for step in steps:
        first = bisect_right(entries, step.began, key=_ARRIVAL)
        end = bisect_right(entries, step.over, key=_ARRIVAL)
        # If it is cut, collectives before the first one may have been overwritten.
        if first < end and (first or not is_cut):
            found.append((step, entries[first:end]))
    return found


def _read_flight_recorder() -> tuple[list[_ExchangeEntry], bool]:
    """Return the collectives in their order, and whether older ones may have been overwritten.

    Messages from one rank to another are not collectives.
    """
    records = flight_records()
    entries = [_ExchangeEntry.of(each) for each in records if not each["is_p2p"]]
    entries.sort(key=_ARRIVAL)
    # Each backend has a recorder, which counts its records from 0.
    oldest: dict[str, int] = {}
    for record in records:
        recorder, _, _ = str(record["profiling_name"]).partition(":")
        number = record["record_id"]
        oldest[recorder] = min(oldest.get(recorder, number), number)
    return entries, any(oldest.values())


def _signature(entries: Sequence[_ExchangeEntry]) -> _Signature:
    return tuple((each.kind, each.group) for each in entries)


def _to_exchange(
    entries: Sequence[_ExchangeEntry],
    ranks: Mapping[str, tuple[int, ...]],
    timeline: Timeline,
    at: int | None,
) -> Exchange:
    """Return an exchange of the same collective in each step."""
    last = entries[-1]
    call: int | None = None
    phase: ExchangePhase | None = None
    if at is not None:
        call, phase = _place(timeline, at)
    arrivals = tuple([each.arrival for each in entries])
    return Exchange(
        kind=last.kind,
        group=last.group,
        ranks=ranks.get(last.group, ()),
        call=call,
        phase=phase,
        at=at,
        numbers=tuple([each.number for each in entries]),
        arrivals=arrivals,
    )


def _place(timeline: Timeline, at: int) -> Place:
    """Return the innermost call that was running at a moment, and its phase."""
    for each in reversed(timeline.backward):
        if each.start <= at <= each.end:
            return each.call, "backward"
    for each in reversed(timeline.forward):
        if each.start <= at <= each.end:
            return each.call, "forward"
    return None, "outside"


def time_by_place(timeline: Timeline, begin: int, end: int) -> dict[Place, int]:
    """Return the nanoseconds between two moments by the innermost call."""
    phases: tuple[tuple[ExchangePhase, Any], ...] = (
        ("forward", timeline.forward),
        ("backward", timeline.backward),
    )
    found: dict[Place, int] = {}
    for phase, slices in phases:
        inside = [each for each in slices if each.start < end and each.end > begin]
        clipped = [(max(each.start, begin), min(each.end, end), each.call) for each in inside]
        for duration, call in _innermost_durations(clipped):
            place = (call, phase)
            found[place] = found.get(place, 0) + duration
    return found


def _innermost_durations(
    slices: Sequence[tuple[int, int, int | None]],
) -> list[tuple[int, int | None]]:
    """Cut time at every start and end; return how long each piece is, and its call.

    A piece belongs to the call, of those that run in it, that started last.
    """
    edges: set[int] = set()
    for start, end, _ in slices:
        edges.update((start, end))
    waiting = sorted(slices, key=lambda each: (each[0], -each[1]))
    waiting.reverse()
    running: list[tuple[int, int, int | None]] = []
    pieces: list[tuple[int, int | None]] = []
    for start, end in pairwise(sorted(edges)):
        while waiting and waiting[-1][0] <= start:
            running.append(waiting.pop())
        running = [each for each in running if each[1] > start]
        if running:
            _, _, call = running[-1]
            pieces.append((end - start, call))
    return pieces
