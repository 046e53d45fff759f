"""Layout of help texts: prose, lists and commands that fit the width of the terminal."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from itertools import groupby
from typing import Any

#: beginning of the paragraph with commands
_EXAMPLES = "examples\n"
#: words of a command, an option with its value; quoted spaces do not part words
_WORD = re.compile(r"(?:-\S+ (?!-))?(?:\"[^\"]*\"|'[^']*'|[^\s\"'])+")
#: an entry of a list, or a line of TOML: two columns, with at least two spaces between them
_COLUMNS = re.compile(r"(?P<first> +\S.*?) {2,}(?P<second>\S.*)")
#: characters that the second column of a list gets at least
_MIN_WIDTH = 20


class HelpLayout(argparse.HelpFormatter):
    """A formatter that fits explanations to the width, and keeps lists, code and commands.

    The usage has no lists of choices, which would be wider than the terminal.
    """

    _is_usage = False

    def _format_usage(self, *args: Any) -> str:
        self._is_usage = True
        try:
            usage = super()._format_usage(*args)
        finally:
            self._is_usage = False
        return usage

    def _metavar_formatter(
        self, action: argparse.Action, default_metavar: str
    ) -> Callable[[int], tuple[str, ...]]:
        def repeat_metavar(number: int) -> tuple[str, ...]:
            return (default_metavar,) * number

        formatter = super()._metavar_formatter(action, default_metavar)
        first, *_ = formatter(1)
        is_list = bool(action.option_strings) and str(first).startswith("{")
        return repeat_metavar if self._is_usage and is_list else formatter

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [_fill(paragraph, width - len(indent)) for paragraph in text.split("\n\n")]
        return textwrap.indent("\n\n".join(paragraphs), indent)


def _fill(paragraph: str, width: int) -> str:
    if paragraph.startswith(_EXAMPLES):
        heading, *commands = paragraph.replace(" \\\n", " ").split("\n")
        return "\n".join([heading, *(_fill_command(each, width) for each in commands)])

    parts = []
    for is_prose, lines in groupby(paragraph.split("\n"), lambda line: not line.startswith(" ")):
        if is_prose:
            parts.append(textwrap.fill(" ".join(lines), width))
        else:
            parts += [_fill_entry(line, width) for line in lines]
    return "\n".join(parts)


def _fill_command(command: str, width: int) -> str:
    """Return a command in lines that a shell joins."""
    lines = [""]
    for word in _WORD.findall(command):
        is_first = lines == [""]
        # " \" follows every line but the last.
        if not is_first and len(lines[-1]) + 1 + len(word) > width - 2:
            lines.append("   ")
        lines[-1] += f"  {word}" if is_first else f" {word}"
    return " \\\n".join(lines)


def _fill_entry(line: str, width: int) -> str:
    """Return an entry of a list with its second column wrapped, or a comment above its code."""
    if len(line) <= width:
        return line
    found = _COLUMNS.fullmatch(line)
    if found is None:
        return textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False)
    first, second = found["first"], found["second"]
    if second.startswith("#"):
        comment = textwrap.wrap(second.removeprefix("# "), width - 4)
        return "\n".join([*(f"  # {each}" for each in comment), first])
    start = found.start("second")
    if width - start < _MIN_WIDTH:
        return f"{first}\n{_fill_entry(f'      {second}', width)}"
    room = " " * start
    return textwrap.fill(second, width, initial_indent=first.ljust(start), subsequent_indent=room)
