"""The worker process, which computes distributions and writes them to the store.

It starts without torch, which takes seconds to import, and ends when it has written all that was
put into the memory, whether its trainer is still there or not.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, Any

from torchscan.notes import Note
from torchscan.watching.curves import NUM_KEPT
from torchscan.watching.guests import Guest, Guests
from torchscan.watching.inlet import Inlet
from torchscan.watching.lost_steps import lost_from, lost_step, note_of_error
from torchscan.watching.message_socket import Message, MessageSocket, take_files
from torchscan.watching.processes import Parent, ignore_signals, is_ready, open_standard_files
from torchscan.watching.run_database import PATIENCE_OF_WRITERS, StoreError
from torchscan.watching.run_files import Ledger
from torchscan.watching.schema import Announced, CurvePoint, Phase, SampledStep, Series
from torchscan.watching.store import Store
from torchscan.watching.worker_pulse import Pulse
from torchscan.watching.worker_session import WorkerSession, WorkerTask
from torchscan.watching.write_failures import reason_of

if TYPE_CHECKING:
    from torchscan.watching.digest import Digest
    from torchscan.watching.distribution_columns import Distributions

#: seconds after which it looks for the end of its parent, and without a step until torch is
#: imported
_LOOKS, _PATIENCE = 0.25, 1.0
#: rows of the curves that are written in one transaction
_MAX_ROWS = 512
#: steps that are written in one transaction, and sampled values in these; more wait in the memory,
#: which is freed afterwards
_MAX_STEPS, _MAX_VALUES = 32, 2**19
#: lists of numbers of series that are kept
_MAX_LISTS = 16
#: what places a step in the run
_TIMES = ("step", "phase", "number", "time")
#: how much less important than training it is to the machine
_NICE = 10


class Worker(WorkerSession):
    """Handler of the records in the memory, until no more can come."""

    def __init__(
        self,
        line: MessageSocket,
        inlet: Inlet,
        store: Store,
        ledger: Ledger,
        parent: Parent,
        task: WorkerTask,
    ) -> None:
        super().__init__(line, inlet, store, ledger, task)
        self._parent, self._folder = parent, task.path.parent
        #: by their numbers on the line
        self._announced: dict[int, Announced] = dict(enumerate(task.announced))
        #: their numbers in the file
        self._known: dict[int, int] = {}
        #: the same for the lists of steps, by the identities of the lists
        self._in_file: dict[int, tuple[list[int], list[int]]] = {}
        self._has_nan = self._is_over = False
        self._digest: Digest | None = None
        self._points: dict[Phase, list[CurvePoint]] = {}
        #: step and value of the first of the last training losses, which are not finite
        self._wrong_loss: tuple[int, str] | None = None
        self.guests = Guests((), {}, self._report_event)

    def work(self, guest: Guest) -> None:
        """Work until everything is written and nothing more can come."""
        self.guests = Guests(guest.sinks, guest.custom, self._report_event)
        self.guests.open(self._folder)
        begun, is_over = time.monotonic(), False
        while not is_over:
            # asked first: what was put before the end is in the memory by then
            is_over = not self._line.is_open or self._parent.was_gone(0.0)
            self._take_all()
            if is_over:
                break
            if self._digest is None and time.monotonic() > begun + _PATIENCE:
                self._load_digest()
            events = EVENT_READ if self._line.is_drained else EVENT_READ | EVENT_WRITE
            is_ready(self._line.socket, _LOOKS, events)
            self._line.flush()
            for _ in self._line.heard():  # which only wakes
                continue
        self._finish()

    def _take_all(self) -> None:
        # An earlier worker of this session may have written a step before it was killed.
        counters = self._inlet.counters
        counters.taken = max(counters.taken, min(self._session["handled"], counters.put))
        while (found := self._inlet.next()) is not None:
            message, _ = found
            if message["is"] in ("curves", "step"):
                count = self._take_run()
            else:
                self._session["handled"] = self._inlet.counters.taken + 1
                self._answer(message)
                count = 1
            self._inlet.free(count)

    def _take_run(self) -> int:
        """Write adjacent steps and rows of the curves, and return the number of their records.

        They take one transaction each, and are freed once they are written.
        """
        rows: list[list[Any]] = []
        steps: list[tuple[Message, int]] = []
        max_steps = 1 if self.guests.has_sinks else _MAX_STEPS
        count = num_values = 0
        while len(rows) < _MAX_ROWS and len(steps) < max_steps and num_values < _MAX_VALUES:
            found = self._inlet.next(count)
            if found is None:
                break
            message, at = found
            if message["is"] == "step":
                steps.append(({**message, "wrong_loss": self._wrong_loss}, at))
                num_values += message["values"]
            elif message["is"] == "curves":
                rows += message["rows"]
                self._check_losses(message["rows"])
            else:
                break
            count += 1
        self._session["handled"] = self._inlet.counters.taken + count
        if rows:
            self._answer({"is": "curves", "rows": rows})
        if steps:
            self._take_steps(steps)
        return count

    def _answer(self, message: Message) -> None:
        try:
            self._handle(message)
        except Exception as error:
            self.report_failure(error)

    # -- messages --------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        match message["is"]:
            case "series":
                for number, (series, *rest) in enumerate(message["series"], message["first"]):
                    self._announced[number] = Announced(Series(**series), *rest)
            case "curves":
                self._take_curves(message)
            case "note":
                self._take_note(message)
            case "about":
                self._keep(message["about"])
            case "from":
                self._losses.forget_from(message["step"])
                self._keep({"lost": self._losses.to_data()})
                self._store.forget_from(message["step"])
            case "lost":
                for lost in lost_from(message["lost"]):
                    self.count_lost(lost)
                self._keep(self.accounts())
            case "raised":
                what, when = message["what"], message["when"]
                self._keep({"raised": what, "ended": when, "lost_peer": message["lost_peer"]})
            case "reached":
                self._is_over = True
                self._keep({"reached": message["step"], "closed": True})
            case kind:
                raise KeyError(kind)

    def _take_curves(self, message: Message) -> None:
        new: dict[Phase, list[CurvePoint]] = {}
        for phase, *values in message["rows"]:
            new.setdefault(phase, []).append(CurvePoint(*values))
        for phase, points in new.items():
            kept = self._points.setdefault(phase, [])
            kept += points
            del kept[:-NUM_KEPT]
        try:
            self._write_points()
        finally:
            for phase, points in new.items():
                self.guests.show_curves(phase, points)

    def _check_losses(self, rows: Sequence[Sequence[Any]]) -> None:
        """Keep the first loss that is not finite, until one is finite again."""
        for phase, step, _, _, loss, *_ in rows:
            if phase != "train" or loss is None:
                continue
            if math.isfinite(loss):
                self._wrong_loss = None
            elif self._wrong_loss is None:
                self._wrong_loss = step, "NaN" if math.isnan(loss) else "infinite"

    def _write_points(self) -> None:
        """Write the points of the curves; if that fails, they are written with the next ones."""
        if self._points:
            self._place.require()
            self._store.write_curves(self._points)
            self._points = {}

    def _take_note(self, message: Message) -> None:
        note = Note.from_data(message["note"])
        try:
            self._store.note(note, message.get("time"))
        finally:
            if note.code == "user-note":
                self.guests.show_note(note)

    # -- steps -----------------------------------------------------------------------------------

    def _load_digest(self) -> Digest:
        if self._digest is None:
            from torchscan.watching.digest import Digest  # torch, for the first time

            self._digest = Digest(self.guests)
        return self._digest

    def _take_steps(self, records: Sequence[tuple[Message, int]]) -> None:
        try:
            self._write_steps(records)
            self._has_failed = False
        except Exception as error:
            # The disk may be full now and not later, or it is an internal error.
            if len(records) > 1:  # it may concern one of them
                for each in records:
                    self._take_steps([each])
                return
            ((message, _),) = records
            why = self.report_failure(error)
            self._inlet.counters.note_failed()
            self.count_lost(lost_step(message["phase"], message["step"], why))
            self._keep(self.accounts())

    def _write_steps(self, records: Sequence[tuple[Message, int]]) -> None:
        """Write steps in one transaction."""
        digested = self._load_digest().read(self._inlet.memory, records, self._announced)
        times: list[dict[str, Any]] = []
        for message, _ in records:
            times.append({name: message[name] for name in _TIMES})
        before = dict(self._session)
        has_written = False
        try:
            self._place.require()
            steps = []
            for when, each in zip(times, digested, strict=True):
                numbers = self._stored(each.numbers)
                steps.append(SampledStep(**when, distributions=each.numbered(numbers)))
            self._session |= {
                "written": before["written"] + len(steps),
                "last": [steps[-1].phase, steps[-1].step],
            }
            self._store.write_steps(steps, about={**self._unwritten, "session": self._session})
            self._unwritten = {}
            has_written = True
        except StoreError:
            self._session = before
            self._known.clear()  # what was new may not be there
            self._in_file.clear()
            raise
        finally:
            if has_written or len(records) == 1:  # else they come again, one by one
                for (message, _), when, each in zip(records, times, digested, strict=True):
                    self._look_for_nan(message, each.found, each.series)
                    if self.guests.has_sinks:
                        self.guests.show(each.seen(when))

    def _look_for_nan(self, message: Message, found: Distributions, series: list[Series]) -> None:
        """Report the first NaN, once."""
        if self._has_nan or not found.columns.figures["nan"].any():
            return
        self._has_nan = True
        num_nan = found.columns.figures["nan"]
        first, *others = (each for place, each in enumerate(series) if num_nan[found.rows[place]])
        step = message["step"]
        loss_step, loss = message["wrong_loss"] or (None, "")
        if loss_step is not None and loss_step >= step:
            loss_step, loss = None, ""
        note = Note.of(
            "nan-seen",
            step=step,
            series=first.label,
            path=first.path,
            invocation=first.invocation,
            others=len(others),
            loss_step=loss_step,
            loss=loss,
        )
        self._report_event(note)

    def _stored(self, numbers: list[int]) -> list[int]:
        """Return the numbers that series have in the file, in the same list for the same series."""
        own, in_file = self._in_file.get(id(numbers), (None, []))
        if own is numbers:
            return in_file
        for number in numbers:
            if number not in self._known:
                self._known[number] = self._store.number_of(self._announced[number].series)
        in_file = [self._known[number] for number in numbers]
        if len(self._in_file) >= _MAX_LISTS:
            self._in_file.clear()
        self._in_file[id(numbers)] = numbers, in_file
        return in_file

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._count_unput()
        with contextlib.suppress(StoreError):
            self._write_points()
        self._session["is_settled"] = True
        ended: dict[str, Any] = {}
        if not self._is_over:
            self._parent.note_gone()
            ended = {"ended": self._parent.ended_at}
            with contextlib.suppress(StoreError):
                self._store.note(Note.of("run-not-closed"))
        self._keep({**ended, **self.accounts()})
        self._line.send({"is": "end", "lost": self._own_losses.to_data()})
        self.guests.close(is_orphan=not self._is_over)
        self._store.close()
        self._ledger.close()
        self._line.flush()


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
        ledger = Ledger(task.path)
        worker = Worker(line, inlet, store, ledger, parent, task)
    except (StoreError, OSError) as error:
        line.send({"is": "failed", "why": reason_of(task.path, error).to_data(), "is_final": True})
        return
    Pulse(inlet.counters, parent, lambda: worker.guests.deadline)
    try:
        guest = load_guest()
    except Exception as error:
        line.send({"is": "failed", "why": note_of_error(error).to_data(), "is_final": True})
        return
    worker.work(guest)
    os.close(lock)
