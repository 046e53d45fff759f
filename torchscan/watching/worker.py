"""The worker process, which computes distributions and writes them to the store.

It starts without torch, which takes seconds to import, and ends when it has written all that was
put into the memory, whether its trainer is still there or not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

from torchscan.notes import Note
from torchscan.watching.guests import Guest, Guests
from torchscan.watching.inlet import Inlet
from torchscan.watching.lost_steps import lost_from, note_of_error
from torchscan.watching.message_socket import Message, MessageSocket, take_files
from torchscan.watching.processes import Parent, ignore_signals, is_ready, open_standard_files
from torchscan.watching.run_database import PATIENCE_OF_WRITERS, StoreError
from torchscan.watching.run_files import Ledger
from torchscan.watching.schema import Announced, Series
from torchscan.watching.store import Store
from torchscan.watching.worker_curves import CurveWriter
from torchscan.watching.worker_pulse import Pulse
from torchscan.watching.worker_session import WorkerSession, WorkerTask
from torchscan.watching.worker_steps import Record, StepWriter
from torchscan.watching.write_failures import reason_of

#: seconds after which it looks for the end of its parent, and without a step until torch is
#: imported
_LOOKS, _PATIENCE = 0.25, 1.0
#: rows of the curves that are written in one transaction
_MAX_ROWS = 512
#: steps that are written in one transaction, and sampled values in these; more wait in the memory,
#: which is freed afterwards
_MAX_STEPS, _MAX_VALUES = 32, 2**19
#: how much less important than training it is to the machine
_NICE = 10


class Worker:
    """Handler of the records in the memory, until no more can come."""

    def __init__(
        self, line: MessageSocket, session: WorkerSession, parent: Parent, task: WorkerTask
    ) -> None:
        self._line, self._inlet, self._session = line, session.inlet, session
        self._parent, self._folder = parent, task.path.parent
        #: by their numbers on the line
        self._announced: dict[int, Announced] = dict(enumerate(task.announced))
        self._is_over = False
        self.guests = Guests(session.report_event)
        self._curves = CurveWriter(session, self.guests)
        self._steps = StepWriter(session, self.guests, self._announced)

    def work(self, guest: Guest) -> None:
        """Work until everything is written and nothing more can come."""
        self.guests.admit(guest)
        self.guests.open(self._folder)
        begun, is_over = time.monotonic(), False
        while not is_over:
            # asked first: what was put before the end is in the memory by then
            is_over = not self._line.is_open or self._parent.was_gone(0.0)
            self._take_all()
            if is_over:
                break
            if not self._steps.is_ready and time.monotonic() > begun + _PATIENCE:
                self._steps.get_ready()
            events = EVENT_READ if self._line.is_drained else EVENT_READ | EVENT_WRITE
            is_ready(self._line.socket, _LOOKS, events)
            self._line.flush()
            for _ in self._line.heard():  # which only wakes
                continue
        self._finish()

    def _take_all(self) -> None:
        # An earlier worker of this session may have written a step before it was killed.
        counters = self._inlet.counters
        counters.taken = max(counters.taken, min(self._session.state["handled"], counters.put))
        while (found := self._inlet.next()) is not None:
            message, _ = found
            if message["is"] in ("curves", "step"):
                count = self._take_run()
            else:
                self._session.state["handled"] = self._inlet.counters.taken + 1
                self._answer(message)
                count = 1
            self._inlet.free(count)

    def _take_run(self) -> int:
        """Write adjacent steps and rows of the curves, and return the number of their records.

        They take one transaction each, and are freed once they are written.
        """
        rows: list[list[Any]] = []
        steps: list[Record] = []
        max_steps = 1 if self.guests.has_sinks else _MAX_STEPS
        count = num_values = 0
        while len(rows) < _MAX_ROWS and len(steps) < max_steps and num_values < _MAX_VALUES:
            found = self._inlet.next(count)
            if found is None:
                break
            message, at = found
            if message["is"] == "step":
                steps.append(({**message, "wrong_loss": self._curves.wrong_loss}, at))
                num_values += message["values"]
            elif message["is"] == "curves":
                rows += message["rows"]
                self._curves.check_losses(message["rows"])
            else:
                break
            count += 1
        self._session.state["handled"] = self._inlet.counters.taken + count
        if rows:
            self._answer({"is": "curves", "rows": rows})
        if steps:
            self._steps.take(steps)
        return count

    def _answer(self, message: Message) -> None:
        try:
            self._handle(message)
        except Exception as error:
            self._session.report_failure(error)

    # -- messages --------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        match message["is"]:
            case "series":
                for number, (series, *rest) in enumerate(message["series"], message["first"]):
                    self._announced[number] = Announced(Series(**series), *rest)
            case "curves":
                self._curves.take(message["rows"])
            case "note":
                self._take_note(message)
            case "about":
                self._session.keep(message["about"])
            case "from":
                self._session.forget_from(message["step"])
            case "lost":
                for lost in lost_from(message["lost"]):
                    self._session.count_lost(lost)
                self._session.keep(self._session.accounts())
            case "raised":
                what, when = message["what"], message["when"]
                self._session.keep(
                    {"raised": what, "ended": when, "lost_peer": message["lost_peer"]}
                )
            case "reached":
                self._is_over = True
                self._session.keep({"reached": message["step"], "closed": True})
            case kind:
                raise KeyError(kind)

    def _take_note(self, message: Message) -> None:
        note = Note.from_data(message["note"])
        try:
            self._session.store.note(note, message.get("time"))
        finally:
            if note.code == "user-note":
                self.guests.show_note(note)

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._session.count_unput()
        with contextlib.suppress(StoreError):
            self._curves.flush()
        ended: dict[str, Any] = {}
        if not self._is_over:
            self._parent.note_gone()
            ended = {"ended": self._parent.ended_at}
            with contextlib.suppress(StoreError):
                self._session.store.note(Note.of("run-not-closed"))
        self._session.settle(ended)
        self.guests.close(is_orphan=not self._is_over)
        self._session.close()


def serve(
    end: socket.socket, task: WorkerTask, parent: Parent, load_guest: Callable[[], Guest]
) -> None:
    """Work, as a process of its own, with this end of the line."""
    ignore_signals()
    open_standard_files()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        file, lock = take_files(end)
    except (EOFError, OSError):
        return
    line, inlet = MessageSocket(end), Inlet(file)
    try:
        # The trainer has created the file. A worker that did so would bring back a removed run.
        store = Store(task.path, {}, can_create=False, patience=PATIENCE_OF_WRITERS)
        session = WorkerSession(line, inlet, store, Ledger(task.path), task)
    except (StoreError, OSError) as error:
        line.send({"is": "failed", "why": reason_of(task.path, error).to_data(), "is_final": True})
        return
    worker = Worker(line, session, parent, task)
    Pulse(inlet.counters, parent, lambda: worker.guests.deadline)
    try:
        guest = load_guest()
    except Exception as error:
        line.send({"is": "failed", "why": note_of_error(error).to_data(), "is_final": True})
        return
    worker.work(guest)
    os.close(lock)
