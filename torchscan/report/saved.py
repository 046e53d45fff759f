"""Common format of JSON files: each names its kind of data and the version of its schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from torchscan.errors import InputError
from torchscan.files import read_text
from torchscan.inspecting import run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, and the latest version of its schema."""

    name: str
    version: int
    #: what it is called, and how one is made
    noun: str
    advice: str

    @property
    def schema_id(self) -> str:
        """The name of the schema in a file."""
        return f"{self.name}/{self.version}"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the data; it is shared."""
        return _schema(self.name.rpartition("/")[2])

    def require(self, content: Any) -> None:
        """Refuse another kind of data, and what a newer torchscan wrote."""
        kind, version = _read_kind(content)
        if kind is not self:
            known = f", but a {kind.noun}" if kind is not None else ""
            raise InputError(f"it is not a {self.noun} of torchscan{known}: {self.advice}")
        if version > self.version:
            known = f"and this torchscan reads up to {self.version}"
            raise InputError(
                f"it is a {self.noun} of schema {version}, {known}: install a newer torchscan"
            )


#: a version grows where a reader of the one before would misread the data, not with every new key
REPORT = FileKind(
    "torchscan/info", 2, "report", "write one with to_json() or `torchscan summary --format json`"
)
RUN = FileKind(run.KIND, run.SCHEMA, "run", "save one of inspect() with run.save('run.json')")


def content_of(text: str) -> Any:
    """Return the content of JSON. Numbers must be finite."""
    try:
        return json.loads(text, parse_constant=_not_a_number, parse_float=_number)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {error}") from error


def read_saved(path: Path, noun: str, make: Callable[[Any], T]) -> T:
    """Return the result of ``make`` for a file's content. Errors name the file."""
    text = read_text(path, f"the {noun}")
    try:
        return make(content_of(text))
    except InputError as error:
        raise InputError.about(path, error) from error


def is_run(content: Any) -> bool:
    """Return whether content is a run, and not an info."""
    return _read_kind(content)[0] is RUN


def _read_kind(content: Any) -> tuple[FileKind | None, int]:
    """The kind of data that it says it is, and the version."""
    given = content.get("schema") if isinstance(content, dict) else None
    for kind in (REPORT, RUN):
        version = (
            re.fullmatch(rf"{kind.name}/([1-9][0-9]{{0,8}})", given)
            if isinstance(given, str)
            else None
        )
        if version is not None:
            return kind, int(version[1])
    return None, 0


@cache
def _schema(name: str) -> dict[str, Any]:
    content = (
        resources.files("torchscan.report")
        .joinpath(f"{name}.schema.json")
        .read_text(encoding="utf-8")
    )
    schema: dict[str, Any] = json.loads(content)
    return schema


def _not_a_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _number(text: str) -> int | float:
    """Return a finite number, and an integer for 3.0, which is one in JSON Schema."""
    value = float(text)
    if not math.isfinite(value):
        _not_a_number(text)
    if value.is_integer():
        return int(value)
    return value
