"""The process that works out distributions and writes them down, so that training need not."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

import torch

from torchscan.live.channel import Line, Message, take_memory
from torchscan.live.distributions import columns_of, saturated
from torchscan.live.guests import Guests, Statistic
from torchscan.live.packing import Distributions
from torchscan.live.parent import Parent
from torchscan.live.sampled import Sampled, SampledValues
from torchscan.live.schema import Announced, Series, Watched
from torchscan.live.sinks.sink import Seen, Sink
from torchscan.live.store import Store, StoreError
from torchscan.live.waiting import is_ready

#: seconds after which it looks whether its parent is still there, and for how long it goes on if it is not
_LOOKS, _AFTERWARDS = 0.25, 0.75
#: how much less important than training it is to the machine
_NICE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is to do."""

    path: Path
    about: Mapping[str, Any]
    #: who trains
    parent: int
    sinks: Sequence[Sink]
    custom: Mapping[str, Statistic]


class Worker:
    """Does what it is told over the line, until the line is closed."""

    def __init__(self, line: Line, file: int, store: Store, parent: Parent, task: Task) -> None:
        """``file``: of the memory in which the steps lie."""
        self._line, self._file = line, file
        self._store = store
        self._memory: mmap.mmap | None = None
        #: by their numbers on the line
        self._announced: list[Announced] = []
        #: their numbers in the file
        self._known: dict[int, int] = {}
        self._has_failed = self._has_nan = self._is_over = False
        self._guests = Guests(task.sinks, task.custom, self._tell)
        self._parent, self._folder = parent, task.path.parent
        self._answers: dict[str, Callable[[Message], None]] = {
            "memory": self._take_memory,
            "series": self._take_series,
            "step": self._take_step,
            "from": lambda message: self._store.forget_from(message["step"]),
            "reached": self._note_end,
            "raised": self._note_error,
            "note": lambda message: self._store.note(message["what"]),
        }

    def work(self) -> None:
        """Until nobody is there any more. What was said before is done, as far as there is time."""
        self._guests.open(self._folder)
        while self._line.is_open and not self._parent.was_gone(_AFTERWARDS):
            is_ready(self._line.socket, _LOOKS, EVENT_READ if self._line.has_said_all else EVENT_READ | EVENT_WRITE)
            self._line.flush()
            for message in self._line.heard():
                if not self._parent.was_gone(_AFTERWARDS):
                    self._answer(message)
        if not self._is_over:
            with contextlib.suppress(StoreError):
                self._store.tell({"ended": self._parent.ended_at or time.time()})
                self._store.note("the process that trains was gone without closing the run")
        self._guests.close()
        self._store.close()
        self._line.flush()

    def _answer(self, message: Message) -> None:
        try:
            self._answers[message["is"]](message)
            self._has_failed = False
        except Exception as error:  # the disk may be full now, and not later; or it is a mistake of ours, with this step
            if not self._has_failed:
                said = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                self._line.say({"is": "failed", "why": said[:300]})
            self._has_failed = True
        finally:
            if message["is"] == "step":
                self._line.say({"is": "read"})

    def _note_error(self, message: Message) -> None:
        what, when, lost_peer = message["what"], message["when"], message["lost_peer"]
        self._store.tell({"raised": what, "ended": when, "lost_peer": lost_peer})

    def _note_end(self, message: Message) -> None:
        self._is_over = True
        self._store.tell({"reached": message["step"], "closed": True})

    def _tell(self, what: str) -> None:
        self._line.say({"is": "told", "what": what})
        with contextlib.suppress(StoreError):
            self._store.note(what)

    def _take_memory(self, message: Message) -> None:
        self._memory = mmap.mmap(self._file, message["size"])

    def _take_series(self, message: Message) -> None:
        self._announced += [Announced(Series(**series), *rest) for series, *rest in message["series"]]

    def _take_step(self, message: Message) -> None:
        assert self._memory is not None  # noqa: S101 - it came before
        sampled = Sampled.read(self._memory, message["at"], message)
        numbers, rows = (column.tolist() for column in sampled.series.unbind(1))
        announced = [self._announced[number] for number in numbers]
        series = [each.series for each in announced]
        values = SampledValues(sampled, series)
        found = Distributions(
            columns=columns_of(sampled),
            numbers=range(len(series)),
            rows=rows,
            saturated=[math.nan if each.bounds is None else saturated(values[each.series], *each.bounds) for each in announced],
            can_die=[each.can_die for each in announced],
            custom=self._guests.figures([values[each] for each in series]) if self._guests.has_statistics else {},
        )
        times: Any = {name: message[name] for name in ("step", "phase", "number", "time")}
        try:
            self._store.write(Watched(**times, distributions=replace(found, numbers=self._stored(numbers))))
        except StoreError:
            self._known.clear()  # what was new may not be there
            raise
        finally:
            self._look_for_nan(message["step"], found, series)
            if self._guests.has_sinks:
                named = {each: found[place] for place, each in enumerate(series)}
                self._guests.show(Seen(**times, distributions=named, values=values))

    def _look_for_nan(self, step: int, found: Distributions, series: Sequence[Series]) -> None:
        """The first is told, once."""
        if self._has_nan or not any(found.columns.figures["nan"]):
            return
        self._has_nan = True
        wrong = [each.said for place, each in enumerate(series) if found.columns.figures["nan"][found.rows[place]]]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        self._tell(f"step {step}: NaN in {wrong[0]}{more}. torchscan.inspect(model) names the operator that makes the first")

    def _stored(self, numbers: Sequence[int]) -> list[int]:
        """The numbers that series have in the file."""
        for number in numbers:
            if number not in self._known:
                self._known[number] = self._store.number_of(self._announced[number].series)
        return [self._known[number] for number in numbers]


def serve(end: socket.socket, task: Task, parent: Parent) -> None:
    """Work, as a process of its own, with this end of the line."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever trains decides when it is over, and may have a checkpoint to write
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    torch.set_num_threads(1)
    try:
        file = take_memory(end)
    except (EOFError, OSError):
        return
    line = Line(end)
    try:
        store = Store(task.path, task.about)
    except StoreError as error:
        line.say({"is": "failed", "why": str(error)})
        return
    Worker(line, file, store, parent, task).work()
