"""Signals that a worker ignores."""

from __future__ import annotations

import signal

#: for the whole group, or from a terminal that closes: the trainer decides when a run is over
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def ignore_signals() -> None:
    """Ignore these signals from now on, and forget those that were held back.

    An alarm that comes late, when what it was to interrupt is over, ends nothing either.
    """
    for number in (*IGNORED, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
