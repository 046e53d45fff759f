"""Sessions in the file of a run: those of earlier processes, and the end of this process's own."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.watching.lost_steps import (
    RUN_REMOVED,
    WRITER_ENDED,
    Losses,
    LostSteps,
    is_settled,
    lost_from,
    settled_about,
    settled_by,
)
from torchscan.watching.peers import current_world_size
from torchscan.watching.run_database import StoreError
from torchscan.watching.run_files import Entry, Ledger, lock_for_worker, read_ledger
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Phase
from torchscan.watching.store import Store

#: seconds to wait for a worker that makes no progress
PATIENCE = 20.0
#: seconds between two looks at a worker
LOOK = 0.01
#: seconds after which a wait is mentioned first, and then again
_FIRST_WORD, _NEXT_WORD = 10.0, 30.0


class EarlierSessions:
    """The sessions in a file, which this process ends, checks and continues."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.parent
        #: the training step that would have come next when the run was closed
        self.reached = 0

    def await_lock(self) -> int:
        """Return the worker's lock, after an earlier process's worker has written all it has."""
        idle, seen = 0.0, self._written_at()
        what = f"waiting for steps of an earlier process to be written to {str(self._folder)!r}"
        reminder = Reminder(what)
        while (lock := lock_for_worker(self._path)) is None:
            reminder.remind()
            time.sleep(LOOK)
            now = self._written_at()
            idle = idle + LOOK if now == seen else 0.0
            seen = now
            if idle > PATIENCE:
                writer = "the writer of an earlier process"
                with contextlib.suppress(StoreError), contextlib.closing(Reader(self._path)) as run:
                    session = run.about().get("session")
                    if isinstance(session, dict) and "worker" in session:
                        writer = f"process {session['worker']}"
                raise InputError(
                    f"run {str(self._folder)!r} is still being written by {writer}, "
                    "which makes no progress: end that process, or give another folder"
                )
        return lock

    def _written_at(self) -> tuple[int, ...]:
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        return tuple(each.stat().st_mtime_ns for each in files if each.exists())

    def last_passes(
        self, about: Mapping[str, Any], step: int | None
    ) -> dict[Phase, tuple[int, int]]:
        """Return the last step of each phase, up to a step, and its number; note where to go on."""
        if not self._path.exists():
            return {}
        try:
            with contextlib.closing(Reader(self._path)) as reader:
                phases: tuple[Phase, ...] = ("train", "eval")
                found = {phase: reader.last_pass(phase, step) for phase in phases}
                earlier = settled_about(self._path, reader.about())
            self.reached = int(earlier.get("reached", 0))
        except StoreError as error:
            raise InputError(
                f"run {str(self._folder)!r} cannot be continued: {error}; give another folder"
            ) from error
        fingerprints = (earlier.get("fingerprint"), about["fingerprint"])
        if None not in fingerprints and len(set(fingerprints)) > 1:
            model = f"a {earlier['model']} with other parameters"
            raise InputError(f"{str(self._folder)!r} is the run of {model}: give another folder")
        return {phase: last for phase, last in found.items() if last is not None}

    def begin_session(self, name: str, about: Mapping[str, Any]) -> Ledger:
        """Write the run's beginning here, so that it is there whatever happens to the worker."""
        session = {"id": name, "handled": 0, "written": 0, "lost": 0, "last": None}
        earlier = self._lost_earlier()
        begun = {
            "processes": current_world_size(),
            "closed": False,
            "ended": None,
            "raised": None,
            "lost_peer": False,
            "session": session,
        }
        is_new = not self._path.exists()
        try:
            Store(self._path, {**about, **begun, "lost": earlier}).close()
            ledger = Ledger(self._path)
            ledger.begin(name)
        except (OSError, StoreError):
            if is_new:  # and would be no run
                for each in self._path.parent.glob(f"{self._path.stem}.*"):
                    each.unlink(missing_ok=True)
            raise
        return ledger

    def _lost_earlier(self) -> list[dict[str, Any]]:
        """Return the steps that earlier sessions lost, recorded by the last one or not."""
        if not self._path.exists():
            return []
        with contextlib.closing(Reader(self._path)) as reader:
            about = reader.about()
        # this process has the worker's lock by now, so that none is at work
        entry = None if is_settled(about) else read_ledger(self._path)
        settled = about if entry is None else settled_by(entry, about)
        return Losses(lost_from(settled.get("lost"))).to_data()


def settle_session(path: Path, entry: Entry, step: int) -> list[LostSteps]:
    """Count what the worker of a session has lost, because it has ended, and return what is new.

    ``step`` would come next in the run, which is closed. A run that was removed stays removed.
    """
    about: dict[str, Any] = {"session": {"id": entry.session}}
    why = WRITER_ENDED if path.exists() else RUN_REMOVED
    with contextlib.suppress(StoreError), contextlib.closing(Reader(path)) as reader:
        about = reader.about()
    if isinstance(about.get("session"), dict):  # a worker may have settled it too early
        about["session"].pop("is_settled", None)
    settled = {**settled_by(entry, about, why), "closed": True, "reached": step}
    if not settled.get("raised"):
        settled["ended"] = None
    if why != RUN_REMOVED:
        names = ("session", "lost", "closed", "ended", "reached")
        with contextlib.suppress(StoreError):
            Store(path, {name: settled[name] for name in names}).close()
    before = lost_from(about.get("lost"))
    return [each for each in lost_from(settled.get("lost")) if each not in before]


class Reminder:
    """A line on standard error that explains a long wait."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + _FIRST_WORD

    def remind(self) -> None:
        """Write the line if it is time."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _NEXT_WORD
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"torchscan: {self._what}\n")
                sys.stderr.flush()
