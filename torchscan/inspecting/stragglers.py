"""Stragglers: ranks that keep the others waiting, with their module, from arrivals at collectives.

Between two collectives each rank has work of its own. It starts when the rank arrived at the first
of them or, if it waited there for the last rank, when that arrived::

    work(k) = arrival(k) − (last arrival(k − 1) if arrival(k) is not before that, else arrival(k − 1))
    lag(k) = min(work(k) − median of work(k) over the other ranks of the group, arrival(k) − first arrival(k))

The second bound is for collectives in which ranks do not wait: a rank that is late there is late at
the next ones too, and has not lost the time again. The lag of a rank is the median over steps of
the sum over their collectives, if that is above zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from torchscan.inspecting.exchanges import Exchange, ExchangePhase, time_by_place
from torchscan.inspecting.run import RunFacts
from torchscan.notes import describe

_NANOSECONDS = 1e-9
#: of a step: what is less is not worth a word
_MIN_SHARE = 0.05
#: of the time between two equal collectives, what a step is if nothing but it is between them
_IS_WHOLE = 0.7
#: steps by which anything can be said
_MIN_STEPS = 2
#: a collective, by its group and number there
_Meeting = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A process that the others wait for."""

    rank: int
    #: median lag per step, in seconds
    seconds: float
    #: lag as a share of the step
    share: float
    #: True if each step has its collectives; else several backward passes share a set
    is_of_steps: bool
    #: path of the module that loses most time before a collective; not known if ``phase`` is None
    layer: str
    type_name: str
    phase: ExchangePhase | None
    #: seconds that it loses there
    lost: float
    #: kind of the collective in which the others wait
    kind: str
    #: path of the module that calls this collective
    waits_in: str

    def __str__(self) -> str:
        """Return the sentence about the rank."""
        return describe(self)


def lateness(runs: Sequence[RunFacts]) -> dict[int, float]:
    """Return the lag of each rank in seconds per step, as far as there are enough steps."""
    return {
        rank: max(0.0, statistics.median(each)) * _NANOSECONDS
        for rank, each in _Meetings(runs).steps.items()
    }


def stragglers(runs: Sequence[RunFacts]) -> tuple[Straggler, ...]:
    """Return the ranks that lag by more than 5 % of a step in three of four steps, worst first."""
    meetings = _Meetings(runs)
    behind = {
        rank: statistics.median(each)
        for rank, each in meetings.steps.items()
        if sorted(each)[len(each) // 4] > _MIN_SHARE * _gap(meetings.runs[rank])
    }
    return tuple(
        _straggler(meetings, rank, behind[rank])
        for rank in sorted(behind, key=lambda rank: -behind[rank])
    )


def _gap(run: RunFacts) -> float:
    """Nanoseconds from a collective to the same one in the next step, which several backward passes may be before."""
    gaps = [after - before for each in run.exchanges for before, after in pairwise(each.arrivals)]
    return statistics.median(gaps) if gaps else _period(run)


def _period(run: RunFacts) -> float:
    return (run.period.median or run.forward.median + run.backward.median) / _NANOSECONDS


class _Arrival(NamedTuple):
    """When a process came to a collective, and which one it is of which step."""

    place: int
    step: int
    when: int


class _Meetings:
    """Arrivals of all ranks at their collectives."""

    def __init__(self, runs: Sequence[RunFacts]) -> None:
        self.runs = {
            run.process.rank: run for run in runs if run.process is not None and run.exchanges
        }
        self.arrivals = {rank: _arrivals(run.exchanges) for rank, run in self.runs.items()}
        self._times_by_meeting: dict[_Meeting, dict[int, int]] = {}
        for rank, own in self.arrivals.items():
            for meeting, arrival in own.items():
                self._times_by_meeting.setdefault(meeting, {})[rank] = arrival.when
        self._work = {rank: self._work_of(own) for rank, own in self.arrivals.items()}
        late = {rank: self._late_of(rank, own) for rank, own in self.arrivals.items()}
        #: of each process, by the place of a collective among its own: nanoseconds, in the median of the steps
        self.lags = {
            rank: _medians((arrival.place, each) for arrival, each in found)
            for rank, found in late.items()
        }
        #: of each process, of each step
        self.steps = {
            rank: sums for rank, found in late.items() if len(sums := _sums(found)) >= _MIN_STEPS
        }

    def _work_of(self, own: Mapping[_Meeting, _Arrival]) -> dict[_Meeting, int]:
        """Return a rank's own work before each collective but the first.

        When the work before that one began is not known.
        """
        found: dict[_Meeting, int] = {}
        for (before, came), (meeting, arrival) in pairwise(own.items()):
            last = max(self._times_by_meeting[before].values())
            found[meeting] = arrival.when - (last if arrival.when >= last else came.when)
        return found

    def _late_of(self, rank: int, own: Mapping[_Meeting, _Arrival]) -> list[tuple[_Arrival, float]]:
        late: list[tuple[_Arrival, float]] = []
        for meeting, arrival in own.items():
            works = self._works(meeting)
            if rank in works and len(works) > 1:
                usual = statistics.median(work for each, work in works.items() if each != rank)
                late.append(
                    (
                        arrival,
                        min(
                            works[rank] - usual,
                            arrival.when - min(self._times_by_meeting[meeting].values()),
                        ),
                    )
                )
        return late

    def _works(self, meeting: _Meeting) -> dict[int, int]:
        return {
            rank: self._work[rank][meeting]
            for rank in self._times_by_meeting[meeting]
            if meeting in self._work[rank]
        }

    def fastest(self, rank: int, place: int) -> tuple[int, int] | None:
        """Return the rank that arrives at a collective with the least work, in the last step."""
        meeting = next(
            (
                each
                for each, arrival in reversed(self.arrivals[rank].items())
                if arrival.place == place
            ),
            None,
        )
        works = {} if meeting is None else self._works(meeting)
        if meeting is None or not works:
            return None
        other = min(works, key=lambda each: works[each])
        return other, self.arrivals[other][meeting].place


def _medians(found: Iterable[tuple[int, float]]) -> dict[int, float]:
    by_place: dict[int, list[float]] = {}
    for place, each in found:
        by_place.setdefault(place, []).append(each)
    return {place: statistics.median(each) for place, each in by_place.items()}


def _sums(found: Iterable[tuple[_Arrival, float]]) -> list[float]:
    """Return the sum of each step but the first.

    When the work before its first collective began is not known.
    """
    by_step: dict[int, float] = {}
    for arrival, each in found:
        by_step[arrival.step] = by_step.get(arrival.step, 0.0) + each
    return [each for step, each in by_step.items() if step]


def _arrivals(exchanges: Sequence[Exchange]) -> dict[_Meeting, _Arrival]:
    """In their order."""
    found = [
        ((each.group, each.ranks, number), _Arrival(place, step, when))
        for place, each in enumerate(exchanges)
        for step, (number, when) in enumerate(zip(each.numbers, each.arrivals, strict=True))
    ]
    return dict(sorted(found, key=lambda each: each[1].when))


def _straggler(meetings: _Meetings, rank: int, total: float) -> Straggler:
    run, own = meetings.runs[rank], meetings.lags[rank]
    place = max(own, key=lambda each: own[each])
    call, phase = _lost_in(meetings, rank, place, own[place])
    return Straggler(
        rank=rank,
        seconds=total * _NANOSECONDS,
        share=total / _gap(run),
        is_of_steps=_part(run) > _IS_WHOLE,
        kind=run.exchanges[place].kind,
        waits_in="" if (within := run.exchanges[place].call) is None else run.calls[within].path,
        layer="" if call is None else run.calls[call].path,
        type_name="" if call is None else run.calls[call].type_name,
        phase=phase,
        lost=min(own[place], total) * _NANOSECONDS,
    )


def _lost_in(
    meetings: _Meetings, rank: int, place: int, late: float
) -> tuple[int | None, ExchangePhase | None]:
    """In which call of the last step it takes longest, compared with the fastest; outside, if not in the model.

    Where there are several backward passes between, the last step is one of them, and has its share of what is lost.
    """
    run, fastest = meetings.runs[rank], meetings.fastest(rank, place)
    if fastest is None or run.exchanges[place].at is None:
        return None, None
    part = _part(run)
    mine, theirs = _spent(run, place), _spent(meetings.runs[fastest[0]], fastest[1])
    more = {key: spent - theirs.get(key, 0) for key, spent in mine.items() if key[0] is not None}
    longest = max(more, key=lambda key: more[key], default=None)
    if longest is not None and more[longest] > part * late / 2:
        return longest
    if _unowned(run, place) > part * late / 2:
        return None, "backward"
    return None, "outside" if part > _IS_WHOLE else None


def _part(run: RunFacts) -> float:
    """Return the share of a step in the time between two equal collectives.

    There may be several steps between them.
    """
    return min(1.0, _period(run) / _gap(run))


def _unowned(run: RunFacts, place: int) -> int:
    """Return the nanoseconds of backward pass before a collective in which no module's node ran."""
    nodes, end = run.timeline.backward, run.exchanges[place].at
    if end is None or not nodes:
        return 0
    begin = (run.exchanges[place - 1].at if place else None) or 0
    begin, end = max(begin, nodes[0].start), min(end, max(each.end for each in nodes))
    inside = sum(
        each
        for (_, phase), each in time_by_place(run.timeline, begin, end).items()
        if phase == "backward"
    )
    return max(0, end - begin) - inside


def _spent(run: RunFacts, place: int) -> dict[tuple[int | None, ExchangePhase], int]:
    """Before a collective, since the one before: in which call."""
    end = run.exchanges[place].at
    if end is None:
        return {}
    begin = run.exchanges[place - 1].at if place else min(0, end)
    return time_by_place(run.timeline, begin or 0, end)
