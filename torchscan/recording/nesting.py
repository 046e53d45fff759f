"""Models that are nested so deeply that Python's limit on recursion matters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from torchscan.recording.bookkeeping.inventory import Inventory

#: how many calls of Python one module inside another takes, at most, while it is recorded; without a recording it is three
_CALLS_PER_LEVEL = 8
#: deeper ones would run out of the memory for calls, against which the limit is there
_MOST_LEVELS = 1_200


@contextlib.contextmanager
def room_for_nesting(inventory: Inventory) -> Iterator[None]:
    """Raise the limit by what nesting takes. The passes of several threads take turns, so it is set back in order."""
    limit = sys.getrecursionlimit()
    levels = max(path.count(".") for path in inventory.modules)
    sys.setrecursionlimit(limit + _CALLS_PER_LEVEL * min(levels, _MOST_LEVELS))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
