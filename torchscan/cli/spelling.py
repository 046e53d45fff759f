"""Words of the shell for arguments and values in the texts of errors and warnings."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from torchscan.errors import TorchName
from torchscan.wording import PYTHON


class ShellSpelling:
    """The options of a command, and values as a shell takes them.

    Arguments that the command has no option for are written as in Python, and marked as such.
    """

    is_python = False

    def __init__(self, options: argparse.Namespace) -> None:
        self._actions: dict[str, argparse.Action] = {}
        for action in options.parser._actions:
            parameter = getattr(action, "parameter", action.dest)
            is_given = getattr(options, action.dest, action.default) != action.default
            if is_given or parameter not in self._actions:
                self._actions[parameter] = action

    def name(self, parameter: str) -> str:
        """Return the option of an argument."""
        if parameter not in self._actions:
            return f"{parameter} (in Python)"
        action = self._actions[parameter]
        return action.option_strings[0] if action.option_strings else str(action.metavar)

    def argument(self, parameter: str, value: Any) -> str:
        """Return an option to give with its value, such as ``--batch-size 2``."""
        if parameter not in self._actions:
            return f"{PYTHON.argument(parameter, value)} (in Python)"
        option = self.name(parameter)
        if value is ... or value is True:
            return option
        if value is None or value is False:
            return f"no {option}"
        return " ".join([f"{option} {word}" for word in _to_words(value)])

    def value(self, value: Any) -> str:
        """Return a value as it may be written in a shell; texts are quoted."""
        if isinstance(value, str):
            return repr(value)
        return "missing" if value is None else " ".join(_to_words(value))


def _to_words(value: Any) -> list[str]:
    """Return the words of a value, one for each time that its option is given.

    Shapes of several inputs are separate words, dimensions of a mesh are not.
    """
    if isinstance(value, Mapping):
        named = [f"{name}={_to_word(each)}" for name, each in value.items()]
        is_mesh = all(isinstance(each, int) for each in value.values())
        return [",".join(named)] if is_mesh else named
    if not isinstance(value, list | tuple):
        return [_to_word(value)]
    if any(isinstance(each, list | tuple) for each in value):
        return [_to_word(each) for each in value]
    return [_to_word(value)]


def _to_word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join([_to_word(each) for each in value]) or "()"
    if isinstance(value, TorchName):
        return value.name.removeprefix("torch.")
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    return shlex.quote(value) if isinstance(value, str) else str(value)
