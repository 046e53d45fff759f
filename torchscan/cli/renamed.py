"""Old spellings of commands and options, which are refused with the new ones named."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from torchscan.cli.arguments import RENAMED_OPTIONS

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
    inner = [name for name in parsers if name.startswith(f"{first} ")]
    command = f"{first} {second}" if inner else first
    if inner and second and not second.startswith("-") and command not in inner:
        choices = [f"torchscan {name} {second}" for name in inner]
        return f"there is no command {command!r}: write {' or '.join(choices)}"
    if command not in parsers:
        return None

    known = parsers[command]._option_string_actions
    for word in words:
        option = word.partition("=")[0]
        if option not in known and RENAMED_OPTIONS.get(option) in known:
            return f"{option} is not an option of {command}: write {RENAMED_OPTIONS[option]}"
    return None
