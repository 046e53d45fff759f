"""Reasons why the worker cannot write to the file of a run."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from torchscan.notes import Note
from torchscan.watching.lost_steps import RUN_REMOVED, note_of_error
from torchscan.watching.run_database import StoreError

#: what is wrong with a folder, by the number of the system's error
_REASONS = {
    errno.ENOSPC: Note.of("disk-full"),
    errno.EDQUOT: Note.of("quota-exceeded"),
    errno.EROFS: Note.of("read-only-folder"),
    errno.EACCES: Note.of("not-permitted"),
    errno.EPERM: Note.of("not-permitted"),
    errno.EFBIG: Note.of("file-too-large"),
    errno.ENOENT: RUN_REMOVED,
}
#: characters of an error of SQLite's that are kept
_MAX_ERROR = 300
#: what is written to find out, longer than what SQLite adds in most steps
_PROBE = b"\1" * 2**18


class Place:
    """The file that is written, which may be removed meanwhile."""

    def __init__(self, path: Path) -> None:
        #: open for as long as the process lives: closing it would take locks of SQLite's away
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def require(self) -> None:
        """Raise if the file was removed, as SQLite would go on writing to what has no name."""
        if os.fstat(self._file).st_nlink == 0:
            raise RunRemovedError("the file of the run was removed")


class RunRemovedError(StoreError):
    """The file of the run was removed while it was open."""


def reason_of(path: Path, error: Exception) -> Note:
    """Return the reason of a failure: the error of the system where SQLite has only its own."""
    if not isinstance(error, StoreError | OSError):
        return note_of_error(error)
    if not path.exists() or isinstance(error, RunRemovedError):
        return RUN_REMOVED
    number = _try_to_write(path)
    if number in _REASONS:
        return _REASONS[number]
    text = error.reason if isinstance(error, StoreError) else str(error)
    reason = None if number is None else os.strerror(number)
    return Note.of("write-failed", error=text[:_MAX_ERROR], reason=reason)


def _try_to_write(path: Path) -> int | None:
    """Return the number of the error that writing to the folder raises, or None if it works."""
    # a file of its own: no other process can have put a link to another one in its place
    probe = path.with_name(f".torchscan-{os.urandom(8).hex()}")
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        number = os.open(probe, new | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error.errno
    try:
        with open(number, "wb", buffering=0) as file:
            written = file.write(_PROBE)
            file.write(_PROBE[written:])  # where a part was written, now the error comes
        return None
    except OSError as error:
        return error.errno
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
