"""What a command says: its answer on standard output, what is wrong on standard error, and the exit status."""

from __future__ import annotations

import os
import sys
import traceback

FINE, EXCEEDED, WRONG_USE, FAILED = 0, 1, 2, 3

#: signs for terminals that have no others
_ASCII = str.maketrans(
    {"─": "-", "│": "|", "├": "|", "└": "`", "–": "-", "−": "-", "×": "x", "µ": "u"}
    | {"≥": ">=", "…": "...", "→": "->", "✓": "ok", "✗": "exceeded:"}
)


def say(text: str) -> None:
    """Something about the run, on standard error."""
    print(f"torchscan: {_in(sys.stderr.encoding, text)}", file=sys.stderr)  # noqa: T201 - printing is what it is for


def answer(text: str, *, is_document: bool = False) -> None:
    """The answer. Text takes the signs that the terminal has; a document, to be read by a program, is always UTF-8."""
    buffer = getattr(sys.stdout, "buffer", None)
    if is_document and buffer is not None:
        sys.stdout.flush()
        buffer.write(f"{text}\n".encode())
        buffer.flush()
    else:
        print(_in(sys.stdout.encoding, text), flush=True)  # noqa: T201 - printing is what it is for


def report_mistake(error: Exception) -> int:
    """Say what should not have happened, and return the status for it."""
    if "TORCHSCAN_DEBUG" in os.environ:
        traceback.print_exception(error)
    say(f"this is a mistake of torchscan's, please report it: {error!r} (TORCHSCAN_DEBUG=1 shows where)")
    return FAILED


def _in(encoding: str | None, text: str) -> str:
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")
    return text
