"""Other values of the constants of the time estimate, for as long as they are tried."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torchscan.analyses import roofline
from torchscan.analyses.roofline import attention_constants, collective_constants, constants

_MODULES = (constants, attention_constants, collective_constants)

#: ``TILE_LOADS``, ``FLASH_2.peak`` or ``LINK_SHARES[8]``
_NAME = re.compile(r"(\w+)(?:\.(\w+)|\[([\w ]+)\])?")


def value_of(name: str) -> float:
    """Return the package's value of a constant."""
    whole, field, key = _parts(name)
    value = _present(whole)
    if field is not None:
        return float(getattr(value, field))
    return float(value if key is None else value[key])


@contextmanager
def changed(values: Mapping[str, float]) -> Iterator[None]:
    """Give constants other values, wherever they were imported."""
    wanted: dict[str, Any] = {}
    for name, value in values.items():
        whole, field, key = _parts(name)
        before = wanted.get(whole, _present(whole))
        if field is not None:
            wanted[whole] = replace(before, **{field: value})
        else:
            wanted[whole] = value if key is None else {**before, key: value}

    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(roofline.__path__, f"{roofline.__name__}.")
    ]
    held = [(module, name) for module in modules for name in wanted if hasattr(module, name)]
    kept = [getattr(module, name) for module, name in held]
    for module, name in held:
        setattr(module, name, wanted[name])
    try:
        yield
    finally:
        for (module, name), value in zip(held, kept, strict=True):
            setattr(module, name, value)


def _present(whole: str) -> Any:
    """Return the value that a constant has now."""
    for module in _MODULES:
        if hasattr(module, whole):
            return getattr(module, whole)
    raise ValueError(f"{whole!r} is not a constant")


def _parts(name: str) -> tuple[str, str | None, Any]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no constant: give one such as 'FLASH_2.peak'")
    whole, field, key = found.groups()
    return whole, field, int(key) if key is not None and key.isdigit() else key
