"""The line of the user's code that is running."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import FrameType

_NOT_THE_USERS = frozenset({"torch", "torchscan"})
#: the functions in which torch refuses parameters of distributions, and values, that are out of range
_VALIDATING = frozenset(
    {
        (f"torch.distributions.{name}", "__init__")
        for name in ("distribution", "continuous_bernoulli", "geometric")
    }
    | {
        ("torch.distributions.distribution", "_validate_sample"),
        ("torch.distributions.constraints", "check"),
    }
)
#: the module that calls the model
_CALLER = "torchscan.recording.running"


def place_of_user() -> str | None:
    """``model.py:42 (in Model.forward)``: the innermost line that is neither torch's nor torchscan's, if there is one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module_of(frame) != _CALLER:
        if _module_of(frame).partition(".")[0] not in _NOT_THE_USERS:
            return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} (in {frame.f_code.co_qualname})"
        frame = frame.f_back
    return None


def is_of_user(frame: FrameType) -> bool:
    """Return whether a frame belongs to neither torch nor torchscan."""
    return _module_of(frame).partition(".")[0] not in _NOT_THE_USERS


def is_validation() -> bool:
    """Return whether torch checks values itself, for example of a distribution's parameters."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module_of(frame).partition(".")[0] in _NOT_THE_USERS:
        if (_module_of(frame), frame.f_code.co_name) in _VALIDATING:
            return True
        frame = frame.f_back
    return False


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
