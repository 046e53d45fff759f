"""Conversion of dataclasses and named tuples to plain data, which JSON can hold, and back."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")

#: JSON has no such numbers: they are written as these texts, which ``float`` reads
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


#: class -> by field the key that it is stored under, if that is another
_STORED_KEYS: dict[type, Mapping[str, str]] = {}


def stored_as(**keys: str) -> Callable[[type[_T]], type[_T]]:
    """Store fields of a class under other keys than their names, as in files that exist."""

    def register(kind: type[_T]) -> type[_T]:
        _STORED_KEYS[kind] = keys
        return kind

    return register


def stored_key(kind: type, name: str) -> str:
    """Return the key that a field is stored under."""
    return _STORED_KEYS.get(kind, {}).get(name, name)


def to_plain(value: Any) -> Any:
    """Return dicts, lists, texts, numbers and None; other objects, such as dtypes, as their text.

    A number that is not finite becomes one of ``NOT_FINITE``.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return _to_plain_number(value)
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    kind: Any = type(value)
    if is_record(kind):
        keys = _STORED_KEYS.get(kind, {})
        names = field_types(kind)
        return {keys.get(name, name): to_plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return int(value) if isinstance(value, numbers.Integral) else str(value)


def _to_plain_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    nan, infinity, minus_infinity = NOT_FINITE
    if math.isnan(value):
        return nan
    return infinity if value > 0 else minus_infinity


def from_plain(kind: Any, data: Any) -> Any:
    """Return an object of this type from the data that :func:`to_plain` returned.

    The data must have its form. Extra keys are ignored.
    """
    arguments = get_args(kind)
    if is_optional(kind):
        return None if data is None else from_plain(arguments[0], data)
    if get_origin(kind) is tuple:
        return tuple(from_plain(arguments[0], each) for each in data)
    if get_origin(kind) in (dict, Mapping):
        return {key: from_plain(arguments[1], each) for key, each in data.items()}
    if is_record(kind):
        values = {}
        for name, field_type in field_types(kind).items():
            key = stored_key(kind, name)
            if key in data:
                values[name] = from_plain(field_type, data[key])
        return kind(**values)
    return float(data) if kind is float else data


def is_record(kind: Any) -> bool:
    """Return whether a class has fields: a dataclass or a named tuple."""
    if not isinstance(kind, type):
        return False
    return is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def is_optional(kind: Any) -> bool:
    """Return whether a type is ``X | None``, in this order."""
    return get_origin(kind) in (Union, UnionType) and get_args(kind)[1:] == (type(None),)


@lru_cache(maxsize=64)
def field_types(kind: Any) -> dict[str, Any]:
    """Return the type of each field by its name."""
    if issubclass(kind, tuple):
        names = kind._fields
    else:
        names = [each.name for each in fields(kind)]
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


def required_fields(kind: Any) -> list[str]:
    """Return the fields without a default."""
    if issubclass(kind, tuple):
        return [name for name in kind._fields if name not in kind._field_defaults]
    return [
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    ]
