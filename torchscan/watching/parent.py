"""The process that trains, as the worker sees it, which need not be its child."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from torchscan.watching.waiting import is_ready

#: seconds after which it is looked whether it is still there, and after which nothing goes on if it is not
_LOOKS, _AT_LAST = 0.25, 1.25


class Parent:
    """A process, by its number."""

    def __init__(self, number: int) -> None:
        self._is_gone = _whether_gone(number)
        self._since: float | None = None
        #: when it was seen to have ended first, in seconds since 1970; None: it goes on
        self.ended_at: float | None = None

    def was_gone(self, seconds: float) -> bool:
        """Return whether the parent ended at least this many seconds ago."""
        if self._since is None and self._is_gone(0.0):
            self.note_gone()
        return self._since is not None and time.monotonic() >= self._since + seconds

    def note_gone(self) -> None:
        """Note that the parent has ended.

        Its end of the pipe is closed, which also shows the end of a zombie.
        """
        if self._since is None:
            self.ended_at, self._since = time.time(), time.monotonic()

    def end_with_it(self) -> None:
        """From now on this process ends soon after it, whatever is going on here: a sink may wait for something."""
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        while not self.was_gone(_AT_LAST):
            self._wait()
        os._exit(1)

    def _wait(self) -> None:
        """For a while, or until it is gone."""
        if self._since is None:
            self._is_gone(_LOOKS)
        else:
            time.sleep(_LOOKS)


def _whether_gone(number: int) -> Callable[[float], bool]:
    """After so many seconds, or as soon as it is."""
    is_child = os.getppid() == number  # of a fork server it is not

    def is_gone(seconds: float) -> bool:
        time.sleep(seconds)
        return os.getppid() != number if is_child else not _is_there(number)

    if not hasattr(os, "pidfd_open"):  # only Linux has it
        return is_gone
    try:
        file = os.pidfd_open(number)
    except ProcessLookupError:
        return lambda _: True
    except OSError:
        return is_gone
    return lambda seconds: is_ready(file, seconds)


def _is_there(number: int) -> bool:
    try:
        os.kill(number, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
