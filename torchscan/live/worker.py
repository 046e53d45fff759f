"""The process that works out distributions and writes them down, so that training need not."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchscan.live.channel import Line, Message, mapped
from torchscan.live.distributions import distributions_of
from torchscan.live.sampled import Sampled
from torchscan.live.schema import Series, Watched
from torchscan.live.store import Store, StoreError

#: seconds after which it looks whether its parent is still there
_LOOKS = 0.5
#: and for how long it goes on if it is not
_AFTERWARDS = 1.0
#: how much less important than training it is to the machine
_NICE = 10


class Worker:
    """Does what it is told over the line, until the line is closed."""

    def __init__(self, line: Line, store: Store, parent: int) -> None:
        self._line = line
        self._store = store
        self._memory: mmap.mmap | None = None
        #: by their numbers on the line
        self._series: list[Series] = []
        self._has_failed = False
        self._parent = parent
        self._until = 0.0
        self._answers: dict[str, Callable[[Message], None]] = {
            "memory": self._take_memory,
            "series": self._take_series,
            "step": self._take_step,
            "from": lambda message: self._store.forget_from(message["step"]),
            "note": lambda message: self._store.note(message["what"]),
        }

    def work(self) -> None:
        """Until nobody is there any more. What was said before is done, as far as there is time."""
        while self._line.is_open and not self._has_no_time:
            select.select([self._line.socket], [] if self._line.has_said_all else [self._line.socket], [], _LOOKS)
            self._line.flush()
            for message in self._line.heard():
                if not self._has_no_time:
                    self._answer(message)
        self._store.close()

    @property
    def _has_no_time(self) -> bool:
        """Whether the parent was killed, and some time ago."""
        if os.getppid() == self._parent:
            return False
        self._until = self._until or time.monotonic() + _AFTERWARDS
        return time.monotonic() > self._until

    def _answer(self, message: Message) -> None:
        try:
            self._answers[message["is"]](message)
            self._has_failed = False
        except StoreError as error:  # the disk may be full now, and not later
            if not self._has_failed:
                self._line.say({"is": "failed", "why": str(error)})
            self._has_failed = True
        finally:
            if message["is"] == "step":
                self._line.say({"is": "read"})

    def _take_memory(self, message: Message) -> None:
        """Its file is needed no more: the memory stays as long as somebody has it."""
        path = Path(message["path"])
        self._memory = mapped(path)
        path.unlink()

    def _take_series(self, message: Message) -> None:
        self._series += [Series(**each) for each in message["series"]]

    def _take_step(self, message: Message) -> None:
        assert self._memory is not None  # noqa: S101 - it came before
        sampled = Sampled.read(self._memory, message["at"], message)
        found = {self._store.number_of(self._series[number]): each for number, each in distributions_of(sampled).items()}
        times: Any = {name: message[name] for name in ("step", "phase", "number", "time")}
        self._store.write(Watched(**times, distributions=found))


def main() -> None:
    """``python -c … LINE CONFIG``: the number of the line's file, and what else there is to know."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever trains decides when it is over
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    torch.set_num_threads(1)
    number, config = int(sys.argv[1]), json.loads(sys.argv[2])
    line = Line(socket.socket(fileno=number))
    try:
        store = Store(Path(config["path"]), config["about"])
    except StoreError as error:
        line.say({"is": "failed", "why": str(error)})
        return
    line.say({"is": "ready"})
    Worker(line, store, config["parent"]).work()
