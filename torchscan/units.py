"""The only place where numbers become text.

Counts are decimal (1 k = 1000), memory is binary (1 KiB = 1024 bytes).
"""

from __future__ import annotations

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def count(value: float, unit: str = "", digits: int = 2) -> str:
    """``4089184256, "MACs" -> "4.09 GMACs"``: a count, scaled decimally."""
    scaled, suffix = _scale(value, 1000, _DECIMAL, digits)
    number = f"{scaled:.{digits}f}" if suffix else f"{value:.0f}"
    return f"{number} {suffix}{unit}".rstrip()


def memory(size: float, digits: int = 2) -> str:
    """``102228128 -> "97.49 MiB"``: bytes, scaled binarily."""
    scaled, suffix = _scale(size, 1024, _BINARY, digits)
    return f"{scaled:.{digits}f} {suffix}" if suffix != "B" else f"{size:.0f} B"


def exact(value: int) -> str:
    """``25557032 -> "25,557,032"``: a count in full."""
    return f"{value:,}"


def shape(sizes: list[int] | tuple[int, ...]) -> str:
    """``(-1, 64, 56, 56) -> "(-1, 64, 56, 56)"``, a tuple of one without its comma."""
    return f"({', '.join(map(str, sizes))})"


def _scale(value: float, base: int, suffixes: tuple[str, ...], digits: int) -> tuple[float, str]:
    """Divide by ``base`` until what is *printed* stays below it: 999,999 is 1.00 M, not 1000.00 k."""
    index = 0
    while round(abs(value), digits) >= base and index < len(suffixes) - 1:
        value /= base
        index += 1
    return value, suffixes[index]


def duration(seconds: float) -> str:
    """``0.01234 -> "12.3 ms"``: three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        scaled = seconds / size
        if scaled >= 0.9995 or unit == "µs":
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {unit}"
    raise AssertionError
