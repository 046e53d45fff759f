"""Helpers of all processes of a run: open files, signals, threads, and the end of a parent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

#: seconds between two looks at a parent, and from its end to the end of this process
_LOOKS, _AT_LAST = 0.25, 1.25
#: 0, 1 and 2 belong to the program, also where it has closed them
_FIRST_OWN = 3
#: for the whole group, or from a terminal that closes: the trainer decides when a run is over
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Parent:
    """The process that trains, as its worker sees it. It need not be its parent."""

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
        """End this process soon after its parent, also if a sink waits for something here."""
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        while not self.was_gone(_AT_LAST):
            if self._since is None:
                self._is_gone(_LOOKS)
            else:
                time.sleep(_LOOKS)
        os._exit(1)


def _whether_gone(number: int) -> Callable[[float], bool]:
    """Return a function that waits for the end of a process, up to so many seconds."""
    is_child = os.getppid() == number  # of a fork server it is not

    def is_gone(seconds: float) -> bool:
        time.sleep(seconds)
        if is_child:
            return os.getppid() != number
        try:
            os.kill(number, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False

    if not hasattr(os, "pidfd_open"):  # only Linux has it
        return is_gone
    try:
        file = os.pidfd_open(number)
    except ProcessLookupError:
        return lambda _: True
    except OSError:
        return is_gone
    return lambda seconds: is_ready(file, seconds)


def is_ready(file: Any, seconds: float, events: int = selectors.EVENT_READ) -> bool:
    """Return whether a file can be read or written, or has ended, before the time is over.

    ``select`` would refuse numbers of files from 1,024 on.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(file, events)
        return bool(selector.select(seconds))


def above_standard(number: int) -> int:
    """Return the same open file under a number above 2, so that no output goes into it."""
    if number >= _FIRST_OWN:
        return number
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN)
    os.close(number)
    return moved


def close_quietly(number: int) -> None:
    """Close a file, unless it is closed already."""
    with contextlib.suppress(OSError):
        os.close(number)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets with numbers above 2."""
    one, other = (
        socket.socket(fileno=above_standard(each.detach())) for each in socket.socketpair()
    )
    return one, other


def open_standard_files() -> None:
    """Open ``/dev/null`` in place of closed standard streams, also for subprocesses."""
    for number in range(_FIRST_OWN):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                # It gets this number, the lowest that is free.
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def ignore_signals() -> None:
    """Ignore these signals from now on, and forget those that were held back.

    An alarm that comes late, when what it was to interrupt is over, ends nothing either.
    """
    for number in (*IGNORED, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Let torch use one thread: on small tensors, waiting for others takes longer than the work.

    On a machine that is busy with training, it can take a hundred times as long.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
