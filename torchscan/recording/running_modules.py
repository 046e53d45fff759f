"""Calls of modules that are open in this thread, read from its stack."""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

#: the code of each call of a module, in the stack of its thread
CALL_CODE = nn.Module._call_impl.__code__


def num_open_calls(module: nn.Module) -> int:
    """Return the number of calls of a module that are open in this thread."""
    frame, number = sys._getframe(1).f_back, 0
    while frame is not None:
        if frame.f_code is CALL_CODE and frame.f_locals.get("self") is module:
            number += 1
        frame = frame.f_back
    return number


def is_open(module: nn.Module) -> bool:
    """Return whether a call of the module is open in this thread, besides the one that starts."""
    return num_open_calls(module) > 1


def is_running(module: nn.Module) -> bool:
    """Return whether a call of the module is open in this thread."""
    return num_open_calls(module) > 0


def outermost_running(module: nn.Module) -> nn.Module | None:
    """Return the outermost module with an open call in this thread, or None if it is this one."""
    frame: FrameType | None = sys._getframe(1)
    outermost: nn.Module | None = None
    while frame is not None:
        if frame.f_code is CALL_CODE:
            outermost = frame.f_locals.get("self")
        frame = frame.f_back
    return None if outermost is module else outermost
