"""Checks data against a JSON schema: the part of JSON Schema that our own schema is written in."""

from __future__ import annotations

import reprlib
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def mismatch(data: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, where: str = "the report") -> str | None:
    """What is wrong, and where; None if nothing is wrong."""
    root = schema if root is None else root
    if "$ref" in schema:
        return mismatch(data, root["$defs"][schema["$ref"].rpartition("/")[2]], root, where)
    if "anyOf" in schema:
        found = [mismatch(data, each, root, where) for each in schema["anyOf"]]
        return None if None in found else f"{where} is {_shown(data)}"
    return (
        _type_mismatch(data, schema, where) or _object_mismatch(data, schema, root, where) or _items(data, schema, root, where)
    )


def _type_mismatch(data: Any, schema: dict[str, Any], where: str) -> str | None:
    allowed = schema.get("type")
    names = [allowed] if isinstance(allowed, str) else allowed or list(_TYPES)
    if not any(_is(data, name) for name in names):
        return f"{where} is {_shown(data)}, and not {' or '.join(names)}"
    if "enum" in schema and data not in schema["enum"]:
        return f"{where} is {_shown(data)}, and not one of {', '.join(map(str, schema['enum']))}"
    if "minimum" in schema and data < schema["minimum"]:
        return f"{where} is {_shown(data)}, and not {schema['minimum']} or more"
    return None


def _is(data: Any, name: str) -> bool:
    """A boolean is not a number; a number without a fraction is an integer, however it is written."""
    if isinstance(data, bool):
        return name == "boolean"
    if name == "integer" and isinstance(data, float):
        return data.is_integer()
    return isinstance(data, _TYPES[name])


def _object_mismatch(data: Any, schema: dict[str, Any], root: dict[str, Any], where: str) -> str | None:
    if not isinstance(data, dict):
        return None
    missing = [key for key in schema.get("required", ()) if key not in data]
    if missing:
        return f"{where} has no {missing[0]!r}"
    properties = schema.get("properties", {})
    parts = [(value, properties.get(key, schema.get("additionalProperties")), key) for key, value in data.items()]
    wrong = (mismatch(value, part, root, f"{where}{_step(key)}") for value, part, key in parts if isinstance(part, dict))
    return next((each for each in wrong if each is not None), None)


def _items(data: Any, schema: dict[str, Any], root: dict[str, Any], where: str) -> str | None:
    if not isinstance(data, list):
        return None
    if len(data) < schema.get("minItems", 0):
        return f"{where} is empty"
    wrong = (mismatch(each, schema.get("items", {}), root, f"{where}[{index}]") for index, each in enumerate(data))
    return next((each for each in wrong if each is not None), None)


def _step(key: str) -> str:
    """The step to this key, on one line even if the key has line breaks."""
    return f".{key}" if key.isidentifier() and len(key) < 40 else f"[{reprlib.repr(key)}]"


def _shown(data: Any) -> str:
    text = reprlib.repr(data)  # whatever its depth and length
    return text if len(text) <= 40 else f"{text[:39]}…"
