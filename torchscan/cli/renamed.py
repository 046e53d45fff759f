"""Old spellings of commands and options, which are refused with the new ones named."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Mapping, Sequence

from torchscan.cli.option_table import RENAMED_OPTIONS

_COMMANDS = {
    "flops": "summary TARGET --by operator",
    "train": "llm train",
    "explore": "runs open",
    "merge": "runs merge",
}


def describe_renamed(
    words: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]
) -> str | None:
    """Return an error about the first old spelling in the words of a call, or None."""
    first, second = [*words, "", ""][:2]
    if first in _COMMANDS:
        return f"there is no command {first!r}: write torchscan {_COMMANDS[first]}"
    if first in parsers:
        return _describe_option(words, first, parsers[first])
    command = f"{first} {second}"
    if command in parsers:
        return _describe_option(words, command, parsers[command])
    inner = [name for name in parsers if name.startswith(f"{first} ")]
    if not inner or not second or second.startswith("-"):
        return None
    nearest = difflib.get_close_matches(command, inner, 1, cutoff=0.8)
    if nearest:
        return f"there is no command {command!r}: did you mean {nearest[0]}?"
    choices = " or ".join(f"torchscan {name} {second}" for name in inner)
    return f"there is no command {command!r}: write {choices}"


def describe_unknown(command: str, commands: Collection[str]) -> str:
    """Return an error about a command that does not exist, with the nearest."""
    nearest = difflib.get_close_matches(command, commands, 1)
    if nearest:
        return f"there is no command {command!r}: did you mean {nearest[0]}?"
    return f"there is no command {command!r}: choose from {', '.join(commands)}"


def _describe_option(
    words: Sequence[str], command: str, parser: argparse.ArgumentParser
) -> str | None:
    known = parser._option_string_actions
    for word in words:
        option = word.partition("=")[0]
        new = RENAMED_OPTIONS.get(option, "")
        if option not in known and new.partition(" ")[0] in known:
            return f"{option} is not an option of {command}: write {new}"
    return None
