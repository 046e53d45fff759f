"""Waiting for a file, whatever its number: ``select`` refuses those from 1,024 on."""

from __future__ import annotations

import selectors
from typing import Any


def is_ready(file: Any, seconds: float, events: int = selectors.EVENT_READ) -> bool:
    """Return whether a file can be read or written, or has ended, before the time is over."""
    with selectors.DefaultSelector() as selector:
        selector.register(file, events)
        return bool(selector.select(seconds))
