"""The ledger of a run and the lock of its worker, and what is read from them."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from torchscan.notes import Note
from torchscan.watching.channel import Outlet
from torchscan.watching.earlier_sessions import settle_session
from torchscan.watching.lost_steps import LostSteps, lost_from, settled_about
from torchscan.watching.message_socket import take_files
from torchscan.watching.processes import socket_pair
from torchscan.watching.run_files import (
    Entry,
    Ledger,
    has_worker,
    ledger_of,
    lock_for_worker,
    read_ledger,
)
from torchscan.watching.run_reader import Reader
from torchscan.watching.store import Store
from torchscan.watching.write_failures import reason_of


def test_what_no_process_could_write_down_is_the_difference_of_begun_and_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rank0.sqlite"
    ledger = Ledger(path)
    ledger.begin("session")
    ledger.note_begun("session", 10, is_evaluation=False, step=9)
    about = {
        "session": {"id": "session", "written": 6, "lost": 1, "last": ["train", 6]},
        "lost": [],
    }
    assert lost_from(settled_about(path, about)["lost"]) == [
        LostSteps(phase="train", first=7, last=9, count=3, why=Note.of("writer-ended"))
    ]
    ledger.write_metadata(
        {"closed": True, "session": {**about["session"], "lost": 4, "is_settled": True}}  # type: ignore[dict-item]
    )
    assert settled_about(path, about)["closed"] is True
    other = {"session": {"id": "another", "written": 6, "lost": 1, "last": None}}
    assert settled_about(path, other) == other, "it is of another run, that was copied here"
    (tmp_path / "rank0.ledger").write_bytes(b"no ledger")
    assert read_ledger(path) is None
    ledger.close()


def test_a_worker_holds_its_lock_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    assert not has_worker(path)
    lock = lock_for_worker(path)
    assert lock is not None
    assert has_worker(path)
    assert lock_for_worker(path) is None
    os.close(lock)
    assert not has_worker(path)


def test_what_a_worker_starts_does_not_keep_its_lock(tmp_path: Path) -> None:
    ours, theirs = socket_pair()
    outlet, lock = Outlet(), lock_for_worker(tmp_path / "rank0.sqlite")
    assert lock is not None
    with ours, theirs:
        outlet.send_files(ours, lock)
        ours.sendall(b"{}\n")
        taken = take_files(theirs)
        assert theirs.recv(9) == b"{}\n", "the message after the files is still to be read"
    assert [os.get_inheritable(number) for number in taken] == [False, False]
    for number in (lock, *taken):
        os.close(number)
    outlet.close()


@pytest.mark.parametrize("raised", [None, "ValueError: no"])
def test_a_session_that_its_worker_left_open_is_closed(raised: str | None, tmp_path: Path) -> None:
    """The run ended at no known time, unless an exception has ended it."""
    path = tmp_path / "rank0.sqlite"
    session = {"id": "session", "written": 1, "lost": 0, "last": ["train", 0], "is_settled": True}
    about = {"session": session, "lost": [], "closed": False, "ended": 5.0, "raised": raised}
    Store(path, about).close()
    entry = Entry(session="session", num_begun=3, phase="train", step=2)
    new = [LostSteps(phase="train", first=1, last=2, count=2, why=Note.of("writer-ended"))]
    assert settle_session(path, entry, 3) == new
    with closing(Reader(path)) as reader:
        found = reader.about()
    assert (found["closed"], found["reached"], found["raised"]) == (True, 3, raised)
    assert found["ended"] == (None if raised is None else 5.0)
    assert (found["session"]["lost"], lost_from(found["lost"])) == (2, new)


def test_a_run_that_was_removed_stays_removed(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    entry = Entry(session="session", num_begun=3, phase="train", step=2)
    (lost,) = settle_session(path, entry, 3)
    assert (lost.count, lost.why) == (3, Note.of("run-removed"))
    assert list(tmp_path.iterdir()) == []


HEAD = struct.Struct("<16s16sQQQ")
ABOUT = {"session": {"id": "session", "written": 6, "lost": 1, "last": ["train", 6]}, "lost": []}


def ledger_with(path: Path, *, begun: int = 10, step: int = 9, text: bytes = b"{}") -> None:
    """Write one as a stranger may."""
    head = HEAD.pack(b"torchscan ledger", b"session", begun, step, 0)
    path.with_suffix(".ledger").write_bytes((head.ljust(256, b"\0") + text).ljust(4096, b"\0"))


@pytest.mark.parametrize("number", [{"begun": 2**64 - 1}, {"step": 2**64 - 1}])
def test_numbers_that_no_run_reaches_are_no_ledger(number: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    ledger_with(path, **number)
    assert read_ledger(path) is None
    assert settled_about(path, ABOUT) == ABOUT


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 3800,
        b"\xff",
        b'{"session": {"id": "session", "last": ["train", "x"]}}',
        b'{"session": {"id": "session", "written": -1000000000000000000000}}',
        b'{"session": {"id": "session"}, "ended": "yesterday"}',
        b'{"session": {"id": "session"}, "reached": [1]}',
        b'{"session": {"id": "session"}, "closed": "x"}',
    ],
)
def test_a_text_that_no_worker_writes_is_left_out_of_a_ledger(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    ledger_with(path, text=text)
    assert [lost.count for lost in lost_from(settled_about(path, ABOUT)["lost"])] == [3]


def test_a_pipe_or_a_device_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    for make in (os.mkfifo, lambda place: os.symlink("/dev/zero", place)):
        make(ledger_of(path))
        assert (read_ledger(path), has_worker(path)) == (None, False)
        with pytest.raises(OSError, match="ledger"):
            Ledger(path)
        ledger_of(path).unlink()


def test_a_ledger_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    path = tmp_path / "rank0.sqlite"
    ledger_of(path).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        Ledger(path)
    assert (tmp_path / "other").read_text() == "precious"


def test_looking_for_the_reason_of_a_failure_overwrites_no_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / f".torchscan-{os.getpid()}").symlink_to(tmp_path / "other")
    path = tmp_path / "rank0.sqlite"
    path.touch()
    assert str(reason_of(path, OSError("it failed"))) == "it failed"
    assert (tmp_path / "other").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 3
