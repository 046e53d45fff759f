"""The line of the user's code that is running."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import FrameType

_NOT_THE_USERS = frozenset({"torch", "torchscan"})
#: functions in which torch refuses values, and parameters of distributions, that are out of range
_VALIDATING = frozenset(
    {
        ("torch.distributions.distribution", "__init__"),
        ("torch.distributions.distribution", "_validate_sample"),
        ("torch.distributions.continuous_bernoulli", "__init__"),
        ("torch.distributions.geometric", "__init__"),
        ("torch.distributions.constraints", "check"),
    }
)
#: the module that calls the model
_CALLER = "torchscan.recording.running"


def place_of_user() -> str | None:
    """Return the innermost line that is neither torch's nor torchscan's, or None.

    An example is ``model.py:42 (in Model.forward)``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module_of(frame) != _CALLER:
        if is_of_user(frame):
            code = frame.f_code
            file = PurePath(code.co_filename).name
            return f"{file}:{frame.f_lineno} (in {code.co_qualname})"
        frame = frame.f_back
    return None


def is_of_user(frame: FrameType) -> bool:
    """Return whether a frame belongs to neither torch nor torchscan."""
    package, _, _ = _module_of(frame).partition(".")
    return package not in _NOT_THE_USERS


def is_validation() -> bool:
    """Return whether torch checks values itself, for example of a distribution's parameters."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_user(frame):
        if (_module_of(frame), frame.f_code.co_name) in _VALIDATING:
            return True
        frame = frame.f_back
    return False


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
