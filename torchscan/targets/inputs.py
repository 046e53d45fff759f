"""Inputs as text: ``3,224,224``, ``128:long``, ``input_ids=128:long``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchscan.errors import Give, InputError

if TYPE_CHECKING:
    import torch

    from torchscan.recording.example_inputs import DTypes, Shapes

_SIZES = r"\d+(?:(?:, ?|x)\d+)*,?|\((?:\d+(?:, ?\d+)*,?)?\)"
_SPEC = re.compile(
    rf"(?:(?P<name>[^\W\d]\w*)=)?(?P<sizes>{_SIZES})(?::(?P<dtype>(?:torch\.)?\w+))?", re.ASCII
)
_LONGEST = 18  # digits: as many as always fit 64 bits
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
    """One input of a model: the shape of a sample, and optionally its type and the name of the argument."""

    shape: tuple[int, ...]
    dtype: str | None = None
    name: str | None = None


def parse_input(text: str) -> InputSpec:
    """``"input_ids=128:long" -> InputSpec((128,), "long", "input_ids")``; ``()`` is the shape of a single number."""
    found = _SPEC.fullmatch(text.strip())
    sizes = [] if found is None else re.findall(r"\d+", found["sizes"])
    if found is None or any(len(size) > _LONGEST for size in sizes):
        raise InputError(
            f"{text[:80]!r} is not an input: give the shape of one sample, 3,224,224, with a type "
            "if needed, 128:long, and with the name of the argument, input_ids=128:long"
        )
    return InputSpec(
        tuple(map(int, sizes)),
        None if found["dtype"] is None else checked_dtype(found["dtype"]),
        found["name"],
    )


def checked_dtype(text: str) -> str:
    """Torch's name for a type: ``fp16``, ``float16`` and ``torch.float16`` are the same."""
    plain = text.removeprefix("torch.")
    name = _SHORT.get(plain, plain)
    if name not in _TYPES:
        raise InputError(
            f"{text[:40]!r} is not a type: choose from {', '.join([*_TYPES, *_SHORT])}"
        )
    return name


def torch_dtype(name: str) -> torch.dtype:
    """The type with this name."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def arguments_of(specs: Sequence[InputSpec], default: str | None) -> tuple[Shapes, DTypes]:
    """``input_shape`` and ``dtype`` of :func:`torchscan.record`: all in order, or all by name.

    Inputs without a type get the ``default``; None means the model's own.
    """
    chosen = [spec.dtype or default for spec in specs]
    dtypes = [None if name is None else torch_dtype(name) for name in chosen]
    names = [spec.name for spec in specs]
    if not any(names):
        return [spec.shape for spec in specs], dtypes
    if not all(names) or len(set(names)) < len(names):
        raise InputError(
            "only some inputs have names, or two have the same: name all or none, ",
            Give("input_shape", {"input_ids": "128:long", "mask": "128"}),
        )
    named = {
        str(name): (spec.shape, dtype)
        for name, spec, dtype in zip(names, specs, dtypes, strict=True)
    }
    return {name: shape for name, (shape, _) in named.items()}, {
        name: dtype for name, (_, dtype) in named.items()
    }
