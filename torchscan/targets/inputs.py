"""Inputs as text: ``3,224,224``, ``128:long``, ``input_ids=128:long``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.errors import Give, InputError

if TYPE_CHECKING:
    import torch

    from torchscan.recording.example_inputs import DTypes, Shapes

_SIZES = r"\d+(?:(?:, ?|x)\d+)*,?|\((?:\d+(?:, ?\d+)*,?)?\)"
_SPEC = re.compile(
    rf"(?:(?P<name>[^\W\d]\w*)=)?(?P<sizes>{_SIZES})(?::(?P<dtype>(?:torch\.)?\w+))?", re.ASCII
)
#: an argument that is a tensor, in a report
_ARGUMENT = re.compile(r"args\[\d+\]|kwargs\['(?P<name>\w+)'\]")
#: digits that always fit 64 bits
_MAX_DIGITS = 18
_SHORT = {
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
}
_FLOATS = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "half",
    "float",
    "double",
    "complex64",
    "complex128",
)
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "short", "int", "long", "bool")
_TYPES = (*_FLOATS, *_INTEGERS)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a model: the shape of a sample and, if known, its type and argument."""

    shape: tuple[int, ...]
    dtype: str | None = None
    name: str | None = None


class SavedInputs(NamedTuple):
    """The inputs of a saved report."""

    specs: list[InputSpec]
    batch_size: int


def saved_inputs(provenance: Mapping[str, Any]) -> SavedInputs | None:
    """Return the inputs of a report, or None if they cannot be given as shapes of one sample.

    Floating-point inputs get the model's type.
    """
    batch_size = provenance["batch_size"]
    specs = []
    for each in provenance["inputs"]:
        place = _ARGUMENT.fullmatch(each["name"])
        shape = tuple(each["shape"])
        if place is None or not shape or shape[0] != batch_size or each["dtype"] not in _TYPES:
            return None
        dtype = None if each["dtype"] in _FLOATS else each["dtype"]
        specs.append(InputSpec(shape[1:], dtype, place["name"]))
    are_named = {spec.name is not None for spec in specs}
    return SavedInputs(specs, batch_size) if len(are_named) == 1 else None


def parse_input(text: str) -> InputSpec:
    """Return ``InputSpec((128,), "long", "input_ids")`` for ``"input_ids=128:long"``.

    ``()`` is the shape of a single number.
    """
    match = _SPEC.fullmatch(text.strip())
    sizes = [] if match is None else re.findall(r"\d+", match["sizes"])
    if match is None or any(len(size) > _MAX_DIGITS for size in sizes):
        raise InputError(
            f"{text[:80]!r} is not an input: give the shape of one sample, 3,224,224, with a type "
            "if needed, 128:long, and with the name of the argument, input_ids=128:long"
        )
    dtype = match["dtype"]
    if dtype is not None:
        dtype = checked_dtype(dtype)
    return InputSpec(tuple(map(int, sizes)), dtype, match["name"])


def checked_dtype(text: str) -> str:
    """Return torch's name for a type: ``fp16``, ``float16`` and ``torch.float16`` are the same."""
    plain = text.removeprefix("torch.")
    name = _SHORT.get(plain, plain)
    if name not in _TYPES:
        raise InputError(
            f"{text[:40]!r} is not a type: choose from {', '.join([*_TYPES, *_SHORT])}"
        )
    return name


def torch_dtype(name: str) -> torch.dtype:
    """Return the type with this name."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def arguments_of(specs: Sequence[InputSpec], default: str | None) -> tuple[Shapes, DTypes]:
    """Return ``input_shape`` and ``dtype`` of :func:`torchscan.record`, in order or by name.

    Inputs without a type get the ``default``; None means the model's own.
    """
    shapes = [spec.shape for spec in specs]
    dtypes: list[torch.dtype | None] = []
    for spec in specs:
        dtype = spec.dtype or default
        dtypes.append(None if dtype is None else torch_dtype(dtype))
    names = [spec.name for spec in specs]
    if not any(names):
        return shapes, dtypes
    if not all(names) or len(set(names)) < len(names):
        raise InputError(
            "only some inputs have names, or two have the same: name all or none, ",
            Give("input_shape", {"input_ids": "128:long", "mask": "128"}),
        )
    keys = list(map(str, names))
    return dict(zip(keys, shapes, strict=True)), dict(zip(keys, dtypes, strict=True))
