"""The JSON schema of saved runs, made from the dataclasses and the comments on their fields.

``python scripts/run_schema.py`` writes it to the package; a test compares the two.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torchscan
from torchscan.inspecting.run import RunFacts
from torchscan.notes import Note
from torchscan.plain import (
    NOT_FINITE,
    field_types,
    is_optional,
    is_record,
    required_fields,
    stored_key,
)
from torchscan.report.saved import RUN

PLACE = Path(torchscan.__file__).parent / "report" / "run.schema.json"
_LARGEST = 10**30
_RANGE = {"minimum": -_LARGEST, "maximum": _LARGEST}
_PLAIN: dict[type, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", **_RANGE},
    float: {"$ref": "#/$defs/float"},
}
_FLOAT = {
    "description": "a number; one that is not finite is a text",
    "anyOf": [{"type": "number", **_RANGE}, {"type": "string", "enum": list(NOT_FINITE)}],
}


def written() -> str:
    """The file's text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """Of ``RunFacts``; what it is made of is below ``$defs``."""
    defs: dict[str, Any] = {}
    top = _object(RunFacts, defs)
    said = {"type": "string", "description": f"{RUN.name}/ and the version of the schema"}
    verdict = {**_of(Note | None, defs), "description": inspect.getdoc(RunFacts.verdict)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "torchscan run",
        "description": "What run.save writes. Keys that are not listed may be there, and are to be left alone.",
        "type": "object",
        "properties": {"schema": said, **top["properties"], "verdict": verdict},
        "required": ["schema", *top["required"]],
        "$defs": {"float": _FLOAT, **defs},
    }


def _object(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    said = _comments(kind)
    properties = {
        stored_key(kind, name): {**_of(each, defs), **_described(said.get(name))}
        for name, each in field_types(kind).items()
    }
    return {
        "type": "object",
        "description": _first_line(kind),
        "properties": properties,
        "required": [stored_key(kind, name) for name in required_fields(kind)],
    }


def _of(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if is_record(kind):
        if kind.__name__ not in defs:
            defs[kind.__name__] = {}  # in the order in which they are met
            defs[kind.__name__] |= _object(kind, defs)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if is_optional(kind):
        return {"anyOf": [_of(get_args(kind)[0], defs), {"type": "null"}]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _of(get_args(kind)[0], defs)}
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(get_args(kind))}
    if kind is Any:
        return {}
    if get_origin(kind) in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(get_args(kind)[1], defs)}
    return _PLAIN[kind]


def _described(said: str | None) -> dict[str, str]:
    return {"description": said} if said else {}


def _first_line(kind: Any) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _comments(kind: Any) -> dict[str, str]:
    """Field -> the comment above it, also of the classes that it extends."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        waiting: list[str] = []
        for line in _source(each):
            name = re.match(r"(\w+): ", line)
            found |= {name[1]: " ".join(waiting)} if name and waiting else {}
            waiting = [*waiting, line.removeprefix("#: ")] if line.startswith("#: ") else []
    return found


def _source(kind: Any) -> list[str]:
    """The lines of a class of ours."""
    is_ours = kind.__module__.startswith("torchscan.")
    return [line.strip() for line in inspect.getsource(kind).splitlines()] if is_ours else []
