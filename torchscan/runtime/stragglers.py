"""Who keeps the other processes waiting, and in which module: from when each came to what they do together.

Between two collectives each process has work of its own. It begins when the process came to the first of them or, where it
had to wait there, when the last process did::

    work(k) = max(0, arrival(k) − max(arrival(k − 1), last arrival(k − 1)))
    late(k) = work(k) − min over the group of work(k)

Of each collective the median of the steps counts, and of a process all collectives of a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.runtime.exchanges import Exchange, ExchangePhase, spent_within
from torchscan.runtime.run import RunFacts
from torchscan.units import duration, share

_NANOSECONDS = 1e-9
#: of a step: what is less is not worth a word
_LEAST_SHARE = 0.05
#: a collective, by its group and number there
_Meeting = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A process that the others wait for."""

    rank: int
    #: seconds of a step, in the median, that it takes longer than the fastest, and what of the step that is
    seconds: float
    share: float
    #: the module in which it loses most of them before a collective, and how many; "": outside the model
    layer: str
    type_name: str
    phase: ExchangePhase
    lost: float
    #: the collective in which the others wait for it, and the module that calls it
    kind: str
    waits_in: str

    def __str__(self) -> str:
        """In a sentence."""
        named = f"in {self.layer or 'the model itself'} ({self.type_name}), {self.phase}"
        where = named if self.type_name else "outside the model"
        behind = f"process {self.rank} is {duration(self.seconds)} behind the others in each step ({share(self.share)})"
        of = f" of {self.waits_in}" if self.waits_in else ""
        return f"{behind}, {duration(self.lost)} of that {where}; they wait for it in the next {self.kind}{of}"


def lateness(runs: Sequence[RunFacts]) -> dict[int, float]:
    """Of each process by its rank: seconds of a step."""
    return {rank: sum(each.values()) * _NANOSECONDS for rank, each in _late(runs).items()}


def stragglers(runs: Sequence[RunFacts]) -> tuple[Straggler, ...]:
    """Those that are behind by more than 5 % of a step, and more than most; the one that is furthest behind first."""
    late = _late(runs)
    totals = {rank: sum(each.values()) for rank, each in late.items()}
    usual = statistics.median_low(totals.values()) if totals else 0
    by_rank = {run.process.rank: run for run in runs if run.process is not None}
    behind = [rank for rank, total in totals.items() if total - usual > _LEAST_SHARE * _step(by_rank[rank])]
    return tuple(_straggler(by_rank, rank, late) for rank in sorted(behind, key=lambda rank: -totals[rank]))


def _step(run: RunFacts) -> float:
    """Nanoseconds."""
    return (run.period.median or run.forward.median + run.backward.median) / _NANOSECONDS


class _Arrival(NamedTuple):
    """When a process came to a collective: to which of its own, in which of its steps."""

    place: int
    step: int
    when: int


def _late(runs: Sequence[RunFacts]) -> dict[int, dict[int, float]]:
    """Of each process, by the place of a collective among its own: nanoseconds."""
    known = [(run.process.rank, run) for run in runs if run.process is not None and run.exchanges]
    arrivals = {rank: _arrivals(run.exchanges) for rank, run in known}
    together: dict[_Meeting, dict[int, int]] = {}
    for rank, own in arrivals.items():
        for meeting, arrival in own.items():
            together.setdefault(meeting, {})[rank] = arrival.when
    work = {rank: _work(own, together) for rank, own in arrivals.items()}
    return {rank: _in_median(own, work, together, rank) for rank, own in arrivals.items()}


def _arrivals(exchanges: Sequence[Exchange]) -> dict[_Meeting, _Arrival]:
    """In their order."""
    found = [
        ((each.group, each.ranks, number), _Arrival(place, step, when))
        for place, each in enumerate(exchanges)
        for step, (number, when) in enumerate(zip(each.numbers, each.arrivals, strict=True))
    ]
    return dict(sorted(found, key=lambda each: each[1].when))


def _work(own: Mapping[_Meeting, _Arrival], together: Mapping[_Meeting, Mapping[int, int]]) -> dict[_Meeting, int]:
    """What a process did for itself before each, but the first, of which nobody knows since when."""
    found, begin = {}, None
    for meeting, arrival in own.items():
        if begin is not None:
            found[meeting] = max(0, arrival.when - begin)
        begin = max(together[meeting].values())
    return found


def _in_median(
    own: Mapping[_Meeting, _Arrival],
    work: Mapping[int, Mapping[_Meeting, int]],
    together: Mapping[_Meeting, Mapping[int, int]],
    rank: int,
) -> dict[int, float]:
    late: dict[int, list[int]] = {}
    for meeting, arrival in own.items():
        others = [work[each][meeting] for each in together[meeting] if meeting in work[each]]
        if meeting in work[rank] and len(others) > 1:
            late.setdefault(arrival.place, []).append(work[rank][meeting] - min(others))
    return {place: statistics.median(each) for place, each in late.items()}


def _straggler(runs: Mapping[int, RunFacts], rank: int, late: Mapping[int, Mapping[int, float]]) -> Straggler:
    run, own = runs[rank], late[rank]
    place = max(own, key=lambda each: own[each])
    call, phase = _lost_in(run, runs[min(late, key=lambda each: late[each].get(place, 0.0))], place, own[place])
    total = sum(own.values())
    return Straggler(
        rank=rank,
        seconds=total * _NANOSECONDS,
        share=total / _step(run),
        kind=run.exchanges[place].kind,
        waits_in="" if (within := run.exchanges[place].call) is None else run.calls[within].path,
        layer="" if call is None else run.calls[call].path,
        type_name="" if call is None else run.calls[call].type_name,
        phase=phase,
        lost=own[place] * _NANOSECONDS,
    )


def _lost_in(run: RunFacts, other: RunFacts, place: int, late: float) -> tuple[int | None, ExchangePhase]:
    """In which call it takes longest, compared with another process; in none, if most of that is not in the model."""
    mine, theirs = _spent(run, place), _spent(other, place)
    more = {key: spent - theirs.get(key, 0) for key, spent in mine.items() if key[0] is not None}
    longest = max(more, key=lambda key: more[key], default=None)
    return longest if longest is not None and more[longest] > late / 2 else (None, "outside")


def _spent(run: RunFacts, place: int) -> dict[tuple[int | None, ExchangePhase], int]:
    """Before a collective, since the one before: in which call."""
    if place >= len(run.exchanges):
        return {}
    begin = run.exchanges[place - 1].at if place else min(0, run.exchanges[place].at)
    return spent_within(run.timeline, begin, run.exchanges[place].at)
