"""When Python looks for garbage: not while thousands of records are made, none of which is."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from contextvars import ContextVar

_is_delayed: ContextVar[bool] = ContextVar("is_delayed", default=False)


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Delay garbage collection inside the context.

    A full collection takes some 80 ms beside a model's libraries, and Python starts one whenever
    the number of objects has grown by a quarter. If collection was on, it is on again afterwards,
    even if a model has turned it off. If it was off, nothing is changed, because another thread may
    have turned it off for a while in the same way.
    """
    was_enabled = gc.isenabled()
    token = _is_delayed.set(was_enabled or _is_delayed.get())
    try:
        gc.disable()
        yield
    finally:
        _is_delayed.reset(token)
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def collected_in_time() -> Iterator[None]:
    """Collect garbage inside the context, also where :func:`collected_later` delays it.

    Tensors with data in reference cycles must not accumulate.
    """
    was_enabled = gc.isenabled()
    is_delayed = _is_delayed.get() and not was_enabled
    token = _is_delayed.set(False)
    try:
        if is_delayed:
            gc.enable()
        yield
    finally:
        _is_delayed.reset(token)
        if is_delayed:
            gc.disable()
        elif was_enabled:  # a model may have turned it off
            gc.enable()
