"""Notes are facts with values; their sentences are made when they are shown."""

from __future__ import annotations

import json
import pickle

from torchscan.notes import Note
from torchscan.plain import from_plain, to_plain


def test_notes_are_equal_if_code_and_values_are() -> None:
    note = Note.from_text("a sentence")
    assert note == Note.of("text", text="a sentence")
    assert note != Note.from_text("another")
    assert len({note, Note.from_text("a sentence")}) == 1
    assert Note.of("shapes", shapes=(1, 2)) == Note.of("shapes", shapes=[1, 2])


def test_notes_are_stored_as_code_and_values() -> None:
    note = Note.from_text("a sentence")
    stored = json.loads(json.dumps(to_plain({"notes": [note]})))
    assert stored == {"notes": [{"code": "text", "values": {"text": "a sentence"}}]}
    assert from_plain(tuple[Note, ...], stored["notes"]) == (note,)
    assert pickle.loads(pickle.dumps(note)) == note  # noqa: S301 - of this test


def test_a_note_shows_its_sentence() -> None:
    assert str(Note.from_text("a sentence")) == "a sentence"


def test_a_code_of_a_newer_version_is_shown_with_its_values() -> None:
    assert str(Note.of("unheard-of", number=3)) == "Note(code='unheard-of', values={'number': 3})"
