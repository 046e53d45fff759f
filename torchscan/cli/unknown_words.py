"""Words of a call that are neither commands nor options, with what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Collection, Sequence

#: a shape as people write it: 3,224,224 or (3, 224, 224)
_SHAPE = re.compile(r"\d+(, *\d+)*,?|\(\d+(, *\d+)*,?\)|\[\d+(, *\d+)*,?\]")
_PYTHON = re.compile(r"pythonw?(\d+(\.\d+)*)?(\.exe)?")


def describe_command(command: str, commands: Collection[str]) -> str:
    """Return an error about a command that does not exist, with the nearest."""
    nearest = difflib.get_close_matches(command, commands, 1)
    if nearest:
        return f"there is no command {command!r}: did you mean {nearest[0]}?"
    return f"there is no command {command!r}: choose from {', '.join(commands)}"


def describe_options(
    options: argparse.Namespace, unknown: Sequence[str], words: Sequence[str]
) -> str:
    """Return an error about words that are not options, with what was probably meant."""
    named = [word for word in unknown if word.startswith("-")] or list(unknown)
    verb = "is not an option" if len(named) == 1 else "are not options"
    problem = f"{' '.join(named)} {verb}"
    target = str(getattr(options, "target", None))
    is_python = _PYTHON.fullmatch(os.path.basename(target)) is not None
    if options.command == "inspect" and (target.endswith(".py") or is_python):
        index = list(words).index(target)
        script = shlex.join(["torchscan", *words[:index], "--", *words[index:]])
        return f"{problem}: give a script after --, {script}"
    quoted = _quote_device(options, unknown, words)
    if quoted is not None:
        return f"{problem}: quote a name with spaces, {quoted}"
    inputs = _to_inputs(unknown, words) if hasattr(options, "input") else ""
    if inputs:
        return f"{problem}: give a shape as {inputs}"
    nearest = difflib.get_close_matches(named[0], options.parser._option_string_actions, 1)
    return f"{problem}: did you mean {nearest[0]}?" if nearest else problem


def _quote_device(
    options: argparse.Namespace, unknown: Sequence[str], words: Sequence[str]
) -> str | None:
    """Return ``-d "RTX 4090"`` if the words after a device complete its name."""
    device = getattr(options, "device", None)
    for index, word in enumerate(words[:-1]):
        is_device = word in ("-d", "--device") and words[index + 1] == device
        if is_device and list(words[index + 2 :][: len(unknown)]) == list(unknown):
            return f'{word} "{" ".join([str(device), *unknown])}"'
    return None


def _to_inputs(unknown: Sequence[str], words: Sequence[str]) -> str:
    """Return ``--input 3,32,32`` for unknown words that are sizes or shapes, or else ""."""
    if not all(map(str.isdecimal, unknown)):
        if not all(map(_SHAPE.fullmatch, unknown)):
            return ""
        shapes = [re.sub(r"[^\d,]", "", each).strip(",") for each in unknown]
        return " ".join(f"--input {each}" for each in shapes)
    # One shape, written with spaces: of --input 3 32 32, the words 32 32 are unknown.
    sizes = list(unknown)
    for index, word in enumerate(words[:-1]):
        first = word.removeprefix("--input=")
        if first.isdecimal() and list(words[index + 1 :][: len(sizes)]) == sizes:
            sizes.insert(0, first)
            break
    return f"--input {','.join(sizes)}"
