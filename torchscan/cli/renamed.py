"""Old spellings of commands and options, which are refused with the new ones named."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence

_COMMANDS = {
    "flops": "summary TARGET --by operator",
    "train": "llm train",
    "explore": "runs open",
    "merge": "runs merge",
}
#: options by their old spellings and by those of other tools, which are refused; with the value
#: that an old option stood for
RENAMED_OPTIONS = {
    "-i": "--input",
    "--backward": "--training",
    "--batch": "--batch-size",
    "--context": "--cuda-context",
    "--depth": "--max-depth",
    "--eager": "--engine transformers",
    "--device": "--run-on",
    "--filter": "--match",
    "--global-batch": "--global-batch-size",
    "--gpu": "--device",
    "--gpus": "--num-gpus",
    "--input-shape": "--input",
    "--input-size": "--input",
    "--network": "--network-gbs",
    "--remedies": "--suggestions",
    "--rf": "--receptive-field",
    "--train": "--training",
    "--wrap": "--wrap-mode",
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
