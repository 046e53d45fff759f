"""Times of calls and nodes on a CUDA device, from events in their streams, without waiting.

Between two events, the device may also have waited for the host, which may have been checking
values for torchscan. So the moments are computed at which the device would have passed each event
without that. If it passes an event long after the host recorded it, it was busy until then, and the
checks cost nothing; if it passes the event at once, it had nothing left to do.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate, pairwise
from time import perf_counter_ns
from typing import NamedTuple

import torch

from torchscan.torch_versions import current_stream

_MILLISECOND = 1_000_000


class EventPool:
    """Events of CUDA that are used again and again: making one takes longer than recording it."""

    def __init__(self) -> None:
        #: an event belongs to the device in which it was recorded first
        self._free: dict[torch.device, list[torch.cuda.Event]] = defaultdict(list)

    def record(self, device: torch.device) -> torch.cuda.Event:
        """One in the current stream of a device."""
        stream = current_stream(device.index)
        free = self._free[stream.device]
        event = free.pop() if free else torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def give_back(self, event: torch.cuda.Event) -> None:
        """It has been read."""
        self._free[event.device].append(event)


class _Mark(NamedTuple):
    """A moment: on the device, on the host, and how long had been looked until then."""

    event: torch.cuda.Event
    host: int
    looked: int


class DeviceMark(NamedTuple):
    """A mark in nanoseconds: when the host set it, and when the device passed it.

    It has the time that the host had spent on checks until then.
    The two clocks need not start at the same time.
    """

    host: int
    looked: int
    device: int


class _Span(NamedTuple):
    """The time of a call, or of a node that it created, from one mark to another."""

    call: int
    is_forward: bool
    first: int
    last: int


class DeviceTimes:
    """The times of one step on the device, in nanoseconds."""

    def __init__(self, pool: EventPool, device: torch.device) -> None:
        self._pool = pool
        self.device = device
        #: autograd has threads of its own
        self._lock = threading.Lock()
        self._marks: list[_Mark] = []
        self._open: dict[tuple[int, bool], int] = {}
        self._spans: list[_Span] = []
        #: marks after which what runs is ours until the next one
        self._overhead_marks: set[int] = set()
        #: by index of a call, once they are read; of the backward pass, what nodes that it made
        #: took
        self.forward: dict[int, int] = {}
        self.backward: dict[int, int] = defaultdict(int)
        #: from the start of the first node to the end of the last
        self.backward_span = 0
        #: of the time between the first and the last mark, that in which the device had done what
        #: it was given, and all of it
        self.waiting = self.whole = 0

    def begin(self, call: int, looked: int, *, is_forward: bool) -> None:
        """A call, or a node that it made, starts."""
        self._open[call, is_forward] = self._mark(looked)

    def end(self, call: int, looked: int, *, is_forward: bool) -> None:
        """It has ended."""
        first = self._open.pop((call, is_forward), None)
        if first is not None:
            self._spans.append(_Span(call, is_forward, first, self._mark(looked)))

    def begin_overhead(self, looked: int) -> None:
        """Count the device's work as overhead from now on."""
        self._overhead_marks.add(self._mark(looked))

    def end_overhead(self, looked: int) -> None:
        """Until now."""
        self._mark(looked)

    def _mark(self, looked: int) -> int:
        with self._lock:
            self._marks.append(_Mark(self._pool.record(self.device), perf_counter_ns(), looked))
            return len(self._marks) - 1

    @property
    def is_over(self) -> bool:
        """True if the device has passed all marks."""
        return not self._marks or self._marks[-1].event.query()

    def read(self) -> None:
        """Read the device's times, after waiting for it if necessary."""
        for mark in self._marks[-1:]:
            mark.event.synchronize()
        at = self._clock()
        for span in self._spans:
            took = max(0, at[span.last] - at[span.first])
            if span.is_forward:
                self.forward[span.call] = took
            else:
                self.backward[span.call] += took
        backward = [span for span in self._spans if not span.is_forward]
        if backward:
            end = max(at[span.last] for span in backward)
            self.backward_span = end - min(at[span.first] for span in backward)
        for mark in self._marks:
            self._pool.give_back(mark.event)
        self._marks, self._spans = [], []

    def _clock(self) -> list[int]:
        first = self._marks[0].event if self._marks else None
        passed = [
            round(first.elapsed_time(mark.event) * _MILLISECOND)
            for mark in self._marks
            if first is not None
        ]
        moments = [
            DeviceMark(mark.host, mark.looked, device)
            for mark, device in zip(self._marks, passed, strict=True)
        ]
        at = undisturbed(moments, self._overhead_marks)
        own = [moment.host - moment.looked for moment in moments]
        last = max((span.last for span in self._spans), default=0)
        waiting = []
        for (before, after), host in zip(pairwise(at), own[1:], strict=True):
            waiting.append(after - before if after == host else 0)
        self.waiting = sum(waiting[:last])
        self.whole = at[last] - at[0] if at else 0
        return at


def undisturbed(moments: Sequence[DeviceMark], ours: Container[int] = ()) -> list[int]:
    """Return when the device would have passed each mark without torchscan's checks.

    It passes a mark once the host has recorded it and the work before it is done: ``at[i] =
    max(host[i], at[i - 1] + work[i])``. The host's clock stands still during checks. Time after the
    marks numbered in ``ours`` is not work.
    """
    device = accumulate(
        (moment.device for moment in moments), max
    )  # other streams may be ahead of this one
    moments = [
        moment._replace(device=passed) for moment, passed in zip(moments, device, strict=True)
    ]
    at = [moment.host - moment.looked for moment in moments[:1]]
    for moment, work in zip(moments[1:], _works(moments, ours), strict=True):
        at.append(max(moment.host - moment.looked, at[-1] + work))
    return at


def _works(moments: Sequence[DeviceMark], ours: Container[int]) -> Iterator[int]:
    """Yield the device's work between each mark and the next.

    It is all of the time if the second mark was recorded before the first was passed. Otherwise the
    device may have waited for the host: it was busy at least from the moment that the host recorded
    the second mark until it passed that mark.
    """
    least = min(
        (moment.device - moment.host for moment in moments), default=0
    )  # it passes a mark at once
    for number, (one, two) in enumerate(pairwise(moments)):
        was_there = one.device - least >= two.host
        busy = two.device - (one.device if was_there else max(one.device, two.host + least))
        yield 0 if number in ours else max(0, busy)
