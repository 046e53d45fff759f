"""The worker as the training process sees it: started, spoken to, and let go of."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.live.channel import Message, Outlet
from torchscan.live.guests import Statistic
from torchscan.live.launched import processes_here, rank_here
from torchscan.live.lock import Lock
from torchscan.live.lost_peers import is_of_lost_peer
from torchscan.live.probe import Numbers
from torchscan.live.sampled import Sampled
from torchscan.live.schema import Phase
from torchscan.live.sinks.sink import Sink
from torchscan.live.starting import StartMethod, start_worker
from torchscan.live.store import Reader, StoreError
from torchscan.live.telling import tell
from torchscan.live.worker import Task

#: seconds to wait for the worker when everything is over
_PATIENCE = 20.0


class Process:
    """Writes what it is given by way of a process of its own."""

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any],
        *,
        sinks: Sequence[Sink],
        custom: Mapping[str, Statistic],
        start: StartMethod,
        step: int | None,
    ) -> None:
        """``step``: what was recorded from there on is recorded anew."""
        self.folder = folder
        #: of what this process writes
        self.path = folder / f"rank{rank_here()}.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path.with_suffix(".lock"))
        except OSError as error:
            raise InputError(f"the run {str(folder)!r} cannot be written: {error}") from error
        #: of the processes that train together
        self.is_first = rank_here() == 0
        #: the training step that would have come next when the run was closed
        self.reached = 0
        #: of each phase the last step that is there, and its number
        self.last = self._last(about, step)
        self.dropped = 0
        ours, theirs = socket.socketpair()
        self._outlet = Outlet(ours)
        about = {**about, "processes": processes_here(), "closed": False, "ended": None, "raised": None, "lost_peer": False}
        task = Task(path=self.path, about=about, parent=os.getpid(), sinks=sinks, custom=custom)
        try:
            with theirs:
                self.number, self._wait = start_worker(start, ours, theirs, task)
        except BaseException:
            self._outlet.close()
            self._lock.release()
            raise
        self._is_gone = self._is_closed = False

    def _last(self, about: Mapping[str, Any], step: int | None) -> dict[Phase, tuple[int, int]]:
        if not self.path.exists():
            return {}
        try:
            reader = Reader(self.path)
            phases: tuple[Phase, ...] = ("train", "eval")
            found = {phase: reader.last(phase, step) for phase in phases}
            of = reader.about()
            self.reached = int(of.get("reached", 0))
            reader.close()
        except StoreError as error:
            self._lock.release()
            raise InputError(f"the run cannot go on: {error}") from error
        if None not in (of.get("fingerprint"), about["fingerprint"]) and of["fingerprint"] != about["fingerprint"]:
            self._lock.release()
            said = f"{str(self.path.parent)!r} is the run of a {of['model']} with other parameters"
            raise InputError(f"{said}: give this model a folder of its own")
        return {phase: last for phase, last in found.items() if last is not None}

    def say(self, message: Message) -> None:
        """Tell the worker."""
        self._outlet.line.say(message)

    def put(self, sampled: Sampled, numbers: Numbers) -> None:
        """Hand over a step, or count it as dropped. Nobody waits."""
        self._hear()
        if self._is_gone or not len(sampled.samples):
            return
        if numbers.new:
            self.say({"is": "series", "series": [(asdict(each.series), *each[1:]) for each in numbers.new]})
            numbers.new.clear()
        self.dropped += not self._outlet.put(sampled)

    def _hear(self) -> None:
        self._take_messages()
        self._outlet.line.flush()
        if not self._outlet.line.is_open and not self._is_gone:
            self._is_gone = True
            tell("nothing is watched any more: the process that writes the run has ended. Training goes on")

    def _take_messages(self) -> None:
        for message in self._outlet.line.heard():
            if message["is"] == "read":
                self._outlet.note_read()
            elif message["is"] == "failed":
                tell(f"the run is not written: {message['why']}. Training goes on")
            elif message["is"] == "told":
                tell(message["what"])

    def close(self, step: int, error: BaseException | None = None) -> None:
        """Wait until everything is written, but not for ever. ``step`` would come next; ``error``: why it does not."""
        if self._is_closed:
            return
        self._is_closed = True
        if error is not None:
            said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            self.say({"is": "raised", "what": said, "when": time.time(), "lost_peer": is_of_lost_peer(error)})
        self.say({"is": "reached", "step": step})
        if self.dropped:
            self.say({"is": "note", "what": f"{self.dropped} steps were dropped"})
        until = time.monotonic() + _PATIENCE
        while not self._is_gone and time.monotonic() < until and not (self._outlet.is_empty and self._outlet.line.has_said_all):
            self._hear()
            time.sleep(0.005)
        with contextlib.suppress(OSError):
            self._outlet.line.socket.shutdown(socket.SHUT_WR)
        self._wait(max(0.1, until - time.monotonic()))
        self._take_messages()
        self._outlet.close()
        self._lock.release()
