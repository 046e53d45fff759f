"""Arguments of ``watch`` and its sinks: what is accepted, and in which form it is used."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchscan.errors import InputError

_LONGEST = 80
#: greatest step that is accepted: the file of a run has room for those that follow
MAX_STEP = 2**52


def whole_number(
    name: str, value: object, least: int, most: int, what: str = "a whole number"
) -> int:
    """Return an integer, which may be one of numpy's or a tensor's."""
    found: int | None = None
    if not _is_boolean(value):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            found = operator.index(value)  # type: ignore[arg-type]
    if found is None or not least <= found <= most:
        is_too_great = found is not None and found > most
        has_limit = most < MAX_STEP or is_too_great
        limits = f"{least} to {most}" if has_limit else f"{least} or more"
        raise InputError(f"{name} is {quote(value)}: give {what} ({limits})")
    return found


def number_above_zero(name: str, value: object, what: str, most: float = math.inf) -> float:
    """Return a float above 0, which may be one of numpy's or a tensor's."""
    found = None if _is_boolean(value) else _float_of(value)
    if found is None or not 0 < found <= most:
        raise InputError(f"{name} is {quote(value)}: give {what}")
    return found


def flag(name: str, value: object) -> bool:
    """Return a boolean."""
    if _is_boolean(value) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise InputError(f"{name} is {quote(value)}: give True or False")


def list_of(name: str, value: object, what: str, *, is_one: Callable[[Any], bool]) -> list[Any]:
    """Return a list of wanted values, from any iterable."""
    if isinstance(value, str) or is_one(value):
        noun = "text" if isinstance(value, str) else type(value).__name__
        raise InputError(f"{name} is a single {noun}: give a list, {name}=[{quote(value)}]")
    try:
        found: list[Any] = list(value)  # type: ignore[call-overload]
    except TypeError as error:
        raise InputError(f"{name} is {quote(value)}: give a list of {what}") from error
    wrong = [each for each in found if not is_one(each)]
    if wrong:
        raise InputError(f"{name} has {quote(wrong[0])}: give a list of {what}")
    return found


def texts(name: str, value: object, what: str) -> list[str]:
    """Return a list of strings."""
    return list_of(name, value, what, is_one=lambda each: isinstance(each, str))


def path(name: str, value: object, what: str) -> Path:
    """Return a path whose text is one that can be opened: not empty, and without NUL."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} is {quote(value)}: give {what}")
    return Path(text)


def choice(name: str, value: object, known: Sequence[str]) -> str:
    """Return one of several strings."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} is {quote(value)}: choose from {', '.join(known)}")
    return value


def quote(value: object) -> str:
    """Return a value as it is named in a message, in one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an object of the user's
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _float_of(value: object) -> float | None:
    is_number = isinstance(value, numbers.Real) or hasattr(value, "dtype")
    if not is_number:
        return None
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return found
