"""Values of options, converted from text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torchscan.errors import Argument, InputError
from torchscan.units import parse_duration, parse_memory

#: the layers to recompute, by their names in a shell
CHECKPOINTS: dict[str, bool | str] = {"none": False, "selective": "selective", "full": True}

#: compares all of them, for estimates of one device
COMPARE = "compare"


def to_count(text: str) -> int:
    """Return a whole number of at least one."""
    value = int(text) if text.isdecimal() and len(text) < 19 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number: give 1 or more")
    return value


def to_tokens(text: str) -> int:
    """Return a count, in which k is 1,024: ``2k`` is 2,048."""
    if text[-1:] in ("k", "K"):
        return to_count(text[:-1]) * 1024
    return to_count(text)


def to_counts(text: str) -> list[int]:
    """Return the counts in ``1,8,32``."""
    return [to_count(part.strip()) for part in text.split(",")]


def to_depth(text: str) -> int:
    """Return a number of levels, 0 or more."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a depth: give 0 for the model, or more")
    return int(text)


def to_bytes(text: str) -> int:
    """Return an amount of memory, such as ``1.5GiB``."""
    try:
        return int(parse_memory(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def to_seconds(text: str) -> float:
    """Return a time in seconds, given as ``30ms``."""
    try:
        return parse_duration(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def to_mesh(text: str) -> dict[str, int]:
    """Return the size of each dimension in ``dp=8,tp=8``."""
    sizes = (part.split("=") for part in text.split(","))
    try:
        return {dimension: to_count(size) for dimension, size in sizes}
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a mesh: give the size of each dimension, such as dp=8,tp=8"
        ) from error


def to_checkpoint(text: str, others: Sequence[str] = ()) -> bool | int | str:
    """Return the layers to recompute: none, all, every n-th one, or torchtitan's operators."""
    if text in others:
        return text
    if text in CHECKPOINTS:
        return CHECKPOINTS[text]
    try:
        return to_count(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        names = ", ".join((*CHECKPOINTS, *others))
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a choice: give {names}, or a number for every n-th layer"
        ) from error


def to_checkpoint_or_comparison(text: str) -> bool | int | str:
    """Return the layers to recompute, or that choices of them are compared."""
    return to_checkpoint(text, (COMPARE,))


def to_loss(text: str) -> Callable[[Any], Any]:
    """Return the function that takes the output of this name from all that a model returns."""
    return partial(_output_named, text)


def _output_named(name: str, outputs: Any) -> Any:
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if found is None:
        from torchscan.recording.training.gradients import BackwardError

        raise BackwardError(
            Argument("loss"),
            f" is {name!r}, which the model does not return: give it what the loss is computed "
            "from, such as labels, or leave out ",
            Argument("loss"),
        )
    return found


def to_choices(text: str, *, choices: Sequence[str]) -> list[str]:
    """Return the names in ``a,b,c``, each of them a choice."""
    names = to_names(text)
    for name in names or [text]:
        if name not in choices:
            known = ", ".join(map(repr, choices))
            raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {known})")
    return names


def to_columns(text: str) -> list[str]:
    """Return the names of columns. A number is meant for another option."""
    names = to_names(text)
    numbers = [name for name in names if name.isdecimal()]
    if numbers:
        number = numbers[0]
        raise argparse.ArgumentTypeError(
            f"{number!r} is not a column: give --width {number} for a table of {number} characters"
        )
    return names


def to_position(text: str) -> list[int]:
    """Return the indices in ``112,112``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a position: give 112,112 for example")
    return list(map(int, parts))


def to_names(text: str) -> list[str]:
    """Return the names in ``a,b,c``."""
    parts = (part.strip() for part in text.split(","))
    return [name for name in parts if name]
