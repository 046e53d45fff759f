"""Isolation of a pass from the caller: its counters, tracers and transformations do not see it.

Function modes stay, because the default device is one.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from torchscan.errors import InputError
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.undo import Undo, run_at_end_of_pass
from torchscan.torch_versions import (
    traces,
    without_functorch,
    without_hooks_for_gradients,
    without_modes,
    without_python_dispatcher,
)

#: the most calls of Python that one module inside another takes while it is recorded, instead of 3
_CALLS_PER_LEVEL = 8
#: deeper models would use up the memory for calls, which the limit on recursion protects
_MAX_LEVELS = 1_200


def refuse_tracers() -> None:
    """Raise an InputError if a tracer records all that torch does: no pass can step out of it."""
    tracer = traces()
    if tracer is not None:
        raise InputError(
            f"{tracer} is tracing, and would trace the pass too: call torchscan before or after"
        )


def leave_surroundings(undo: Undo) -> None:
    """Leave modes, transforms, hooks for gradients and anomaly detection until the pass ends."""
    for context in (
        without_functorch,
        without_python_dispatcher,
        without_modes,
        without_hooks_for_gradients,
    ):
        undo.enter(context, is_of_process=False)
    undo.enter(partial(torch.inference_mode, False), is_of_process=False)
    undo.enter(partial(torch.autograd.set_detect_anomaly, False))


def make_room_for_nesting(inventory: Inventory) -> None:
    """Raise Python's limit on recursion, until the pass ends, by what nested modules take."""
    limit = sys.getrecursionlimit()
    levels = max(path.count(".") for path in inventory.modules)
    run_at_end_of_pass(partial(sys.setrecursionlimit, limit))
    sys.setrecursionlimit(limit + _CALLS_PER_LEVEL * min(levels, _MAX_LEVELS))
