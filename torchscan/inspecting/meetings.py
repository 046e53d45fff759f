"""Arrivals of all ranks at their collectives, and how late each is."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from torchscan.inspecting.exchanges import Exchange
from torchscan.inspecting.run import RunFacts

#: steps by which anything can be said
_MIN_STEPS = 2
#: a collective, by its group and number there
_Meeting = tuple[str, tuple[int, ...], int]


class _Arrival(NamedTuple):
    """The time when a rank arrived at a collective, with its place in a step."""

    place: int
    step: int
    when: int


class Meetings:
    """Arrivals of all ranks at their collectives."""

    def __init__(self, runs: Sequence[RunFacts]) -> None:
        self.runs: dict[int, RunFacts] = {}
        for run in runs:
            if run.process is not None and run.exchanges:
                self.runs[run.process.rank] = run
        self.arrivals = {rank: _arrivals(run.exchanges) for rank, run in self.runs.items()}
        self._times_by_meeting: dict[_Meeting, dict[int, int]] = {}
        for rank, own in self.arrivals.items():
            for meeting, arrival in own.items():
                self._times_by_meeting.setdefault(meeting, {})[rank] = arrival.when
        self._work = {rank: self._work_of(own) for rank, own in self.arrivals.items()}

        #: of each process, by the place of a collective among its own: nanoseconds, in the median
        #: of the steps
        self.lags: dict[int, dict[int, float]] = {}
        #: of each process, of each step
        self.steps: dict[int, list[float]] = {}
        for rank, own in self.arrivals.items():
            self._sum_up(rank, self._late_of(rank, own))

    def _work_of(self, own: Mapping[_Meeting, _Arrival]) -> dict[_Meeting, int]:
        """Return a rank's own work before each collective but the first.

        When the work before that one began is not known.
        """
        found: dict[_Meeting, int] = {}
        for (before, came), (meeting, arrival) in pairwise(own.items()):
            last = max(self._times_by_meeting[before].values())
            start = last if arrival.when >= last else came.when
            found[meeting] = arrival.when - start
        return found

    def _late_of(self, rank: int, own: Mapping[_Meeting, _Arrival]) -> list[tuple[_Arrival, float]]:
        late: list[tuple[_Arrival, float]] = []
        for meeting, arrival in own.items():
            works = self._works(meeting)
            if rank in works and len(works) > 1:
                usual = statistics.median(work for each, work in works.items() if each != rank)
                first = min(self._times_by_meeting[meeting].values())
                late.append((arrival, min(works[rank] - usual, arrival.when - first)))
        return late

    def _sum_up(self, rank: int, late: Iterable[tuple[_Arrival, float]]) -> None:
        """Set the lags of a rank by collective and by step."""
        lags_by_place: dict[int, list[float]] = defaultdict(list)
        lag_by_step: dict[int, float] = defaultdict(float)
        for arrival, lag in late:
            lags_by_place[arrival.place].append(lag)
            lag_by_step[arrival.step] += lag
        medians = {place: statistics.median(lags) for place, lags in lags_by_place.items()}
        # When the work before the first collective of the first step began is not known.
        sums = [lag for step, lag in lag_by_step.items() if step]
        self.lags[rank] = medians
        if len(sums) >= _MIN_STEPS:
            self.steps[rank] = sums

    def _works(self, meeting: _Meeting) -> dict[int, int]:
        return {
            rank: self._work[rank][meeting]
            for rank in self._times_by_meeting[meeting]
            if meeting in self._work[rank]
        }

    def fastest(self, rank: int, place: int) -> tuple[int, int] | None:
        """Return the rank that arrives at a collective with the least work, in the last step."""
        newest_first = reversed(self.arrivals[rank].items())
        meetings = (each for each, arrival in newest_first if arrival.place == place)
        meeting = next(meetings, None)
        works = {} if meeting is None else self._works(meeting)
        if meeting is None or not works:
            return None
        other = min(works, key=lambda each: works[each])
        return other, self.arrivals[other][meeting].place


def _arrivals(exchanges: Sequence[Exchange]) -> dict[_Meeting, _Arrival]:
    """Return the arrivals of a rank in their order."""
    found: list[tuple[_Meeting, _Arrival]] = []
    for place, each in enumerate(exchanges):
        numbers = zip(each.numbers, each.arrivals, strict=True)
        for step, (number, when) in enumerate(numbers):
            meeting = (each.group, each.ranks, number)
            found.append((meeting, _Arrival(place, step, when)))
    found.sort(key=lambda pair: pair[1].when)
    return dict(found)
