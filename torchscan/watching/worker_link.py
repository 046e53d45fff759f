"""The training process's handle of the worker: start it, receive its messages, replace it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.user_warnings import warn_or_print
from torchscan.watching.channel import Outlet
from torchscan.watching.earlier_sessions import LOOK, PATIENCE, Reminder
from torchscan.watching.guests import Guest
from torchscan.watching.lost_steps import LostSteps, lost_from
from torchscan.watching.message_socket import MessageSocket
from torchscan.watching.processes import close_quietly, socket_pair
from torchscan.watching.run_files import lock_for_worker
from torchscan.watching.schema import Announced
from torchscan.watching.starting import StartMethod, start_worker
from torchscan.watching.worker_session import WorkerTask

#: seconds after a worker's end in which a process that looks for a worker may hold its lock
_LOCK_PATIENCE = 10.0
#: seconds between two looks at most; a longer pause is not the worker's
_LONGEST_LOOK = 0.5


class WorkerLink:
    """A started worker. Another one takes its place if it ends too early."""

    def __init__(
        self, path: Path, session: str, outlet: Outlet, *, start: StartMethod, guest: Guest
    ) -> None:
        self._path, self._session, self._outlet = path, session, outlet
        self._method: StartMethod = start
        self._guest = guest
        #: series that the worker knows, by their numbers
        self.announced: list[Announced] = []
        #: True if no worker takes anything any more
        self.is_gone = False
        #: True once the worker has written everything
        self.has_ended = False
        #: steps that are lost, or None until the worker has ended
        self.lost: Sequence[LostSteps] | None = None
        self._num_restarts, self._taken_at_start = 0, 0
        #: until when another worker may be started in place of the one that has ended
        self._may_restart_until: float | None = None

    def start(self, lock: int) -> None:
        """Start a worker, which gets the lock."""
        ours, theirs = socket_pair()
        try:
            self._outlet.send_files(ours, lock)
            self.line = MessageSocket(ours)
            task = WorkerTask(
                path=self._path.absolute(),
                parent=os.getpid(),
                session=self._session,
                announced=tuple(self.announced),
            )
            with theirs:
                self.number, self.wait, self.leave = start_worker(
                    self._method, ours, theirs, task, self._guest
                )
        except BaseException:
            ours.close()
            raise
        os.close(lock)  # the worker's own copy holds it from now on
        self._taken_at_start = self._outlet.counters.taken

    def receive(self, *, is_closing: bool = False) -> None:
        """Take what the worker has sent, and note its end, which is expected if ``is_closing``."""
        self._take_messages()
        if self.is_gone:
            return
        if self.has_ended and not is_closing:
            self._give_up(" too early")
        elif not self.line.is_open and not self.has_ended:
            self._note_end()

    def await_end(self) -> str:
        """Return why the wait ended before the worker did, or an empty text."""
        folder = str(self._path.parent)
        reminder = Reminder(f"run {folder!r} is still being written; press Ctrl-C to stop waiting")
        idle, life, last, shut = 0.0, self._life(), time.monotonic(), None
        while not self.is_gone and idle < PATIENCE:
            if self._outlet.flush() and shut is not self.line:
                shut = self.line
                with contextlib.suppress(OSError):
                    shut.socket.shutdown(socket.SHUT_WR)
            status = self.wait(LOOK)
            self.receive(is_closing=True)
            if status is not None and self.has_ended:
                return ""
            now, alive = time.monotonic(), self._life()
            idle = idle + min(now - last, _LONGEST_LOOK) if alive == life else 0.0
            last, life = now, alive
            reminder.remind()
        return "" if self.is_gone else f"the worker process made no progress for {PATIENCE:.0f} s"

    def _life(self) -> tuple[int, int]:
        counters = self._outlet.counters
        return counters.taken, counters.beat

    def _take_messages(self) -> None:
        for message in self.line.heard():
            if message["is"] == "failed":
                self.is_gone |= bool(message.get("is_final"))
                why = sentence_of(Note.from_data(message["why"]))
                warn_or_print(f"writing the run has stopped: {why}; training is not affected")
            elif message["is"] == "warning":
                warn_or_print(sentence_of(Note.from_data(message["note"])))
            elif message["is"] == "end":
                self.has_ended, self.lost = True, lost_from(message["lost"])

    def _note_end(self) -> None:
        """Start another worker with the memory, unless a restarted one made no progress."""
        is_new = self._may_restart_until is None
        status = self.wait(0.1 if is_new else 0.0)
        how = ""
        if status is not None and status < 0:
            names = {each.value: each.name for each in signal.Signals}
            how = f" ({names.get(-status, f'signal {-status}')})"
        has_got_on = self._outlet.counters.taken > self._taken_at_start
        if (self._num_restarts and not has_got_on) or not self._path.exists():
            self._give_up(how)
            return
        lock = None
        with contextlib.suppress(OSError):
            lock = lock_for_worker(self._path)
        # It may still be held: pages find a worker by it.
        if lock is not None:
            self._may_restart_until = None
            self._restart(lock, how)
        elif is_new:
            self._may_restart_until = time.monotonic() + _LOCK_PATIENCE
        elif time.monotonic() > (self._may_restart_until or 0.0):
            self._give_up(how)

    def _give_up(self, how: str) -> None:
        self.is_gone = True
        warn_or_print(
            f"the worker process has ended{how}, so no more steps are recorded; "
            "training is not affected"
        )

    def _restart(self, lock: int, how: str) -> None:
        self._num_restarts += 1
        self.line.close()
        try:
            self.start(lock)
        except (OSError, InputError):
            close_quietly(lock)
            self._give_up(how)
        else:
            warn_or_print(
                f"the worker process has ended{how}, and a new one continues where it stopped; "
                "training is not affected"
            )


def sentence_of(note: Note) -> str:
    """Return the sentence of a note of a watched run, without loading all formatters."""
    import torchscan.report.run_texts  # noqa: F401 - registers the sentences, and needs no torch

    return str(note)
