"""Notes: assumptions, warnings, reasons, events and findings as data.

A note has a code, such as ``"random-values"``, and the values that its sentence mentions. Code
that compares, stores or drops notes reads these. ``torchscan.report.note_texts`` has the sentence
of each code, which is made when the note is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchscan.results import load_writers

#: code -> the sentence, with the names of values in braces, or a function of the values
_texts: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """A fact about a result. ``str(note)`` is its sentence."""

    #: what the note is about, in lower case with hyphens
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


def text_of(note: Note) -> str:
    """Return the sentence of a note, or its code and values if a newer version wrote it."""
    load_writers()
    text = _texts.get(note.code)
    if text is None:
        return repr(note)
    sentence: str = text.format(**note.values) if isinstance(text, str) else text(**note.values)
    return sentence
