"""A progress line on standard error for anything that takes more than a second; only in a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_PATIENCE, _TICK = 1.0, 0.5


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Show what is being done, and for how long, until it is done; then remove the line."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, done: threading.Event) -> None:
    start = time.monotonic()
    if done.wait(_PATIENCE):
        return
    while True:
        sys.stderr.write(f"\r\x1b[K{what} … {time.monotonic() - start:.0f} s")
        sys.stderr.flush()
        if done.wait(_TICK):
            break
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
