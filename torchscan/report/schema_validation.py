"""Checks of data against a JSON schema, for the part of JSON Schema that our schemas need."""

from __future__ import annotations

import math
import reprlib
from typing import Any

#: larger integers are told by their power of ten
_MAX_IN_FULL = 10**25
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def mismatch(data: Any, schema: dict[str, Any], what: str = "the report") -> str | None:
    """Return the first error and its place, or None if the data are valid."""
    wrong = _wrong(data, schema, schema)
    return None if wrong is None else f"{what}{wrong}"


def _wrong(data: Any, schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    """Return the first error, to be written after the place of the data."""
    if "$ref" in schema:
        return _wrong(data, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        is_right = any(_wrong(data, each, root) is None for each in schema["anyOf"])
        return None if is_right else f" is {_format_data(data)}"
    return (
        _type_mismatch(data, schema)
        or _object_mismatch(data, schema, root)
        or _items(data, schema, root)
    )


def _type_mismatch(data: Any, schema: dict[str, Any]) -> str | None:
    allowed = schema.get("type")
    names = [allowed] if isinstance(allowed, str) else allowed or list(_TYPES)
    if not any(_is(data, name) for name in names):
        return f" is {_format_data(data)}, not {' or '.join(names)}"
    if "enum" in schema and data not in schema["enum"]:
        return f" is {_format_data(data)}, not one of {', '.join(map(str, schema['enum']))}"
    if not _is(data, "number"):
        return None
    if "minimum" in schema and not data >= schema["minimum"]:
        return f" is {_format_data(data)}, not {schema['minimum']:g} or more"
    if "maximum" in schema and not data <= schema["maximum"]:
        return f" is {_format_data(data)}, not {schema['maximum']:g} or less"
    return None


def _is(data: Any, name: str) -> bool:
    """Return whether data have a type of JSON Schema.

    A boolean is not a number, and every number without a fraction is an integer.
    """
    if isinstance(data, bool):
        return name == "boolean"
    if name == "integer" and isinstance(data, float):
        return data.is_integer()
    return isinstance(data, _TYPES[name])


def _object_mismatch(data: Any, schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    if not isinstance(data, dict):
        return None
    strange = [key for key in data if not isinstance(key, str)]
    if strange:
        return f" has the key {_format_data(strange[0])}, which is not a string"
    missing = [key for key in schema.get("required", ()) if key not in data]
    if missing:
        return f" has no {missing[0]!r}"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, value in data.items():
        part = properties.get(key, others)
        wrong = _wrong(value, part, root) if isinstance(part, dict) else None
        if wrong is not None:
            return f"{_place_of(key)}{wrong}"
    return None


def _place_of(key: str) -> str:
    """Return the place of a key, on one line even if the key has line breaks."""
    if key.isidentifier() and len(key) < 40:
        return f".{key}"
    return f"[{reprlib.repr(key)}]"


def _items(data: Any, schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    if not isinstance(data, list):
        return None
    if len(data) < schema.get("minItems", 0):
        return " is empty"
    for index, each in enumerate(data):
        wrong = _wrong(each, schema.get("items", {}), root)
        if wrong is not None:
            return f"[{index}]{wrong}"
    return None


def _format_data(data: Any) -> str:
    # Python refuses to write out thousands of digits.
    if isinstance(data, int) and abs(data) >= _MAX_IN_FULL:
        sign = "-" if data < 0 else ""
        return f"about {sign}1e{math.log10(abs(data)):.0f}"
    text = reprlib.repr(data)  # whatever its depth and length
    return text if len(text) <= 40 else f"{text[:39]}…"
