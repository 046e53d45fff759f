"""Terminals and notebooks: their width and colors, and a line about work that takes long."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from torchscan.errors import InputError
from torchscan.escapes import printable

#: seconds before the line is shown, and between updates
_PATIENCE, _TICK = 1.0, 0.5
#: characters of the text: a longer line could not be removed
_LONGEST = 60
#: held while a line is shown, so that work inside of this work shows none
_telling = threading.Lock()


@contextlib.contextmanager
def progress(what: str, *, is_shown: bool = True) -> Iterator[None]:
    """Show a line with the elapsed time on standard error while work takes longer than a second."""
    # In files, a line cannot be removed again.
    is_seen = is_shown and (is_terminal(sys.stderr) or is_of_notebook(sys.stderr))
    if not is_seen or not _telling.acquire(blocking=False):
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(printable(what)[:_LONGEST], done), daemon=True)
    try:
        with contextlib.suppress(RuntimeError):  # no thread can be started: nothing is said
            teller.start()
        yield
    finally:
        done.set()
        if teller.ident is not None:
            teller.join()
        _telling.release()


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal. Replacements of streams may lack the method."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # it is closed
        return False


def is_of_notebook(stream: TextIO | None) -> bool:
    """Return whether a stream writes below a notebook cell."""
    return type(stream).__module__.startswith("ipykernel.")


def has_colours(stream: TextIO) -> bool:
    """Return whether text for this stream is colored: in a terminal, unless ``NO_COLOR`` is set.

    With ``FORCE_COLOR``, the program's own output is colored in files, too. Output in notebooks is
    never colored: they set ``FORCE_COLOR`` for other programs and save the output.
    """
    if os.environ.get("NO_COLOR") or is_of_notebook(stream):
        return False
    if os.environ.get("FORCE_COLOR") and stream in (sys.__stdout__, sys.__stderr__):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """Return the width of the terminal that shows a stream, in characters, or 80 for others."""
    if not is_terminal(stream):
        return 80
    return shutil.get_terminal_size((80, 24)).columns


def check_width(width: object) -> None:
    """Raise an InputError if ``width`` is not a positive integer."""
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise InputError.of_value("width", width, "give a number of characters")


def _tell(what: str, done: threading.Event) -> None:
    start = time.monotonic()
    if done.wait(_PATIENCE):
        return
    width = 0
    while True:
        line = f"{what} … {time.monotonic() - start:.0f} s"
        width = max(width, len(line))
        sys.stderr.write(f"\r{line:{width}}")
        sys.stderr.flush()
        if done.wait(_TICK):
            break
    sys.stderr.write(f"\r{'':{width}}\r")
    sys.stderr.flush()
