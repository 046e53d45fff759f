"""What a worker counts of its session, and what a later worker of the session continues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchscan.notes import Note
from torchscan.watching.lost_steps import LostSteps
from torchscan.watching.message_socket import MessageSocket
from torchscan.watching.processes import socket_pair
from torchscan.watching.run_files import Ledger
from torchscan.watching.schema import SampledStep
from torchscan.watching.store import Store
from torchscan.watching.worker_session import WorkerSession, WorkerTask


@contextmanager
def worker_session(path: Path, name: str) -> Iterator[WorkerSession]:
    """Begin or continue a session; nothing comes from the trainer."""
    ours, theirs = socket_pair()
    store = Store(path, {})
    no_inlet: Any = None
    task = WorkerTask(path=path, parent=os.getpid(), session=name)
    session = WorkerSession(MessageSocket(ours), no_inlet, store, Ledger(path), task)
    with ours, theirs:
        yield session
        session.close()


def lost(first: int, last: int) -> LostSteps:
    count = last - first + 1
    return LostSteps(
        phase="train", first=first, last=last, count=count, why=Note.of("writer-ended")
    )


def test_a_worker_continues_the_accounts_of_its_session_only(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    step = SampledStep(step=5, phase="train", number=5, time=1.0, distributions={})
    with worker_session(path, "first") as session:
        session.count_lost(lost(3, 4))
        session.write_steps([step])
        session.keep(session.accounts())
    with worker_session(path, "first") as session:
        assert (session.state["lost"], session.state["written"]) == (2, 1)
        assert session.state["last"] == ["train", 5]
        session.count_lost(lost(6, 6))
        assert session.state["lost"] == 3
        assert len(session.accounts()["lost"]) == 2
    with worker_session(path, "second") as session:
        assert (session.state["lost"], session.state["written"]) == (0, 0)
        assert session.state["last"] is None
