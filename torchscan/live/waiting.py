"""Waiting for a file, whatever its number: ``select`` refuses those from 1,024 on."""

from __future__ import annotations

import selectors
from typing import Any


def is_ready(file: Any, seconds: float, events: int = selectors.EVENT_READ) -> bool:
    """Whether it can be read, or written to, or has ended, by then."""
    with selectors.DefaultSelector() as selector:
        selector.register(file, events)
        return bool(selector.select(seconds))
