"""In how many bits weights and cached keys and values are stored, if that is not what they are computed in."""

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
#: weights that share a scale by default: 128 of GPTQ and AWQ, 64 of bitsandbytes, 32 by the standard
#: of MX, 16 of NVIDIA
_GROUPS = {"int4": 128, "nf4": 64, "fp4": 64, "mxfp4": 32, "nvfp4": 16}
#: bits of what a group has beside its weights: a scale; for int4 also a zero point
_SCALES = {"int8": 16, "fp8": 32, "int4": 32, "nf4": 32, "fp4": 32, "mxfp4": 8, "nvfp4": 8}


@dataclass(frozen=True, slots=True)
class Stored:
    """A format of stored numbers, such as ``"int8"``, ``"int4"`` and ``"int4:32"``, where 32 weights share a scale."""

    name: str
    bits: int
    #: weights that share a scale; None: those of a row, or all
    group: int | None = None

    @property
    def is_packed(self) -> bool:
        """True if a kernel must unpack the weights to compute with them."""
        return self.bits < 16

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix: ``bits/8`` a weight, and a scale for each group, the last of which may be smaller.

        Without groups, int8 has a scale for each row, and fp8 one for a matrix, which is not counted.
        """
        groups = -(-columns // self.group) if self.group else int(self.name == "int8")
        scales = _SCALES.get(self.name, 0) * rows * groups if self.is_packed else 0
        return -(-(rows * columns * self.bits + scales) // 8)

    def share(self, columns: int, itemsize: int) -> Fraction:
        """Return the share of bytes left of a matrix whose elements had ``itemsize`` bytes."""
        rows = 8  # so that nothing is rounded
        return Fraction(self.size(rows, columns), rows * columns * itemsize)

    def __str__(self) -> str:
        return self.name if self.group == _GROUPS.get(self.name) else f"{self.name}:{self.group}"


def stored(text: str, parameter: str) -> Stored:
    """Return the format of that name, which an argument gives."""
    found = re.fullmatch(r"([a-z]+\d+)(?::(\d+))?", text) if isinstance(text, str) else None
    if found is None or found[1] not in _BITS:
        raise InputError.of_value(
            parameter,
            text,
            f"give one of {', '.join(_BITS)}, or int4:32, for example, for weights that share a "
            "scale",
        )
    name = found[1]
    format_ = Stored(name, _BITS[name], _GROUPS.get(name))
    if found[2] is None:
        return format_
    if _BITS[name] >= 16 or int(found[2]) == 0:
        raise InputError.of_value(
            parameter, text, "give a group of 1 or more, which formats of 8 and 4 bits have"
        )
    return replace(format_, group=int(found[2]))
