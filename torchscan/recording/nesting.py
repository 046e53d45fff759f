"""Models that are nested so deeply that Python's limit on recursion matters."""

from __future__ import annotations

import sys
from functools import partial

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.undo import run_at_end_of_pass

#: how many calls of Python one module inside another takes, at most, while it is recorded; without a recording it is three
_CALLS_PER_LEVEL = 8
#: deeper ones would run out of the memory for calls, against which the limit is there
_MAX_LEVELS = 1_200


def make_room_for_nesting(inventory: Inventory) -> None:
    """Raise the limit by what nesting takes, until the pass ends."""
    limit = sys.getrecursionlimit()
    levels = max(path.count(".") for path in inventory.modules)
    run_at_end_of_pass(partial(sys.setrecursionlimit, limit))
    sys.setrecursionlimit(limit + _CALLS_PER_LEVEL * min(levels, _MAX_LEVELS))
