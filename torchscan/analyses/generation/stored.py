"""Formats in which weights and cached keys and values are stored."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from torchscan.errors import InputError

_BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "int8": 8,
    "fp8": 8,
    "int4": 4,
    "nf4": 4,
    "fp4": 4,
    "mxfp4": 4,
    "nvfp4": 4,
}
#: weights that share a scale by default: 128 of GPTQ and AWQ, 64 of bitsandbytes, 32 by the
#: standard of MX, 16 of NVIDIA
_GROUPS = {"int4": 128, "nf4": 64, "fp4": 64, "mxfp4": 32, "nvfp4": 16}
#: bits that a group has besides its weights: a scale; for int4 also a zero point
_SCALES = {"int8": 16, "fp8": 32, "int4": 32, "nf4": 32, "fp4": 32, "mxfp4": 8, "nvfp4": 8}


@dataclass(frozen=True, slots=True)
class Stored:
    """A format of stored numbers: ``"int8"``, or ``"int4:32"``, where 32 weights share a scale."""

    name: str
    bits: int
    #: weights that share a scale, or None for those of a row, or all
    group: int | None = None

    @property
    def is_packed(self) -> bool:
        """True if a kernel must unpack the weights to compute with them."""
        return self.bits < 16

    def size(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix: ``bits/8`` per weight, and a scale for each group of a row.

        The last group of a row may be smaller. Without groups, int8 has a scale for each row, and
        fp8 one for a matrix, which is not counted.
        """
        num_bits = rows * columns * self.bits
        groups_per_row = 0
        if self.group:
            groups_per_row = -(-columns // self.group)
        elif self.name == "int8":
            groups_per_row = 1
        if self.is_packed:
            num_bits += _SCALES.get(self.name, 0) * rows * groups_per_row
        return -(-num_bits // 8)

    def share(self, columns: int, itemsize: int) -> Fraction:
        """Return the share of bytes left of a matrix whose elements had ``itemsize`` bytes."""
        rows = 8  # so that nothing is rounded
        return Fraction(self.size(rows, columns), rows * columns * itemsize)

    def __str__(self) -> str:
        if self.group == _GROUPS.get(self.name):
            return self.name
        return f"{self.name}:{self.group}"


def stored(text: str, parameter: str) -> Stored:
    """Return the format of that name, which an argument gives."""
    parts = re.fullmatch(r"([a-z]+\d+)(?::(\d+))?", text) if isinstance(text, str) else None
    if parts is None or parts[1] not in _BITS:
        advice = (
            f"give one of {', '.join(_BITS)}, or int4:32, for example, for weights that share a "
            "scale"
        )
        raise InputError.of_value(parameter, text, advice)

    name, group = parts.groups()
    format_ = Stored(name, _BITS[name], _GROUPS.get(name))
    if group is None:
        return format_
    if format_.bits >= 16 or int(group) == 0:
        advice = "give a group of 1 or more, which formats of 8 and 4 bits have"
        raise InputError.of_value(parameter, text, advice)
    return replace(format_, group=int(group))
