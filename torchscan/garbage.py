"""When Python looks for garbage: not while thousands of records are made, none of which is."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Delay garbage collection inside the context.

    A full collection takes some 80 ms beside a model's libraries, and Python starts one whenever
    the number of objects has grown by a quarter. If collection was on, it is on again afterwards,
    even if a model has turned it off. If it was off, nothing is changed, because another thread may
    have turned it off for a while in the same way.
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
