"""Values in the sentences of notes, as text."""

from __future__ import annotations

from typing import Any

import pytest

from torchscan.notes import Note, registered_texts
from torchscan.report.sentence_formats import FORMATS, SentenceFormatter, add_sentence, name_call

VALIDATED: dict[str, Any] = {"code": "validated", "values": {}}
TRAINED: dict[str, Any] = {"code": "training-validated", "values": {}}
DEVICE: dict[str, Any] = {"code": "another", "values": {}}


def not_validated(mode: str, missing: str) -> dict[str, Any]:
    return {"code": "not-validated", "values": {"mode": mode, "missing": missing}}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("duration", 0.25, "250 ms"),
        ("memory", 3 * 2**29, "1.50 GiB"),
        ("list", ["a", "b"], "a, b"),
        ("places", ["a"], "a"),
        ("places", ["a", "b", "c"], "a, b, c"),
        ("places", ["a", "b", "c", "d"], "a, b, c and 1 more place"),
        ("places", ["a", "b", "c", "d", "e"], "a, b, c and 2 more places"),
        ("models", 1, "1 model"),
        ("models", 1200, "1,200 models"),
        (
            "reads",
            [{"function": "item", "place": "net.py:3"}] * 2,
            "item at net.py:3, item at net.py:3",
        ),
        ("beside_logits", 0, ""),
        ("beside_logits", 1, " other than logits"),
        ("counted_as", {"a": 1}, ""),
        ("counted_as", {"a": 2**10, "b": 2**20}, ", counted as 1.00 KiB of a and 1.00 MiB of b"),
        (
            "counted_as",
            {"a": 2**10, "b": 2**20, "c": 2**10},
            ", counted as 1.00 KiB of a, 1.00 MiB of b and 1.00 KiB of c",
        ),
        ("changes", [{"change": "compile", "variant": None}] * 2, "compile, compile"),
        ("module", "", "the model"),
        ("module", "fc", "fc"),
        ("code", "", "unknown code"),
        ("code", "net.py:3", "net.py:3"),
        ("range", ["a"], "a"),
        ("range", ["a", "b", "c"], "a … c"),
        ("sequences", 1, "a sequence"),
        ("sequences", 2, "2 sequences"),
        ("kind of pass", "eager", "eager pass"),
        ("kind of pass", "training", "training step"),
        ("kind of pass", "compiled training", "compiled training step"),
        ("uncompared", "device", "on this GPU"),
        ("uncompared", "convolutions", "without convolutions"),
        ("uncompared", "format", "in this number format"),
        ("kernels", VALIDATED, "as measured"),
        ("kernels", TRAINED, "as measured"),
        ("kernels", not_validated("training", "device"), "no measured training step on this GPU"),
        ("kernels", DEVICE, "no measured time on a device of this kind"),
        ("difference", 0.0, "no difference"),
        ("difference", 0.009, "no difference"),
        ("difference", -0.01, "1 % more"),
        ("difference", 0.5, "50 % less"),
        ("note", {"code": "text", "values": {"text": "a fact"}}, "a fact"),
        ("percent", 0.004, "0 %"),
        ("percent", 0.125, "12 %"),
        ("optional", None, ""),
        ("optional", "why", ", why"),
        ("compiled", True, ", compiled"),
        ("compiled", False, ""),
        ("per sample", True, " per sample"),
        ("per sample", False, ""),
        ("precision", None, "as the model is"),
        ("precision", "bf16", "bf16"),
        ("step", True, "a training step"),
        ("step", False, "inference"),
    ],
)
def test_formats(name: str, value: Any, text: str) -> None:
    assert FORMATS[name](value) == text
    assert SentenceFormatter().format(f"<{{x:{name}}}>", x=value) == f"<{text}>"


def test_formats_of_python_are_known_too() -> None:
    assert SentenceFormatter().format("{x:,} {y:g} {z}", x=1200, y=0.5, z=None) == "1,200 0.5 None"


def test_the_second_call_of_a_module_is_numbered() -> None:
    assert [name_call("relu", call) for call in range(3)] == ["relu", "relu (2)", "relu (3)"]


def test_codes_have_one_sentence() -> None:
    assert "mesh-slow" in registered_texts()
    with pytest.raises(ValueError, match="mesh-slow already have sentences"):
        add_sentence("mesh-slow", "again")
    assert str(Note.of("mesh-slow", factor=2.5)) == "takes at least 2.5 times as long as the best"
