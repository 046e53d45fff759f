"""One process at a time writes a run, and once. The lock goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from torchscan.errors import InputError
from torchscan.watching.descriptors import above_standard
from torchscan.watching.validation import is_plain_file

#: files that this process has locked: the system lets it lock them again
_held: set[Path] = set()


class Lock:
    """A lock of a file that belongs to this process, and not to its forks."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if self._path in _held:
            raise InputError(
                f"run {str(path.parent)!r} is being written by this process: close() its watcher first"
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
        """Others may write it now."""
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
