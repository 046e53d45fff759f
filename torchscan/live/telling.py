"""Tells the user of something while training goes on, which nothing of ours may end."""

from __future__ import annotations

import contextlib
import sys

from torchscan.errors import warn_user
from torchscan.escapes import printable_text


def warn_or_print(what: str) -> None:
    """As a warning; where warnings are errors, as a line."""
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or has no reader
        try:
            warn_user(what)
        except Warning:
            if sys.stderr is not None:
                print(f"torchscan: {printable_text(what)}", file=sys.stderr)  # noqa: T201
