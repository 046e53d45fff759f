"""Tells the user of something while training goes on, which nothing of ours may end."""

from __future__ import annotations

import sys

from torchscan.errors import warn_user
from torchscan.escapes import printable_text


def tell(what: str) -> None:
    """As a warning; where warnings are errors, as a line."""
    try:
        warn_user(what)
    except Warning:
        print(f"torchscan: {printable_text(what)}", file=sys.stderr)  # noqa: T201
