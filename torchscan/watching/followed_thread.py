"""The process and the thread that train the model."""

from __future__ import annotations

import os
import threading
from threading import get_ident


class FollowedThread:
    """The thread that trains: the first that calls the model, or the next once that has ended."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        #: what ``threading.get_ident()`` returns in it, or None before it begins
        self.identity: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_own_process(self) -> bool:
        """True in the process that began to watch, and not in its forks."""
        return os.getpid() == self._pid

    @property
    def has_ended(self) -> bool:
        """True once it has ended, so that another thread may go on."""
        return self._thread is not None and not self._thread.is_alive()

    def follow_current(self) -> None:
        """Follow the current thread from now on."""
        self.identity, self._thread = get_ident(), threading.current_thread()
