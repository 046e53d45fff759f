"""The worker process as the training process uses it: start it, send to it, wait for its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.user_warnings import warn_or_print
from torchscan.watching.call_sites import SeriesNumbers
from torchscan.watching.channel import Outlet
from torchscan.watching.earlier_sessions import LOOK, PATIENCE, EarlierSessions, Reminder
from torchscan.watching.guests import Guest
from torchscan.watching.lost_steps import (
    RUN_REMOVED,
    TOO_SLOW,
    WRITER_ENDED,
    Losses,
    LostSteps,
    lost_from,
    lost_step,
    note_of_lost,
    settled_by,
)
from torchscan.watching.message_socket import Message, MessageSocket
from torchscan.watching.peers import current_rank, is_of_lost_peer
from torchscan.watching.processes import socket_pair
from torchscan.watching.run_database import StoreError, is_remote
from torchscan.watching.run_files import Entry, Lock, lock_for_worker
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Announced, Phase
from torchscan.watching.sinks.sink import Sink
from torchscan.watching.starting import StartMethod, start_worker
from torchscan.watching.step_samples import StepSamples
from torchscan.watching.store import Store
from torchscan.watching.worker_session import WorkerTask

if TYPE_CHECKING:
    from torchscan.watching.guests import Statistic

#: seconds between two looks at most; a longer pause is not the worker's
_LONGEST_LOOK = 0.5
#: seconds after a worker's end in which a process that looks for a worker may hold its lock
_LOCK_PATIENCE = 10.0
#: seconds between two exchanges with the worker: each takes longer than a small step
_WAKE_PERIOD = 0.02
#: series in a message
_NUM_SERIES = 2000


class WriterProcess:
    """The training process's end of a separate process that writes the run."""

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        *,
        sinks: Sequence[Sink],
        custom: Mapping[str, Statistic],
        start: StartMethod,
        step: int | None,
    ) -> None:
        """``step``: what was recorded from there on is recorded anew."""
        self.folder = folder
        #: of what this process writes
        self.path = folder / f"rank{current_rank()}.sqlite"
        #: of the processes that train together
        self.is_first = current_rank() == 0
        self._start = start
        self._guest = Guest(sinks=sinks, custom=custom)
        self._session = os.urandom(8).hex()
        self._announced: list[Announced] = []
        #: steps whose sampling has begun; those that had no room, in all and not yet told to the
        #: worker
        self._num_begun = self._num_dropped = 0
        self._woken_at = 0.0
        self._unsent_losses = Losses()
        #: steps that are not written when close() ends
        self._num_left = 0
        self._lost: list[LostSteps] | None = None
        self._is_gone = self._is_closed = self._has_ended = False
        self._num_restarts, self._taken_at_start = 0, 0
        #: until when another worker may be started in place of the one that has ended
        self._may_restart_until: float | None = None
        #: whether writing to the folder may wait for another machine, which training must not
        self._is_remote = is_remote(self.path)
        self._begin(about, step)

    def _begin(self, about: Mapping[str, Any], step: int | None) -> None:
        """Lock and continue the file, and start the worker. If one fails, undo the others."""
        with contextlib.ExitStack() as undo:
            with _refused(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.path.with_suffix(".lock"))
                undo.callback(self._lock.release)
                earlier = EarlierSessions(self.path)
                lock = earlier.await_lock()
                undo.callback(_close_quietly, lock)
            #: of each phase the last step that is there, and its number
            self.last = earlier.last_passes(about, step)
            #: the training step that would have come next when the run was closed
            self.reached = earlier.reached
            with _refused(self.folder):
                self._ledger = earlier.begin_session(self._session, about)
            undo.callback(self._ledger.close)
            self._outlet = Outlet()
            undo.callback(self._outlet.close)
            self._start_worker(lock)
            undo.pop_all()

    def _start_worker(self, lock: int) -> None:
        ours, theirs = socket_pair()
        try:
            self._outlet.send_files(ours, lock)
            self.line = MessageSocket(ours)
            task = WorkerTask(
                path=self.path.absolute(),
                parent=os.getpid(),
                session=self._session,
                announced=tuple(self._announced),
            )
            with theirs:
                self.number, self._wait, self._leave = start_worker(
                    self._start, ours, theirs, task, self._guest
                )
        except BaseException:
            ours.close()
            raise
        os.close(lock)  # the worker's own copy holds it from now on
        self._taken_at_start = self._outlet.counters.taken

    # -- while training goes on ------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Steps that were sampled and are not in the run."""
        lost = self._num_dropped + self._outlet.counters.failed
        if self._lost is not None:
            lost = max(lost, sum(each.count for each in self._lost))
        return lost + self._num_left

    def send(self, message: Message) -> None:
        """Send the worker a message; it is put into the shared memory, and training never waits.

        ``message["is"]`` names its kind. The watcher sends:

        - ``{"is": "curves", "rows": [[phase, step, number, time, loss, learning_rate,
          gradient_norm], …]}`` for every training step and evaluation pass; the last three are
          None if they are not known;
        - ``{"is": "about", "about": {"optimizer": "AdamW", …}}`` for entries of
          :attr:`WatchedRun.about` that are known after training has begun;
        - ``{"is": "note", "note": …, "time": …}`` with the plain data of a note, which becomes an
          event at that time, by default when the worker reads it;
        - ``{"is": "from", "step": n}`` before training goes on from an earlier step.
        """
        if self._is_gone:  # nothing makes room for it any more
            return
        self._outlet.send(message)
        self.line.wake()

    def send_row(self, row: Sequence[Any]) -> None:
        """Put a row of the curves into the memory, where the worker looks a few times a second."""
        if not self._is_gone:
            self._outlet.send_row(row)

    def begin(self, phase: Phase, step: int) -> None:
        """Note that sampling of a step begins: it counts as lost if the process is killed now."""
        self._num_begun += 1
        self._note_begun(phase, step)

    def _note_begun(self, phase: Phase, step: int) -> None:
        is_evaluation = phase == "eval"
        self._outlet.counters.note_begun(self._num_begun, is_evaluation=is_evaluation, step=step)
        if not self._is_remote:
            self._ledger.note_begun(
                self._session, self._num_begun, is_evaluation=is_evaluation, step=step
            )

    def put(self, sampled: StepSamples, numbers: SeriesNumbers) -> None:
        """Hand over a step, or count it as dropped. Training never waits."""
        is_late = time.monotonic() - self._woken_at > _WAKE_PERIOD
        if is_late:
            self._receive()
        if not sampled.num_rows:  # nothing was chosen in it
            self._num_begun -= 1
            self._note_begun(sampled.phase, sampled.step)
            return
        if self._is_gone:
            self._drop(sampled.phase, sampled.step, WRITER_ENDED)
            return
        self._announce(numbers)
        if not self._outlet.put(sampled):
            self._drop(sampled.phase, sampled.step, TOO_SLOW)
        elif self._unsent_losses.ranges:
            self._send_losses()
        if is_late:
            self._woken_at = time.monotonic()
            self.line.wake()

    def lose(self, phase: Phase, step: int, why: Note) -> None:
        """Count a step that was begun and is not handed over."""
        self._drop(phase, step, why)

    def _announce(self, numbers: SeriesNumbers) -> None:
        for start in range(0, len(numbers.new), _NUM_SERIES):
            new = numbers.new[start : start + _NUM_SERIES]
            series = [(asdict(each.series), *each[1:]) for each in new]
            self._outlet.send({"is": "series", "first": len(self._announced), "series": series})
            self._announced += new
        numbers.new.clear()

    def _drop(self, phase: Phase, step: int, why: Note) -> None:
        self._num_dropped += 1
        self._unsent_losses.add(lost_step(phase, step, why))

    def _send_losses(self) -> None:
        if self._unsent_losses.ranges:
            self._outlet.send({"is": "lost", "lost": self._unsent_losses.to_data()})
            self._unsent_losses = Losses()

    def _receive(self) -> None:
        self._take_messages()
        if self._is_gone:
            return
        if self._has_ended and not self._is_closed:
            self._give_up(" too early")
        elif not self.line.is_open and not self._has_ended:
            self._note_end_of_worker()

    def _take_messages(self) -> None:
        for message in self.line.heard():
            if message["is"] == "failed":
                self._is_gone |= bool(message.get("is_final"))
                why = _sentence_of(Note.from_data(message["why"]))
                warn_or_print(f"writing the run has stopped: {why}; training is not affected")
            elif message["is"] == "warning":
                warn_or_print(_sentence_of(Note.from_data(message["note"])))
            elif message["is"] == "end":
                self._has_ended, self._lost = True, lost_from(message["lost"])

    def _note_end_of_worker(self) -> None:
        """Start another worker with the memory, unless a restarted one made no progress."""
        is_new = self._may_restart_until is None
        status = self._wait(0.1 if is_new else 0.0)
        how = f" ({_signal_name(-status)})" if status is not None and status < 0 else ""
        has_got_on = self._outlet.counters.taken > self._taken_at_start
        if (self._num_restarts and not has_got_on) or not self.path.exists():
            self._give_up(how)
            return
        lock = None
        with contextlib.suppress(OSError):
            lock = lock_for_worker(self.path)
        # It may still be held: pages find a worker by it.
        if lock is not None:
            self._may_restart_until = None
            self._restart(lock, how)
        elif is_new:
            self._may_restart_until = time.monotonic() + _LOCK_PATIENCE
        elif time.monotonic() > (self._may_restart_until or 0.0):
            self._give_up(how)

    def _give_up(self, how: str) -> None:
        self._is_gone = True
        warn_or_print(
            f"the worker process has ended{how}, so no more steps are recorded; "
            "training is not affected"
        )

    def _restart(self, lock: int, how: str) -> None:
        self._num_restarts += 1
        self.line.close()
        try:
            self._start_worker(lock)
        except (OSError, InputError):
            _close_quietly(lock)
            self._give_up(how)
        else:
            warn_or_print(
                f"the worker process has ended{how}, and a new one continues where it stopped; "
                "training is not affected"
            )

    # -- the end ---------------------------------------------------------------------------------

    def close(self, step: int, error: BaseException | None = None) -> None:
        """Wait until everything is written, as long as there is progress.

        ``step`` would come next; ``error``: why it does not.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if error is not None:
            first_line, *_ = f"{type(error).__name__}: {error}".split("\n", 1)
            what = first_line.removesuffix(": ")[:200]  # a message may be empty
            is_lost = is_of_lost_peer(error)
            self._outlet.send(
                {"is": "raised", "what": what, "when": time.time(), "lost_peer": is_lost}
            )
        self._send_losses()
        self.send({"is": "reached", "step": step})
        why = ""
        try:
            why = self._await_end()
        except KeyboardInterrupt:
            why = "close() was interrupted"
        if why:
            self._warn_of_unwritten(why)
        elif self._is_gone or not self._has_ended or not self._outlet.is_empty:
            self._settle(step)
        lost = self._unsent_losses.ranges if self._lost is None else self._lost
        note = note_of_lost(lost)
        if note is not None:
            warn_or_print(f"{_sentence_of(note)}; training is not affected")
        self.line.close()
        self._outlet.close()
        self._ledger.close()
        self._lock.release()

    def _await_end(self) -> str:
        """Return why the wait ended before the worker did, or an empty text."""
        what = f"run {str(self.folder)!r} is still being written; press Ctrl-C to stop waiting"
        reminder = Reminder(what)
        idle, life, last, shut = 0.0, self._life(), time.monotonic(), None
        while not self._is_gone and idle < PATIENCE:
            if self._outlet.flush() and shut is not self.line:
                shut = self.line
                with contextlib.suppress(OSError):
                    shut.socket.shutdown(socket.SHUT_WR)
            status = self._wait(LOOK)
            self._receive()
            if status is not None and self._has_ended:
                return ""
            now, alive = time.monotonic(), self._life()
            idle = idle + min(now - last, _LONGEST_LOOK) if alive == life else 0.0
            last, life = now, alive
            reminder.remind()
        return "" if self._is_gone else f"the worker process made no progress for {PATIENCE:.0f} s"

    def _life(self) -> tuple[int, int]:
        counters = self._outlet.counters
        return counters.taken, counters.beat

    def _warn_of_unwritten(self, why: str) -> None:
        """Leave the worker, which goes on alone, and warn of what it still has to write."""
        self._leave()
        self._num_left = self._outlet.num_steps_left
        if self._num_left:
            noun = "sampled step is" if self._num_left == 1 else "sampled steps are"
            what = f"{self._num_left} {noun} not written to {str(self.folder)!r} yet"
        else:
            what = f"run {str(self.folder)!r} is not complete yet"
        warn_or_print(
            f"{what}, because {why}: leave process {self.number} running, "
            "it writes the rest when it can"
        )

    def _settle(self, step: int) -> None:
        """Count what the worker has lost, because it has ended."""
        is_evaluation, last = self._outlet.counters.last_begun
        phase: Phase = "eval" if is_evaluation else "train"
        entry = Entry(session=self._session, num_begun=self._num_begun, phase=phase, step=last)
        about: dict[str, Any] = {"session": {"id": self._session}}
        why = WRITER_ENDED if self.path.exists() else RUN_REMOVED
        with contextlib.suppress(StoreError), contextlib.closing(Reader(self.path)) as reader:
            about = reader.about()
        if isinstance(about.get("session"), dict):  # a worker may have settled it too early
            about["session"].pop("is_settled", None)
        settled = {**settled_by(entry, about, why), "closed": True, "reached": step}
        if not settled.get("raised"):
            settled["ended"] = None
        before = lost_from(about.get("lost"))
        new = [each for each in lost_from(settled.get("lost")) if each not in before]
        self._lost = [*(self._lost or ()), *new]
        if why != RUN_REMOVED:
            names = ("session", "lost", "closed", "ended", "reached")
            with contextlib.suppress(StoreError):
                Store(self.path, {name: settled[name] for name in names}).close()


@contextlib.contextmanager
def _refused(folder: Path) -> Any:
    try:
        yield
    except (OSError, StoreError) as error:
        raise InputError(
            f"run {str(folder)!r} cannot be written: {error}; give another folder"
        ) from error


def _close_quietly(number: int) -> None:
    with contextlib.suppress(OSError):
        os.close(number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _sentence_of(note: Note) -> str:
    """Return the sentence of a note of a watched run, without loading all formatters."""
    import torchscan.report.run_texts  # noqa: F401 - registers the sentences, and needs no torch

    return str(note)
