"""The user's own values of modules by path, checked: numbers of any kind, from any mapping."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from torchscan.errors import InputError, Value
from torchscan.report.paging.row_values import truncate_text
from torchscan.user_warnings import warn_user

#: values by path; None means no value
Values = Mapping[str, SupportsFloat | None]
#: checked values by path, by the names of overlays
NamedValues = dict[str, dict[str, float]]

_MAX_OVERLAYS = 20
#: a text that is a number
_NUMBER = re.compile(r"\s*[-+]?\d[\d.,_]*(e[-+]?\d+)?\s*", re.IGNORECASE)


@runtime_checkable
class HasItems(Protocol):
    """A mapping, or an object that is read like one, such as a pandas Series or DataFrame."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return keys and values."""


def named_values(given: HasItems, default: str) -> NamedValues:
    """Return checked values by name. Values without a name have the ``default`` one."""
    content = list(given.items())
    nested = [isinstance(value, HasItems) for _, value in content]
    if any(nested) and not all(nested):
        raise InputError("it mixes numbers and mappings: give numbers by path, or mappings by name")
    left_out: list[str] = []
    if any(nested):
        content, left_out = _split_off_text(content)
    else:
        name = None if isinstance(given, Mapping) else getattr(given, "name", None)
        content = [(name or default, given)]  # a Series may have a name
    for name, _ in content:
        if not isinstance(name, str) or not name.strip():
            raise InputError("a name is ", Value(name), ": give a string")
    found = {name: _checked_values(name, given) for name, given in content}
    return leave_out(left_out, found, "give numbers by the paths of modules")


def leave_out(names: Sequence[str], found: NamedValues, advice: str) -> NamedValues:
    """Warn about columns that are empty or mostly text, and return the overlays.

    Raise an InputError if there are no overlays (with the advice), or too many for an HTML report.
    """
    shown = ", ".join(map(label_of_path, names))
    if not found:
        problem = f"too few numbers in {shown}" if names else "no numbers"
        raise InputError(f"{problem}: {advice}")
    if names:
        warn_user(f"columns that are empty or mostly text are not shown as overlays: {shown}")
    if len(found) > _MAX_OVERLAYS:
        raise InputError(f"it has {len(found)} overlays: give at most {_MAX_OVERLAYS}")
    return found


def _split_off_text(
    columns: Iterable[tuple[Any, HasItems]],
) -> tuple[list[tuple[Any, HasItems]], list[str]]:
    """Return the columns to show, and the names of those that are mostly text or, in pandas, empty.

    Numbers that were not converted from text are no such text: they are an error.
    """
    shown = []
    left_out = []
    for name, column in columns:
        values = [value for _, value in column.items() if not _is_missing(value, column)]
        strings = [value for value in values if isinstance(value, str)]
        num_texts = sum(not _NUMBER.fullmatch(value) for value in strings)
        is_empty = not values and not isinstance(column, Mapping)
        if is_empty or num_texts > len(values) - num_texts:
            left_out.append(str(name))
        else:
            shown.append((name, column))
    return shown, left_out


def _is_missing(value: object, given: HasItems) -> bool:
    """Return whether there is no value: None or, in a column of pandas, also NaN or NA."""
    if value is None or isinstance(given, Mapping):
        return value is None
    number = _number_of(value)
    is_nan = number is not None and math.isnan(number)
    return is_nan or type(value).__name__ == "NAType"


def _checked_values(name: str, given: HasItems) -> dict[str, float]:
    values: dict[str, float] = {}
    for path, value in given.items():
        if not isinstance(path, str):
            index = "" if isinstance(given, Mapping) else ", in pandas with set_index('path')"
            advice = f": give the path of a module as a string{index}"
            raise InputError("a path is ", Value(path), advice)
        if path in values:
            raise InputError(f"{label_of_path(path)} has two values: give each path once")
        if _is_missing(value, given):
            continue
        number = _number_of(value)
        if number is None or not math.isfinite(number):
            place = f"{label_of_path(name)} of {label_of_path(path)} is "
            raise InputError(place, Value(value), ": give a finite number")
        values[path] = number
    if not values:
        raise InputError(
            f"{label_of_path(name)} has no values: give numbers by the paths of modules"
        )
    return values


def _number_of(value: Any) -> float | None:
    """Return a value as a float, also a tensor or array of one element, or None if it cannot be."""
    if isinstance(value, str | bytes | bool):
        return None
    with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
        # float() warns about tensors that require a gradient, and of arrays with dimensions
        item = getattr(value, "item", None)
        return float(value if item is None else item())
    return None


def label_of_path(path: str) -> str:
    """Return a path or a name as errors show it."""
    return truncate_text(path) or "the model"
