"""Formats of values in the sentences of notes: ``"{size:memory}"`` writes bytes as ``"1.50 GiB"``.

A format is a function of a value that returns text. Every other format is one of Python's own, such
as ``"{tokens:,}"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any, TypeVar

from torchscan import units
from torchscan.notes import Note, register_texts
from torchscan.plain import from_plain

#: places that a sentence names; the others are counted
_MAX_PLACES = 3
#: name of a format -> the function that writes a value
FORMATS: dict[str, Callable[[Any], str]] = {}
FORMATS["duration"] = units.duration
FORMATS["memory"] = units.memory
FORMATS["share"] = units.share
Write = TypeVar("Write", bound=Callable[[Any], str])


def writes(name: str) -> Callable[[Write], Write]:
    """Add a function to the formats under this name."""

    def add(function: Write) -> Write:
        FORMATS[name] = function
        return function

    return add


def name_call(name: str, call: int) -> str:
    """Return the name of a call by its index: ``"relu (2)"`` is the second."""
    return f"{name} ({call + 1})" if call else name


@writes("list")
def list_names(names: Sequence[str]) -> str:
    """Return names with commas between them."""
    return ", ".join(names)


@writes("places")
def list_places(places: Sequence[str]) -> str:
    """Return the first places, and how many there are beside them."""
    named = ", ".join(places[:_MAX_PLACES])
    more = len(places) - _MAX_PLACES
    if more <= 0:
        return named
    return f"{named} and {more} more {'place' if more == 1 else 'places'}"


@writes("models")
def count_models(number: int) -> str:
    """Return ``"1 model"`` or ``"2 models"``."""
    return "1 model" if number == 1 else f"{number:,} models"


@writes("reads")
def list_reads(reads: Sequence[Mapping[str, str]]) -> str:
    """Return which functions read values, and where."""
    return list_places([f"{each['function']} at {each['place']}" for each in reads])


@writes("beside_logits")
def except_logits(logits: int) -> str:
    """Return which activations a number is about, if some are logits that it excludes."""
    return " other than logits" if logits else ""


@writes("counted_as")
def describe_counting(sizes: Mapping[str, int]) -> str:
    """Return how bytes are divided among kinds of memory, if there are several."""
    if len(sizes) == 1:
        return ""
    *first, last = [f"{units.memory(size)} of {kind}" for kind, size in sizes.items()]
    return f", counted as {', '.join(first)} and {last}"


@writes("changes")
def list_changes(changes: Sequence[Mapping[str, Any]]) -> str:
    """Return the names of changes; of a variant, the code to write."""
    names = []
    for each in changes:
        variant = from_plain(Note | None, each["variant"])
        names.append(each["change"] if variant is None else str(variant))
    return ", ".join(names)


@writes("module")
def name_module(path: str) -> str:
    """Return the path of a module; the model itself has none."""
    return path or "the model"


@writes("code")
def name_code(place: str) -> str:
    """Return a file and line, or what stands for an unknown one."""
    return place or "unknown code"


@writes("range")
def name_range(paths: Sequence[str]) -> str:
    """Return the only path, or the first and the last."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} … {paths[-1]}"


@writes("sequences")
def name_sequences(number: int) -> str:
    """Return how many sequences there are, in words."""
    return f"{number:,} sequences" if number > 1 else "a sequence"


@writes("kind of pass")
def name_kind_of_pass(mode: str) -> str:
    """Return a noun for a pass in this mode: ``"eager pass"``, ``"training step"``."""
    return f"{mode} step" if mode.endswith("training") else f"{mode} pass"


@writes("uncompared")
def describe_uncompared(missing: str) -> str:
    """Return which passes were not compared with measured times."""
    texts = {
        "device": "on this GPU",
        "convolutions": "without convolutions",
        "format": "in this number format",
    }
    return texts[missing]


@writes("kernels")
def describe_kernels(margin: Mapping[str, Any]) -> str:
    """Return what the error margin of kernels rests on, from the note of it."""
    note = from_plain(Note, margin)
    if note.code in ("validated", "training-validated"):
        return "as measured"
    if note.code == "not-validated":
        kind = name_kind_of_pass(note.values["mode"])
        return f"no measured {kind} {describe_uncompared(note.values['missing'])}"
    return "no measured time on a device of this kind"


@writes("difference")
def describe_difference(saved_share: float) -> str:
    """Return how much more or less a change takes, in whole per cent."""
    percent = int(-100 * saved_share)
    if percent == 0:
        return "no difference"
    return f"{abs(percent)} % {'more' if percent > 0 else 'less'}"


@writes("note")
def write_note(note: Mapping[str, Any]) -> str:
    """Return the text of a note that is a value of another."""
    return str(from_plain(Note, note))


@writes("percent")
def write_percent(value: float) -> str:
    """Return a share in whole per cent, also where it rounds to 0 %."""
    return f"{100 * value:.0f} %"


@writes("optional")
def write_optional(text: str | None) -> str:
    """Return a text after a comma, or nothing if there is none."""
    return f", {text}" if text else ""


@writes("compiled")
def write_compiled(is_compiled: bool) -> str:
    """Return that a model is compiled, after a comma."""
    return ", compiled" if is_compiled else ""


@writes("per sample")
def write_per_sample(is_per_sample: bool) -> str:
    """Return that a value is per sample, after a space."""
    return " per sample" if is_per_sample else ""


@writes("precision")
def write_precision(precision: str | None) -> str:
    """Return a precision; None is that of the model."""
    return precision or "as the model is"


@writes("step")
def write_step(is_training: bool) -> str:
    """Return what ran: a training step or inference."""
    return "a training step" if is_training else "inference"


class SentenceFormatter(Formatter):
    """Formats values by the names in :data:`FORMATS`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text."""
        write = FORMATS.get(format_spec)
        if write is not None:
            return write(value)
        text: str = super().format_field(value, format_spec)
        return text


_FORMATTER = SentenceFormatter()


def add_sentence(code: str, text: str) -> None:
    """Register the sentence of a code, with the names of values in braces."""
    register_texts({code: partial(_FORMATTER.format, text)})
