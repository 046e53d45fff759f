"""The page of a run, written repeatedly by a separate process so that the worker need not wait."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: seconds until the first, and of the last one at most
_FIRST, PATIENCE = 5.0, 60.0
#: of a processor's time a page takes one part in so many
_SHARE = 10
_PROGRAM = """import sys; sys.path[:] = {path!r}
from torchscan.watching.parent import Parent; Parent({worker}).end_with_it()
import torch; torch.set_num_threads(1)
from torchscan.watching.explore.run_page import page_of_run; page_of_run({run!r}).save({file!r})"""


class Paged:
    """The page of a run, rewritten at most every ``every`` seconds."""

    def __init__(self, run: Path, every: float) -> None:
        self._run, self._every = run, every
        self._folder = tempfile.TemporaryDirectory(prefix="torchscan-")
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0.0
        self._next = time.monotonic() + min(_FIRST, every)

    def newest(self) -> str | None:
        """The page, if there is a new one. It is asked for each step, and does not wait."""
        if self._process is not None:
            return None if self._process.poll() is None else self._finished()
        if time.monotonic() >= self._next:
            self._begin()
        return None

    def last(self) -> str | None:
        """The page when the run is over; None: it takes too long."""
        self._end()
        process = self._begin()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        page = self.newest()
        self._end()
        self._folder.cleanup()
        return page

    def _begin(self) -> subprocess.Popen[bytes]:
        self._begun = time.monotonic()
        path = [each for each in sys.path if type(each) is str]
        program = _PROGRAM.format(
            path=path, worker=os.getpid(), run=str(self._run), file=str(self._file)
        )
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, start_new_session=True
        )
        return self._process

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / "run.html"

    def _finished(self) -> str | None:
        """Return the page that the process has written, or None if it failed and reported that."""
        now, self._process = time.monotonic(), None
        self._next = now + max(self._every, (_SHARE - 1) * (now - self._begun))
        with contextlib.suppress(FileNotFoundError):
            page = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            return page
        return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
