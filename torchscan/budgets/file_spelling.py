"""Words of a budget file for arguments and values in the texts of errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torchscan.errors import TorchName
from torchscan.wording import PYTHON

#: argument in Python -> the key with another name
_KEY_BY_ARGUMENT = {"input_shape": "input"}


class FileSpelling:
    """Keys and values of a budget file. Arguments without a key are written as in Python."""

    is_python = False

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = keys

    def name(self, parameter: str) -> str:
        """Return the key of an argument."""
        return _KEY_BY_ARGUMENT.get(parameter, parameter)

    def argument(self, parameter: str, value: Any) -> str:
        """Return a line to write, such as ``batch_size = 2``."""
        key = self.name(parameter)
        if key not in self._keys:
            return f"{PYTHON.argument(parameter, value)} (in Python)"
        if value is ...:
            return key
        if value is None:
            return f"no {key}"
        return f"{key} = {_to_toml(value, is_input=key == 'input')}"

    def value(self, value: Any) -> str:
        """Return a value in TOML."""
        return "missing" if value is None else _to_toml(value)


def _to_toml(value: Any, *, is_input: bool = False) -> str:
    """Return a value in TOML; shapes of inputs are strings, such as "3,224,224"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        named = [f'"{name}={_sizes(each)}"' for name, each in value.items()]
        return f"[{', '.join(named)}]"
    if isinstance(value, list | tuple):
        if is_input and not any(isinstance(each, list | tuple) for each in value):
            return f'"{_sizes(value)}"'
        items = [_to_toml(each, is_input=is_input) for each in value]
        return f"[{', '.join(items)}]"
    if isinstance(value, TorchName) or type(value).__module__ == "torch":
        return f'"{str(value).removeprefix("torch.")}"'
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def _sizes(shape: Any) -> str:
    return ",".join(map(str, shape)) if isinstance(shape, list | tuple) else str(shape)
