"""Files of a run: those of its ranks, and beside each the lock of its trainer and the ledger.

The ledger is a small file that outlives both processes: how many steps were sampled. The store says
how many of them were written; the difference is lost. The ledger has its size from the beginning,
so that it can be written where the disk is full, and the reason of that is in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchscan.errors import InputError
from torchscan.watching.processes import above_standard
from torchscan.watching.schema import Phase
from torchscan.watching.validation import (
    MAX_INTEGER,
    BrokenRunError,
    about_of_run,
    is_plain_file,
    json_of,
)

_SIZE = 4096
_MAGIC = b"torchscan ledger"
#: the session, steps begun, the last of them, whether that is an evaluation
_HEAD = struct.Struct("<16s16sQQQ")
#: where the worker's text begins
_TEXT = 256
#: without waiting for the other end of a pipe
_AT_ONCE = os.O_NONBLOCK | os.O_CLOEXEC
#: file of a rank; copies of it have other names
_RANK_FILE = re.compile(r"rank(0|[1-9][0-9]{0,6})\.sqlite")
#: files that this process has locked: the system lets it lock them again
_held: set[Path] = set()


def ranks_in(path: Path) -> list[Path]:
    """Return the files of a run's ranks in order, without other files in its folder."""
    if is_plain_file(path):
        return [path]
    files = plain_rank_files(path.glob("rank*.sqlite"))
    return sorted(files, key=lambda file: (len(file.name), file.name))


def plain_rank_files(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that lead to files of ranks."""
    return [path for path in paths if is_rank_file(path) and is_plain_file(path)]


def run_folders_in(folder: Path) -> list[Path]:
    """Return the folders with a run in a folder and in the folders inside it."""
    return sorted({file.parent for file in plain_rank_files(folder.rglob("rank*.sqlite"))})


def is_rank_file(file: Path) -> bool:
    """Return whether the file has the name of a rank's."""
    return _RANK_FILE.fullmatch(file.name) is not None


def rank_of_file(file: Path) -> int:
    """Return the rank in a file's name; of a file under another name, 0."""
    digits = file.stem.removeprefix("rank")
    return int(digits) if digits.isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The content of a ledger: the last session of a run."""

    session: str
    #: steps of which sampling has begun
    num_begun: int
    #: the last of them
    phase: Phase
    step: int
    #: what the worker has found out, as far as it could not write it to the store
    about: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """An open ledger, in the training process or in its worker."""

    def __init__(self, store: Path) -> None:
        """Open the ledger beside ``store``, the file of a run."""
        self._file = _opened(store)

    def begin(self, session: str) -> None:
        """Begin a new session. The disk has room for the whole file from now on."""
        head = _HEAD.pack(_MAGIC, session.encode(), 0, 0, 0)
        os.pwrite(self._file, head.ljust(_SIZE, b"\0"), 0)

    def note_begun(self, session: str, number: int, *, is_evaluation: bool, step: int) -> None:
        """Note how many steps have begun, and the last of them."""
        head = _HEAD.pack(_MAGIC, session.encode(), number, step, int(is_evaluation))
        with contextlib.suppress(OSError):
            os.pwrite(self._file, head, 0)

    def write_metadata(self, about: Mapping[str, Any]) -> None:
        """Write what the store cannot take. If it is too long, the earlier text stays."""
        text = json.dumps(about).encode()
        if len(text) < _SIZE - _TEXT:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, text.ljust(_SIZE - _TEXT, b"\0"), _TEXT)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def ledger_of(store: Path) -> Path:
    """Return the file's name."""
    return store.with_suffix(".ledger")


def read_ledger(store: Path) -> Entry | None:
    """Return what the ledger beside a store says, or None if there is none that can be read."""
    try:
        file = _opened_to_read(store)
    except OSError:
        return None
    with open(file, "rb") as reader:
        data = reader.read(_SIZE)
    if len(data) < _SIZE or not data.startswith(_MAGIC):
        return None
    _, session, number, step, is_evaluation = _HEAD.unpack_from(data)
    if max(number, step) > MAX_INTEGER or is_evaluation > 1:
        return None
    about: dict[str, Any] = {}  # also if it holds what no worker writes
    with contextlib.suppress(UnicodeDecodeError, BrokenRunError):
        text = data[_TEXT:].rstrip(b"\0").decode()
        found = json_of(text) if text else {}
        if isinstance(found, dict):
            about = about_of_run(found)
    return Entry(
        session=session.rstrip(b"\0").decode(errors="replace"),
        num_begun=number,
        phase="eval" if is_evaluation else "train",
        step=step,
        about=about,
    )


def lock_for_worker(store: Path) -> int | None:
    """Return a file that is locked until its last copy is closed, or None if a worker has it.

    Unlike the trainer's own lock it is handed over: a worker keeps it after its trainer has ended.
    """
    number = _opened(store)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        return None
    except OSError:  # a file system without such locks
        return number
    return number


def _opened(store: Path) -> int:
    """Open the ledger to write; through a link, another file would be written."""
    return _plain(
        os.open(ledger_of(store), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | _AT_ONCE, 0o644)
    )


def _opened_to_read(store: Path) -> int:
    if not is_plain_file(ledger_of(store)):  # opening a device may do something
        raise OSError(errno.EINVAL, "not a file")
    return _plain(os.open(ledger_of(store), os.O_RDONLY | _AT_ONCE))


def _plain(number: int) -> int:
    """Return an open file under a number above 2, and refuse pipes and devices."""
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "its ledger is not a file")
    return above_standard(number)


def has_worker(store: Path) -> bool:
    """Return whether a worker is writing, or still has to."""
    try:
        number = _opened_to_read(store)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(number)
    return False


class Lock:
    """A lock of a file that belongs to this process, and not to its forks."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if self._path in _held:
            raise InputError(
                f"run {str(path.parent)!r} is being written by this process: close() its watcher "
                "first"
            )
        self._number = above_standard(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            fcntl.lockf(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._number)
            raise InputError(
                f"run {str(path.parent)!r} is being written by another process: give each process "
                "its own folder, or end the other one"
            ) from error
        _held.add(self._path)

    def release(self) -> None:
        """Let other processes write the run."""
        if self._path in _held:
            _held.remove(self._path)
            os.close(self._number)


def is_locked(path: Path) -> bool:
    """Return whether a process is writing the run."""
    if path.resolve() in _held:  # closing any file of it would let go of the lock
        return True
    if not is_plain_file(path):  # a pipe would be waited for
        return False
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False
