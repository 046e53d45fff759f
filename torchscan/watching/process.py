"""The run as the training process writes it: to shared memory, from which a worker takes it."""

from __future__ import annotations

import contextlib
import os
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
from torchscan.watching.earlier_sessions import EarlierSessions, settle_session
from torchscan.watching.guests import Guest
from torchscan.watching.lost_steps import TOO_SLOW, WRITER_ENDED, Losses, lost_step, note_of_lost
from torchscan.watching.message_socket import Message
from torchscan.watching.peers import current_rank, is_of_lost_peer
from torchscan.watching.processes import close_quietly
from torchscan.watching.run_database import StoreError, is_remote
from torchscan.watching.run_files import Entry, Lock
from torchscan.watching.schema import Phase
from torchscan.watching.sinks.sink import Sink
from torchscan.watching.starting import StartMethod
from torchscan.watching.step_samples import StepSamples
from torchscan.watching.worker_link import WorkerLink, sentence_of

if TYPE_CHECKING:
    from torchscan.watching.guests import Statistic

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
        self._session = os.urandom(8).hex()
        #: steps whose sampling has begun; those that had no room, in all and not yet told to the
        #: worker
        self._num_begun = self._num_dropped = 0
        self._woken_at = 0.0
        self._unsent_losses = Losses()
        #: steps that are not written when close() ends
        self._num_left = 0
        self._is_closed = False
        #: whether writing to the folder may wait for another machine, which training must not
        self._is_remote = is_remote(self.path)
        self._begin(about, step, start, Guest(sinks=sinks, custom=custom))

    @property
    def number(self) -> int:
        """The number of the worker process."""
        return self.worker.number

    def _begin(
        self, about: Mapping[str, Any], step: int | None, start: StartMethod, guest: Guest
    ) -> None:
        """Lock and continue the file, and start the worker. If one fails, undo the others."""
        with contextlib.ExitStack() as undo:
            with _refused(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.path.with_suffix(".lock"))
                undo.callback(self._lock.release)
                earlier = EarlierSessions(self.path)
                lock = earlier.await_lock()
                undo.callback(close_quietly, lock)
            #: of each phase the last step that is there, and its number
            self.last = earlier.last_passes(about, step)
            #: the training step that would have come next when the run was closed
            self.reached = earlier.reached
            with _refused(self.folder):
                self._ledger = earlier.begin_session(self._session, about)
            undo.callback(self._ledger.close)
            self._outlet = Outlet()
            undo.callback(self._outlet.close)
            self.worker = WorkerLink(
                self.path, self._session, self._outlet, start=start, guest=guest
            )
            self.worker.start(lock)
            undo.pop_all()

    def begin_at(self, step: int | None, next_step: int) -> None:
        """Rewrite the run from the user's first step, or warn that it is continued.

        Without a first step of the user's, it continues at ``next_step``.
        """
        if step is not None:
            self.send({"is": "from", "step": step})
        elif self.last:
            note = Note.of("run-continued", step=next_step)
            self.send({"is": "note", "note": note.to_data()})
            advice = f"give step={next_step} to confirm, or another folder"
            folder = str(self.folder)
            warn_or_print(
                f"run {folder!r} already exists and continues at step {next_step}: {advice}"
            )

    # -- while training goes on ------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Steps that were sampled and are not in the run."""
        lost = self._num_dropped + self._outlet.counters.failed
        if self.worker.lost is not None:
            lost = max(lost, sum(each.count for each in self.worker.lost))
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
        if self.worker.is_gone:  # nothing makes room for it any more
            return
        self._outlet.send(message)
        self.worker.line.wake()

    def send_row(self, row: Sequence[Any]) -> None:
        """Put a row of the curves into the memory, where the worker looks a few times a second."""
        if not self.worker.is_gone:
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
            self.worker.receive()
        if not sampled.num_rows:  # nothing was chosen in it
            self._num_begun -= 1
            self._note_begun(sampled.phase, sampled.step)
            return
        if self.worker.is_gone:
            self.lose(sampled.phase, sampled.step, WRITER_ENDED)
            return
        self._announce(numbers)
        if not self._outlet.put(sampled):
            self.lose(sampled.phase, sampled.step, TOO_SLOW)
        elif self._unsent_losses.ranges:
            self._send_losses()
        if is_late:
            self._woken_at = time.monotonic()
            self.worker.line.wake()

    def lose(self, phase: Phase, step: int, why: Note) -> None:
        """Count a step that was begun and that the worker does not get."""
        self._num_dropped += 1
        self._unsent_losses.add(lost_step(phase, step, why))

    def _announce(self, numbers: SeriesNumbers) -> None:
        announced = self.worker.announced
        for start in range(0, len(numbers.new), _NUM_SERIES):
            new = numbers.new[start : start + _NUM_SERIES]
            series = [(asdict(each.series), *each[1:]) for each in new]
            self._outlet.send({"is": "series", "first": len(announced), "series": series})
            announced += new
        numbers.new.clear()

    def _send_losses(self) -> None:
        if self._unsent_losses.ranges:
            self._outlet.send({"is": "lost", "lost": self._unsent_losses.to_data()})
            self._unsent_losses = Losses()

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
            why = self.worker.await_end()
        except KeyboardInterrupt:
            why = "close() was interrupted"
        if why:
            self._warn_of_unwritten(why)
        elif self.worker.is_gone or not self.worker.has_ended or not self._outlet.is_empty:
            self._settle(step)
        lost = self.worker.lost
        note = note_of_lost(self._unsent_losses.ranges if lost is None else lost)
        if note is not None:
            warn_or_print(f"{sentence_of(note)}; training is not affected")
        self.worker.line.close()
        self._outlet.close()
        self._ledger.close()
        self._lock.release()

    def _warn_of_unwritten(self, why: str) -> None:
        """Leave the worker, which goes on alone, and warn of what it still has to write."""
        self.worker.leave()
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
        new = settle_session(self.path, entry, step)
        self.worker.lost = [*(self.worker.lost or ()), *new]


@contextlib.contextmanager
def _refused(folder: Path) -> Any:
    try:
        yield
    except (OSError, StoreError) as error:
        raise InputError(
            f"run {str(folder)!r} cannot be written: {error}; give another folder"
        ) from error
