"""Who keeps the other processes waiting, and in which module: from when each came to what they do together.

Between two collectives each process has work of its own. It begins when the process came to the first of them or, if it waited
there until the last process did, then::

    work(k) = arrival(k) − (last arrival(k − 1) if arrival(k) is not before that, else arrival(k − 1))
    late(k) = max(0, min(work(k) − min over the group of work(k), arrival(k) − first arrival(k)))

The second bound is for collectives that nobody waits in: who is late there is so at the next ones, too, and has not lost it
again. Of each collective the median of the steps counts, and of a process all collectives of a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from torchscan.runtime.exchanges import Exchange, ExchangePhase, spent_within
from torchscan.runtime.run import RunFacts
from torchscan.units import duration, share

_NANOSECONDS = 1e-9
#: of a step: what is less is not worth a word
_LEAST_SHARE = 0.05
#: of the time between two equal collectives, what a step is if nothing but it is between them
_IS_WHOLE = 0.7
#: a collective, by its group and number there
_Meeting = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A process that the others wait for."""

    rank: int
    #: seconds of a step, in the median, that it takes longer than the fastest, and what of the step that is
    seconds: float
    share: float
    #: the module in which it loses most of them before a collective, and how many; None: it is not known where
    layer: str
    type_name: str
    phase: ExchangePhase | None
    lost: float
    #: the collective in which the others wait for it, and the module that calls it
    kind: str
    waits_in: str

    def __str__(self) -> str:
        """In a sentence."""
        named = f" in {self.layer or 'the model itself'} ({self.type_name}), {self.phase}"
        where = named if self.type_name else "" if self.phase is None else " outside the model"
        behind = f"process {self.rank} is {duration(self.seconds)} behind the others in each step ({share(self.share)})"
        of = f" of {self.waits_in}" if self.waits_in else ""
        return f"{behind}, {duration(self.lost)} of that{where}; they wait for it in the next {self.kind}{of}"


def lateness(runs: Sequence[RunFacts]) -> dict[int, float]:
    """Of each process by its rank: seconds of a step."""
    return {rank: sum(each.values()) * _NANOSECONDS for rank, each in _Meetings(runs).late.items()}


def stragglers(runs: Sequence[RunFacts]) -> tuple[Straggler, ...]:
    """Those that are behind by more than 5 % of a step, and more than most; the one that is furthest behind first."""
    meetings = _Meetings(runs)
    totals = {rank: sum(each.values()) for rank, each in meetings.late.items()}
    usual = statistics.median_low(totals.values()) if totals else 0
    behind = [rank for rank, total in totals.items() if total - usual > _LEAST_SHARE * _gap(meetings.runs[rank])]
    return tuple(_straggler(meetings, rank) for rank in sorted(behind, key=lambda rank: -totals[rank]))


def _gap(run: RunFacts) -> float:
    """Nanoseconds from a collective to the same one in the next step, which several backward passes may be before."""
    gaps = [after - before for each in run.exchanges for before, after in pairwise(each.arrivals)]
    return statistics.median(gaps) if gaps else _period(run)


def _period(run: RunFacts) -> float:
    return (run.period.median or run.forward.median + run.backward.median) / _NANOSECONDS


class _Arrival(NamedTuple):
    """When a process came to a collective, and to which of those of a step."""

    place: int
    when: int


class _Meetings:
    """Who came when to what all processes did together."""

    def __init__(self, runs: Sequence[RunFacts]) -> None:
        self.runs = {run.process.rank: run for run in runs if run.process is not None and run.exchanges}
        self.arrivals = {rank: _arrivals(run.exchanges) for rank, run in self.runs.items()}
        self._together: dict[_Meeting, dict[int, int]] = {}
        for rank, own in self.arrivals.items():
            for meeting, arrival in own.items():
                self._together.setdefault(meeting, {})[rank] = arrival.when
        self._work = {rank: self._work_of(own) for rank, own in self.arrivals.items()}
        #: of each process, by the place of a collective among its own: nanoseconds
        self.late = {rank: self._late_of(rank, own) for rank, own in self.arrivals.items()}

    def _work_of(self, own: Mapping[_Meeting, _Arrival]) -> dict[_Meeting, int]:
        """What a process did for itself before each, but the first, of which nobody knows since when."""
        found: dict[_Meeting, int] = {}
        for (before, came), (meeting, arrival) in pairwise(own.items()):
            last = max(self._together[before].values())
            found[meeting] = arrival.when - (last if arrival.when >= last else came.when)
        return found

    def _late_of(self, rank: int, own: Mapping[_Meeting, _Arrival]) -> dict[int, float]:
        late: dict[int, list[int]] = {}
        for meeting, arrival in own.items():
            works = self._works(meeting)
            if rank in works and len(works) > 1:
                after_first = arrival.when - min(self._together[meeting].values())
                late.setdefault(arrival.place, []).append(max(0, min(works[rank] - min(works.values()), after_first)))
        return {place: statistics.median(each) for place, each in late.items()}

    def _works(self, meeting: _Meeting) -> dict[int, int]:
        return {rank: self._work[rank][meeting] for rank in self._together[meeting] if meeting in self._work[rank]}

    def fastest(self, rank: int, place: int) -> tuple[int, int] | None:
        """Who had the least to do before a collective of a process in the last step, and which of its own that is."""
        meeting = next((each for each, arrival in reversed(self.arrivals[rank].items()) if arrival.place == place), None)
        works = {} if meeting is None else self._works(meeting)
        if meeting is None or not works:
            return None
        other = min(works, key=lambda each: works[each])
        return other, self.arrivals[other][meeting].place


def _arrivals(exchanges: Sequence[Exchange]) -> dict[_Meeting, _Arrival]:
    """In their order."""
    found = [
        ((each.group, each.ranks, number), _Arrival(place, when))
        for place, each in enumerate(exchanges)
        for number, when in zip(each.numbers, each.arrivals, strict=True)
    ]
    return dict(sorted(found, key=lambda each: each[1].when))


def _straggler(meetings: _Meetings, rank: int) -> Straggler:
    run, own = meetings.runs[rank], meetings.late[rank]
    place = max(own, key=lambda each: own[each])
    call, phase = _lost_in(meetings, rank, place, own[place])
    total = sum(own.values())
    return Straggler(
        rank=rank,
        seconds=total * _NANOSECONDS,
        share=total / _gap(run),
        kind=run.exchanges[place].kind,
        waits_in="" if (within := run.exchanges[place].call) is None else run.calls[within].path,
        layer="" if call is None else run.calls[call].path,
        type_name="" if call is None else run.calls[call].type_name,
        phase=phase,
        lost=own[place] * _NANOSECONDS,
    )


def _lost_in(meetings: _Meetings, rank: int, place: int, late: float) -> tuple[int | None, ExchangePhase | None]:
    """In which call of the last step it takes longest, compared with the fastest; outside, if not in the model.

    Where there are several backward passes between, the last step is one of them, and has its share of what is lost.
    """
    run, fastest = meetings.runs[rank], meetings.fastest(rank, place)
    if fastest is None or run.exchanges[place].at is None:
        return None, None
    part = min(1.0, _period(run) / _gap(run))
    mine, theirs = _spent(run, place), _spent(meetings.runs[fastest[0]], fastest[1])
    more = {key: spent - theirs.get(key, 0) for key, spent in mine.items() if key[0] is not None}
    longest = max(more, key=lambda key: more[key], default=None)
    if longest is not None and more[longest] > part * late / 2:
        return longest
    return None, "outside" if part > _IS_WHOLE else None


def _spent(run: RunFacts, place: int) -> dict[tuple[int | None, ExchangePhase], int]:
    """Before a collective, since the one before: in which call."""
    end = run.exchanges[place].at
    if end is None:
        return {}
    begin = run.exchanges[place - 1].at if place else min(0, end)
    return spent_within(run.timeline, begin or 0, end)
