"""Warnings to the user, at the line that called torchscan."""

from __future__ import annotations

import contextlib
import sys
import warnings

from torchscan.escapes import printable_text
from torchscan.wording import PYTHON, Spelling, Text, write_text

#: packages whose frames are not the user's, and modules of Python that call them
_NOT_THE_USERS = ("torchscan", "functools", "contextlib", "torch")


class TorchscanWarning(UserWarning):
    """A warning of torchscan. ``str(warning)`` is its text in the words of Python."""

    #: what has happened, and what to do
    parts: tuple[Text, ...] = ()

    def __init__(self, *text: Text) -> None:
        self.parts = text
        super().__init__(str(self))

    def write(self, spelling: Spelling) -> str:
        """Return the text in the words of an interface."""
        return printable_text(write_text(self.parts, spelling))

    def __str__(self) -> str:
        """Return the text in the words of Python."""
        return self.write(PYTHON)


def warn_user(*text: Text) -> None:
    """Warn at the line that called torchscan, however deep inside the reason was found."""
    depth, frame = 2, sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS
    ):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(TorchscanWarning(*text), stacklevel=depth)


def warn_or_print(text: str) -> None:
    """Warn, or print a line if warnings are errors: this never ends a training."""
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or has no reader
        try:
            warn_user(text)
        except Warning:
            if sys.stderr is not None:
                print(f"torchscan: {printable_text(text)}", file=sys.stderr)  # noqa: T201
