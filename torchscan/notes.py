"""Notes: assumptions, warnings, reasons, events and findings as data.

A note has a code, such as ``"random-values"``, and the values that its sentence mentions. Code
that compares, stores or drops notes reads these. The sentence of a code is made when the note
is shown; modules such as ``result_texts`` in ``torchscan.report`` have them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from torchscan.formatters import load_writers

#: code -> the sentence, with the names of values in braces, or a function of the values; "text" is
#: the code of sentences from files of older versions
_texts: dict[str, Any] = {"text": "{text}"}
#: type of a fact -> its sentence
_descriptions: dict[type, Callable[[Any], str]] = {}

F = TypeVar("F")


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """A fact about a result. ``str(note)`` is its sentence."""

    #: name of the fact, in lower case with hyphens
    code: str
    #: texts, numbers, booleans, None, and lists and mappings of these, by name
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: str, **values: Any) -> Note:
        """Return a note with these values."""
        return cls(code, values)

    @classmethod
    def from_text(cls, text: str) -> Note:
        """Return a note of a sentence, which files of older versions have."""
        return cls("text", {"text": text})

    @classmethod
    def from_data(cls, data: object) -> Note:
        """Return the note of plain data, or of a sentence; raise a ValueError for anything else."""
        if isinstance(data, str):
            return cls.from_text(data)
        if isinstance(data, Mapping):
            code, values = data.get("code"), data.get("values")
            if isinstance(code, str) and isinstance(values, Mapping):
                return cls(code, values)
        raise ValueError("a note has a code and values")

    def to_data(self) -> dict[str, Any]:
        """Return plain data, as JSON and the values of other notes hold it."""
        return {"code": self.code, "values": dict(self.values)}

    def __str__(self) -> str:
        """Return the sentence, without its capital and period."""
        return text_of(self)

    @property
    def sentence(self) -> str:
        """The text with its capital and period, as it stands below a table."""
        text = str(self)
        return f"{text[:1].upper()}{text[1:]}."

    def __eq__(self, other: object) -> bool:
        """Return whether the other note has the same code and equal values."""
        if not isinstance(other, Note):
            return NotImplemented
        return self.code == other.code and self._key() == other._key()

    def __hash__(self) -> int:
        """Return the hash of the code and the values."""
        return hash((self.code, self._key()))

    def _key(self) -> str:
        return json.dumps(self.values, sort_keys=True, default=str)


def register_texts(texts: Mapping[str, Any]) -> None:
    """Register the sentences of codes."""
    repeated = _texts.keys() & texts.keys()
    if repeated:
        raise ValueError(f"{', '.join(sorted(repeated))} already have sentences")
    _texts.update(texts)


def registered_texts() -> Mapping[str, Any]:
    """Return the sentence of each code: a format string, or a function of the values."""
    load_writers()
    return MappingProxyType(_texts)


def text_of(note: Note) -> str:
    """Return the sentence of a note, or its code and values if a newer version wrote it."""
    if note.code not in _texts:
        load_writers()
    text = _texts.get(note.code)
    try:
        if isinstance(text, str):
            return text.format(**note.values)
        return repr(note) if text is None else str(text(**note.values))
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ):  # a file with other values
        return repr(note)


def register_description(kind: type[F], describe: Callable[[F], str]) -> None:
    """Register the sentence of facts that are of a type of their own."""
    _descriptions[kind] = describe


def describe(fact: object) -> str:
    """Return the sentence of a fact whose type has a registered description."""
    if type(fact) not in _descriptions:
        load_writers()
    return _descriptions[type(fact)](fact)
