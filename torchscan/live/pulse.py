"""Signs of life of a worker, for the trainer that waits for it; and its end if there are none."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from torchscan.live.channel import Counters
from torchscan.live.parent import Parent

#: seconds between two looks, and looks without a sign of life after which a worker without its parent
#: ends. They are counted, as a process that was stopped and continued has lost none
_TICK, _MAX_IDLE = 0.25, 240
#: seconds of processor time that are a sign of life, which looking does not take in that time
_WORK = 0.02


class Pulse:
    """A thread that looks whether its process gets on."""

    def __init__(self, counters: Counters, parent: Parent, is_overdue: Callable[[], bool | None]) -> None:
        """``is_overdue``: whether the user's code takes longer than it may; None: none is running."""
        self._counters, self._parent, self._is_overdue = counters, parent, is_overdue
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        used, taken, idle = time.process_time(), self._counters.taken, 0
        while idle < _MAX_IDLE:
            time.sleep(_TICK)
            now_used, now_taken = time.process_time(), self._counters.taken
            if self._gets_on(now_used - used, now_taken != taken):
                self._counters.note_beat()
                used, taken, idle = now_used, now_taken, 0
            elif self._parent.was_gone(0.0):
                idle += 1
        os._exit(1)

    def _gets_on(self, used: float, has_taken: bool) -> bool:
        is_overdue = self._is_overdue()
        if is_overdue is not None:
            return not is_overdue
        return has_taken or used > _WORK
