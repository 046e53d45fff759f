"""Removal of control characters from text that reaches a terminal.

Names of modules, files and configs may contain escape sequences, which a terminal would obey.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: the sequences that make text bold, faint or colored, which torchscan itself writes
_STYLE = re.compile(r"(\x1b\[[\d;]*m)")
_BREAK = re.compile(r"([\n\t])")
_REPLACEMENT = "�"


def printable(text: str) -> str:
    """Return a name or a line of text with line breaks and control characters replaced."""
    if text.isprintable():
        return text
    controls = [ord(sign) for sign in text if not sign.isprintable()]
    return text.translate(dict.fromkeys(controls, _REPLACEMENT))


def printable_text(text: str) -> str:
    """Return text with control characters replaced, but for line breaks and tabs."""
    return _map_parts(printable, _BREAK, text)


def printable_styled(text: str) -> str:
    """Return text with control characters replaced, except line breaks, tabs and styles.

    Styles are the sequences that torchscan itself writes.
    """
    return _map_parts(printable_text, _STYLE, text)


def _map_parts(function: Callable[[str], str], kept: re.Pattern[str], text: str) -> str:
    """Apply a function to the parts of a text that lie between matches of a group, which stay."""
    parts = kept.split(text)
    parts[::2] = map(function, parts[::2])
    return "".join(parts)
