"""The precisions that functions and options take, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torchscan.errors import InputError, PythonOnly, Text

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp16-mixed", "bf16-mixed", "fp8-mixed"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
#: names of other tools
_SYNONYMS: dict[str, Precision] = {"amp-fp16": "fp16-mixed", "amp-bf16": "bf16-mixed"}


def checked_precision(given: object) -> Precision | None:
    """Return the precision of that name, or None for None; raise an InputError for other values."""
    known = {name: name for name in PRECISIONS} | _SYNONYMS
    if given is None:
        return None
    if not isinstance(given, str) or given not in known:
        choices = name_choices(PRECISIONS)
        raise InputError.of_value("precision", given, "give ", choices, PythonOnly(", or None"))
    return known[given]


def supported_precision(
    given: object, supported: Sequence[Precision], *advice: Text
) -> Precision | None:
    """Return the precision, or raise an InputError that names those that a function supports."""
    precision = checked_precision(given)
    if precision is not None and precision not in supported:
        raise InputError.of_value("precision", given, "give ", name_choices(supported), *advice)
    return precision


def name_choices(names: Sequence[str]) -> str:
    """``("fp32", "bf16") -> "one of 'fp32', 'bf16'"``."""
    return f"one of {', '.join(map(repr, names))}"
