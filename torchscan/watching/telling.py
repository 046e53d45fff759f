"""Warnings during training that never end it."""

from __future__ import annotations

import contextlib
import sys

from torchscan.errors import warn_user
from torchscan.escapes import printable_text
from torchscan.notes import Note


def sentence_of(note: Note) -> str:
    """Return the sentence of a note of a watched run, without loading all formatters."""
    import torchscan.report.run_texts  # noqa: F401 - registers the sentences, and needs no torch

    return str(note)


def warn_or_print(what: str) -> None:
    """Warn, or print a line if warnings are errors."""
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or has no reader
        try:
            warn_user(what)
        except Warning:
            if sys.stderr is not None:
                print(f"torchscan: {printable_text(what)}", file=sys.stderr)  # noqa: T201
