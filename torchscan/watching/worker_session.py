"""The session of a worker: what it has handled, written and lost, in the store or the ledger."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchscan.notes import Note
from torchscan.watching.inlet import Inlet
from torchscan.watching.lost_steps import (
    TRAINING_ENDED,
    Losses,
    LostSteps,
    lost_from,
    missing_at_end,
)
from torchscan.watching.message_socket import MessageSocket
from torchscan.watching.run_database import StoreError
from torchscan.watching.run_files import Ledger
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Announced, CurvePoint, Phase, SampledStep
from torchscan.watching.store import Store
from torchscan.watching.write_failures import Place, reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """The file that a worker writes, and the session that it belongs to."""

    path: Path
    #: the process that trains
    parent: int
    session: str
    #: series that an earlier worker of the session was told of
    announced: Sequence[Announced] = ()


class WorkerSession:
    """Accounts of one session, which a later worker continues."""

    def __init__(
        self,
        line: MessageSocket,
        inlet: Inlet,
        store: Store,
        ledger: Ledger,
        task: WorkerTask,
    ) -> None:
        self._line, self.inlet = line, inlet
        self.store, self._ledger = store, ledger
        self._path, self.place = task.path, Place(task.path)
        #: True if the trainer knows that writing fails
        self.has_failed = False
        #: ``state`` is what the store has of the session
        self._losses, self.state = _session_of(task)
        #: those of this worker
        self._own_losses = Losses()
        #: what the store has not taken yet
        self._unwritten: dict[str, Any] = {}

    def report_failure(self, error: Exception) -> Note:
        """Tell the trainer once, until a step succeeds, and return the reason."""
        why = reason_of(self._path, error)
        if not self.has_failed:
            self._line.send({"is": "failed", "why": why.to_data()})
        self.has_failed = True
        return why

    def count_lost(self, lost: LostSteps) -> None:
        """Count lost steps, in the run and in the session."""
        self._losses.add(lost)
        self._own_losses.add(lost)
        self.state["lost"] += lost.count

    def report_event(self, note: Note) -> None:
        """Record something that happened to the run, and have the trainer warn of it."""
        self._line.send({"is": "warning", "note": note.to_data()})
        with contextlib.suppress(StoreError):
            self.store.note(note)

    def keep(self, about: Mapping[str, Any]) -> None:
        """Write facts about the run to the store or, if that fails, to the ledger."""
        self._unwritten |= about
        try:
            self.place.require()
            self.store.write_metadata(self._unwritten)
            self._unwritten = {}
        except StoreError as error:
            self.report_failure(error)
            brief = {"lost": self._losses.to_brief_data()}
            # Its room is reserved.
            self._ledger.write_metadata({**self._unwritten, **self.accounts(), **brief})

    def forget_from(self, step: int) -> None:
        """Forget steps that are recorded again, because training goes back to this one."""
        self._losses.forget_from(step)
        self.keep({"lost": self._losses.to_data()})
        self.store.forget_from(step)

    def write_curves(self, points: Mapping[Phase, Sequence[CurvePoint]]) -> None:
        """Write points of the curves to the store."""
        self.place.require()
        self.store.write_curves(points)

    def write_steps(self, steps: Sequence[SampledStep]) -> None:
        """Write steps to the store in one transaction, with the session."""
        before = dict(self.state)
        last = steps[-1]
        self.state |= {
            "written": before["written"] + len(steps),
            "last": [last.phase, last.step],
        }
        try:
            self.store.write_steps(steps, about={**self._unwritten, "session": self.state})
        except StoreError:
            self.state = before
            raise
        self._unwritten = {}

    def accounts(self) -> dict[str, Any]:
        """Return the session and its losses as plain data."""
        return {"session": dict(self.state), "lost": self._losses.to_data()}

    def count_unput(self) -> None:
        """Count steps that were begun and that the trainer could not hand over."""
        counters, session = self.inlet.counters, self.state
        count = counters.num_begun - session["written"] - session["lost"]
        if count > 0:
            is_evaluation, step = counters.last_begun
            phase: Phase = "eval" if is_evaluation else "train"
            self.count_lost(missing_at_end(session, phase, step, count, TRAINING_ENDED))

    def settle(self, about: Mapping[str, Any]) -> None:
        """Write the accounts for good, with facts about the end, and tell the trainer."""
        self.state["is_settled"] = True
        self.keep({**about, **self.accounts()})
        self._line.send({"is": "end", "lost": self._own_losses.to_data()})

    def close(self) -> None:
        """Close the files, and send what waits."""
        self.store.close()
        self._ledger.close()
        self._line.flush()


def _session_of(task: WorkerTask) -> tuple[Losses, dict[str, Any]]:
    """Return what the store knows of losses and this session, which may have had a worker."""
    with contextlib.closing(Reader(task.path)) as reader:
        about = reader.about()
    session = {"id": task.session, "handled": 0, "written": 0, "lost": 0, "last": None}
    known = about.get("session")
    if isinstance(known, dict) and known.get("id") == task.session:
        session |= known
    session["worker"] = os.getpid()
    return Losses(lost_from(about.get("lost"))), session
