"""One process at a time writes a run. The lock goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from torchscan.errors import InputError


class Lock:
    """Of a file, for this process alone: not for those that it forks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._number)
            said = "another process is writing this run: give each its own folder, or end the other"
            raise InputError(f"{str(path.parent)!r}: {said}") from error

    def release(self) -> None:
        """Others may write it now."""
        os.close(self._number)
