"""Modules whose weights a quantized checkpoint leaves in 16 bits, as its config names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

#: keys of a quantization config with names or patterns of modules, by the program that wrote it
_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


def quantization_of(model: nn.Module) -> Mapping[str, Any]:
    """Return the quantization config of a model's checkpoint, which is empty if it has none."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config") and not hasattr(config, "quantization_config"):
        config = config.get_text_config()
    found: Any = getattr(config, "quantization_config", None)
    if hasattr(found, "to_dict"):
        found = found.to_dict()
    return found if isinstance(found, Mapping) else {}


def kept_modules(model: nn.Module) -> tuple[str, ...]:
    """Return names and patterns of the modules whose weights stay in 16 bits."""
    quantization = quantization_of(model)
    lists = [quantization.get(key) for key in _KEYS]
    names = [name for each in lists if isinstance(each, list | tuple) for name in each]
    return tuple(name for name in names if isinstance(name, str))


def is_kept(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a module, or one that contains it, matches a pattern.

    Patterns are names such as "lm_head", with * for any text, or regular expressions after "re:".
    """
    parts = path.split(".")
    for end in range(len(parts)):
        name = ".".join(parts[: end + 1])
        for pattern in patterns:
            expression = pattern.removeprefix("re:")
            if expression != pattern:
                is_match = re.match(expression, name) is not None
            else:
                is_match = fnmatchcase(name, pattern) or name.endswith(f".{pattern}")
            if is_match:
                return True
    return False
