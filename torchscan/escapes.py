"""Removal of control characters from text that reaches a terminal.

Names of modules, files and configs may contain escape sequences, which a terminal would obey.
"""

from __future__ import annotations

import re

#: the sequences that make text bold, faint or colored, which torchscan itself writes
_STYLE = re.compile(r"(\x1b\[[\d;]*m)")
_REPLACEMENT = "�"


def printable(text: str) -> str:
    """Return a name or a line of text with line breaks and control characters replaced."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _REPLACEMENT for sign in text)


def printable_text(text: str) -> str:
    """Return text with control characters replaced, but for line breaks and tabs."""
    return "".join(part if part in ("\n", "\t") else printable(part) for part in re.split(r"([\n\t])", text))


def printable_styled(text: str) -> str:
    """Return text with control characters replaced, but for line breaks, tabs, and the style of what torchscan writes."""
    return "".join(part if _STYLE.fullmatch(part) else printable_text(part) for part in _STYLE.split(text))
