"""Output of a command: its answer, errors on standard error, and the exit status."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

from torchscan.escapes import printable_styled, printable_text
from torchscan.terminal import is_terminal

SUCCESS, PROBLEM_FOUND, INVALID_USE, INTERNAL_ERROR = 0, 1, 2, 3

#: replacements for symbols that a terminal can't show
_ASCII = str.maketrans("─│├└–−×µ█▓▒░▛▞·▼┴", "-||`--xu#%=:&x.v+") | str.maketrans(
    {"≥": ">=", "…": "...", "→": "->", "✓": "ok", "✗": "exceeded:"}
    | dict.fromkeys("▏▎▍▌", "-")
    | dict.fromkeys("▋▊▉", "=")
)


def print_remark(text: str) -> None:
    """Print a remark on standard error."""
    print_error(f"torchscan: {text}")


def print_written(path: Path) -> None:
    """Print on standard error which file was written, as all commands with ``--output`` do."""
    print_error(f"Wrote {path}.")


def print_error(text: str) -> None:
    """Print on standard error. If that fails, the exit status still tells how the command went."""
    try:
        encodable = _encodable(sys.stderr.encoding, printable_styled(text))
        print(encodable, file=sys.stderr)  # noqa: T201 - the output of the command
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Drop what could not be written.

    Otherwise Python tries again at exit, fails, and sets another exit status.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_answer(text: str, *, is_document: bool = False) -> None:
    """Print the answer.

    Text uses the symbols that the terminal has; a document for programs is always UTF-8.
    """
    buffer = getattr(sys.stdout, "buffer", None)
    if is_document and buffer is not None:
        sys.stdout.flush()
        if is_terminal(sys.stdout):
            text = printable_text(text)
        buffer.write(f"{text}\n".encode())
        buffer.flush()
    else:
        encodable = _encodable(sys.stdout.encoding, printable_styled(text))
        print(encodable, flush=True)  # noqa: T201 - the output of the command


def report_internal_error(error: Exception) -> int:
    """Report a bug of torchscan, and return its exit status."""
    if "TORCHSCAN_DEBUG" in os.environ:
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    address = issue_tracker()
    place = f" at {address}" if address else ""
    print_remark(
        f"internal error, please report it{place}: {error!r} (TORCHSCAN_DEBUG=1 shows the "
        "traceback)"
    )
    return INTERNAL_ERROR


def issue_tracker() -> str:
    """Return the address where problems are reported, or "" if ``pyproject.toml`` names none."""
    from importlib import metadata  # slow to import, and only for this

    try:
        addresses = metadata.metadata("torchscan").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a copy of the sources that is not installed
        return ""
    by_label: dict[str, str] = dict(each.split(", ", 1) for each in addresses if ", " in each)
    return by_label.get("Issues", "")


def _encodable(encoding: str | None, text: str) -> str:
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return (
            text.translate(_ASCII)
            .encode(encoding or "utf-8", "backslashreplace")
            .decode(encoding or "utf-8")
        )
    return text
