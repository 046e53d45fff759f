"""Progress of the worker process, which ends if it hangs without its trainer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from torchscan.watching.channel import Counters
from torchscan.watching.processes import Parent

#: seconds between two looks at its own progress, and looks without a sign of life after which a
#: worker without its parent ends. They are counted, as a process that was stopped has lost none
_TICK, _MAX_IDLE = 0.25, 240
#: looks after which the user's code is interrupted if training is over, as steps may wait for it
_MAX_BUSY = 40
#: seconds after its deadline until user code counts as hanging: it may be where nothing interrupts
#: it
_GRACE = 10.0
#: seconds of processor time that are a sign of life, which looking does not take in that time
_WORK = 0.02


class Pulse:
    """A thread that checks whether its process makes progress."""

    def __init__(
        self, counters: Counters, parent: Parent, deadline: Callable[[], float | None]
    ) -> None:
        """``deadline`` returns when the user's running code must end, or None if none runs."""
        self._counters, self._parent, self._deadline = counters, parent, deadline
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        used, taken, idle = time.process_time(), self._counters.taken, 0
        before, busy = None, 0
        while idle < _MAX_IDLE:
            time.sleep(_TICK)
            now_used = time.process_time()
            now_taken = self._counters.taken
            deadline = self._deadline()
            is_over = self._parent.was_gone(0.0)
            is_busy = is_over and deadline is not None and deadline == before
            busy = busy + 1 if is_busy else 0
            before = deadline
            if busy and busy % _MAX_BUSY == 0:
                os.kill(os.getpid(), signal.SIGALRM)
            if deadline is None:
                gets_on = now_taken != taken or now_used - used > _WORK
            else:
                gets_on = time.monotonic() < deadline + _GRACE
            if busy < _MAX_BUSY and gets_on:
                self._counters.note_beat()
                used, taken, idle = now_used, now_taken, 0
            elif is_over:
                idle += 1
        os._exit(1)
