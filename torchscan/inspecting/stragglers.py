"""Stragglers: ranks that keep the others waiting, with their module, from arrivals at collectives.

Between two collectives each rank has work of its own. It starts when the rank arrived at the first
of them or, if it waited there for the last rank, when that arrived::

    start(k) = last arrival(k − 1) if arrival(k) is not before that, else arrival(k − 1)
    work(k) = arrival(k) − start(k)
    usual work(k) = median of work(k) over the other ranks of the group
    lag(k) = min(work(k) − usual work(k), arrival(k) − first arrival(k))

The second bound is for collectives in which ranks do not wait: a rank that is late there is late at
the next ones too, and has not lost the time again. The lag of a rank is the median over steps of
the sum over their collectives, if that is above zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchscan.inspecting.exchanges import ExchangePhase, time_by_place
from torchscan.inspecting.meetings import Meetings
from torchscan.inspecting.run import RunFacts
from torchscan.notes import describe

_NANOSECONDS = 1e-9
#: of a step: what is less is not worth a word
_MIN_SHARE = 0.05
#: of the time between two equal collectives, what a step is if nothing but it is between them
_IS_WHOLE = 0.7


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
        for rank, each in Meetings(runs).steps.items()
    }


def stragglers(runs: Sequence[RunFacts]) -> tuple[Straggler, ...]:
    """Return the ranks that lag by more than 5 % of a step in three of four steps, worst first."""
    meetings = Meetings(runs)
    lags: dict[int, float] = {}
    for rank, of_steps in meetings.steps.items():
        first_quarter = sorted(of_steps)[len(of_steps) // 4]
        if first_quarter > _MIN_SHARE * _gap(meetings.runs[rank]):
            lags[rank] = statistics.median(of_steps)
    worst_first = sorted(lags, key=lambda rank: -lags[rank])
    return tuple(_straggler(meetings, rank, lags[rank]) for rank in worst_first)


def _gap(run: RunFacts) -> float:
    """Return the nanoseconds from a collective to the same one in the next step.

    There may be several backward passes between them.
    """
    gaps = [after - before for each in run.exchanges for before, after in pairwise(each.arrivals)]
    return statistics.median(gaps) if gaps else _period(run)


def _period(run: RunFacts) -> float:
    return (run.period.median or run.forward.median + run.backward.median) / _NANOSECONDS


def _straggler(meetings: Meetings, rank: int, total: float) -> Straggler:
    run, own = meetings.runs[rank], meetings.lags[rank]
    place = max(own, key=lambda each: own[each])
    exchange = run.exchanges[place]
    index, phase = _lost_in(meetings, rank, place, own[place])
    layer = type_name = waits_in = ""
    if index is not None:
        call = run.calls[index]
        layer, type_name = call.path, call.type_name
    if exchange.call is not None:
        waits_in = run.calls[exchange.call].path
    return Straggler(
        rank=rank,
        seconds=total * _NANOSECONDS,
        share=total / _gap(run),
        is_of_steps=_part(run) > _IS_WHOLE,
        kind=exchange.kind,
        waits_in=waits_in,
        layer=layer,
        type_name=type_name,
        phase=phase,
        lost=min(own[place], total) * _NANOSECONDS,
    )


def _lost_in(
    meetings: Meetings, rank: int, place: int, late: float
) -> tuple[int | None, ExchangePhase | None]:
    """Return the call of the last step that takes longest, compared with the fastest rank.

    It is "outside" if that is not in the model. Where there are several backward passes between,
    the last step is one of them, and has its share of what is lost.
    """
    run, fastest = meetings.runs[rank], meetings.fastest(rank, place)
    if fastest is None or run.exchanges[place].at is None:
        return None, None
    other, other_place = fastest
    theirs = _spent(meetings.runs[other], other_place)
    more: dict[tuple[int | None, ExchangePhase], int] = {}
    for (call, phase), spent in _spent(run, place).items():
        if call is not None:
            more[call, phase] = spent - theirs.get((call, phase), 0)
    longest = max(more, key=lambda key: more[key], default=None)
    part = _part(run)
    half = part * late / 2
    if longest is not None and more[longest] > half:
        return longest
    if _unowned(run, place) > half:
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
    last = max(each.end for each in nodes)
    begin, end = max(begin, nodes[0].start), min(end, last)
    times = time_by_place(run.timeline, begin, end).items()
    inside = sum(spent for (_, phase), spent in times if phase == "backward")
    return max(0, end - begin) - inside


def _spent(run: RunFacts, place: int) -> dict[tuple[int | None, ExchangePhase], int]:
    """Return the nanoseconds in each call before a collective, since the one before."""
    end = run.exchanges[place].at
    if end is None:
        return {}
    begin = run.exchanges[place - 1].at if place else min(0, end)
    return time_by_place(run.timeline, begin or 0, end)
