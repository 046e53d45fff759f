"""The process and the thread that train the model."""

from __future__ import annotations

import os
import threading
from threading import get_ident


class FollowedThread:
    """The thread that trains: the first that calls the model, or the next once that has ended."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._identity: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_own_process(self) -> bool:
        """True in the process that began to watch, and not in its forks."""
        return os.getpid() == self._pid

    @property
    def is_here(self) -> bool:
        """True in the thread that trains, and in all threads before it begins or once it ended."""
        if self._identity == get_ident() or self._identity is None:
            return True
        thread = self._thread
        return thread is not None and not thread.is_alive()

    def follow_current(self) -> None:
        """Note that the current thread trains."""
        if self._identity != get_ident():
            self._identity, self._thread = get_ident(), threading.current_thread()
