"""The only place where numbers become text, and text becomes numbers.

Counts are decimal (1 k = 1000), memory is binary (1 KiB = 1024 bytes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torchscan.errors import Argument, InputError

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_NUMBER = (
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*"
)
#: B is billion, as in "a 7B model"
_COUNT = re.compile(
    _NUMBER + r"(?P<prefix>[kKMGBTPE])?\s*(?:MACs?|FLOPs?|DMAs?|params?|parameters)?"
)
_MEMORY = re.compile(_NUMBER + r"(?:(?P<prefix>[kKMGTPE])(?P<binary>i)?)?(?:B|bytes)?")
_DURATION = re.compile(_NUMBER + r"(?P<unit>s|ms|us|µs)")
_TOKENS = re.compile(_NUMBER + r"(?P<prefix>[kK])?\s*(?:tokens)?")
_SHARE = re.compile(_NUMBER + r"(?P<percent>%)?")


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


# -- one unit for many figures ---------------------------------------------------------------------


class Scale(NamedTuple):
    """The unit that the figures of a column share, so that they can be compared at a glance."""

    size: float
    #: "M", "MiB", "ms"; "" for the figures themselves
    unit: str
    digits: int

    def text(self, value: float) -> str:
        """``118013952 -> "118.0"`` in millions. What rounds to nothing is ``"<0.1"``: it is not zero."""
        least = 10.0**-self.digits
        scaled = value / self.size
        return (
            f"<{least:.{self.digits}f}" if 0 < scaled < least / 2 else f"{scaled:,.{self.digits}f}"
        )


PLAIN = Scale(1.0, "", 0)


def share(value: float) -> str:
    """``0.244 -> "24 %"``; what would be 0 and is not is ``"<1 %"``."""
    said = f"{100 * value:.0f} %"
    return "<1 %" if value > 0 and said == "0 %" else said


def scale_of_counts(values: Iterable[float]) -> Scale:
    """In full up to 100,000; else the greatest prefix in which the largest has three digits before the point, and one after."""
    return _common(values, 1000, _DECIMAL, plain="", least=100)


def scale_of_memory(values: Iterable[float]) -> Scale:
    """In bytes up to 10 KiB; else the greatest binary prefix in which the largest has two digits before the point."""
    return _common(values, 1024, _BINARY, plain="B", least=10)


def unit_of_memory(size: float) -> tuple[float, str]:
    """``1.5 * 2**30 -> (2**30, "GiB")``: the unit in which it is 1 or more, in bytes."""
    _, name = _scale(size, 1024, _BINARY, 2)
    return float(1024 ** _BINARY.index(name)), name


def scale_of_wholes(values: Iterable[float], *, is_memory: bool = False) -> Scale:
    """For figures of whole models: the unit in which the largest is 1 or more, with two digits after the point."""
    base, names = (1024, _BINARY) if is_memory else (1000, _DECIMAL)
    _, name = _scale(max(values, default=0), base, names, 2)
    return Scale(float(base ** names.index(name)), name, 2 if names.index(name) else 0)


def scale_of_durations(values: Iterable[float], *, least: float = 10.0) -> Scale:
    """s, ms or µs: that in which the longest is ``least`` or more."""
    longest = max(values, default=0.0)
    size, unit = next(
        (
            (size, unit)
            for size, unit in ((1.0, "s"), (1e-3, "ms"))
            if longest >= 0.9995 * least * size
        ),
        (1e-6, "µs"),
    )
    return Scale(size, unit, 2 if unit != "µs" else 1)


def _common(
    values: Iterable[float], base: int, names: Sequence[str], plain: str, least: int
) -> Scale:
    largest, power = max(values, default=0), 0
    while largest >= least * base ** (power + 1) and power < len(names) - 1:
        power += 1
    return Scale(float(base**power), names[power] if power else plain, 1 if power else 0)


# -- text to numbers -------------------------------------------------------------------------------


def parse_count(text: str) -> float:
    """``"4.2G" -> 4.2e9``: a count with a decimal prefix, and optionally a unit (``"4.2 GMACs"``)."""
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f"{text!r} is not a valid count: give 25000000, 25_000_000, 25M or 4.2G (k, M, G, T, "
            "P, E)"
        )
    return _number(found["number"]) * 1000.0 ** _DECIMAL.index(
        (found["prefix"] or "").replace("K", "k").replace("B", "G")
    )


def parse_memory(text: str) -> float:
    """``"1.5 GiB" -> 1610612736``: bytes; ``GB`` are 1000³, ``GiB`` 1024³."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f"{text!r} is not a valid amount of memory: give 1.5GiB (1024³), 800MB (1000²) or a "
            "number of bytes"
        )
    prefix = (found["prefix"] or "").replace("K", "k")
    return _number(found["number"]) * (1024.0 if found["binary"] else 1000.0) ** _DECIMAL.index(
        prefix
    )


def parse_duration(text: str) -> float:
    """``"12.5 ms" -> 0.0125``: seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text!r} is not a valid duration: give 12.5ms, 80us or 2s")
    return _number(found["number"]) * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}[found["unit"]]


#: seconds from which on a limit without a unit is more likely to be in milliseconds
_MAX_BARE_SECONDS = 10.0


def checked_seconds(name: str, seconds: float) -> float:
    """Return a limit in seconds, or raise an InputError if a number without a unit is above any sense."""
    if seconds >= _MAX_BARE_SECONDS:
        raise InputError(
            Argument(name),
            f" is {seconds:g}, a number without a unit: give '{seconds:g} ms' or '{seconds:g} s'",
        )
    return seconds


def parse_tokens(text: str) -> float:
    """``"32k" -> 32768``: tokens, of which k are 1024, as lengths of contexts are given."""
    found = _TOKENS.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text!r} is not a valid number of tokens: give 8192 or 8k (8 · 1024)")
    return _number(found["number"]) * (1024 if found["prefix"] else 1)


#: a number of tokens as an argument: 4096, or "4k"
Tokens = int | str


def tokens_of(name: str, value: object) -> int:
    """Return the tokens that an argument gives as a number or as text, at least one."""
    number = _whole_number(value, parse_tokens, _TOKENS)
    if number is None or number < 1:
        raise InputError.of_value(name, value, "give a positive integer, or a text such as '4k'")
    return number


def bytes_of(name: str, value: object) -> int:
    """Return the bytes that an argument gives as a number or as text, zero or more."""
    number = _whole_number(value, parse_memory, _MEMORY)
    if number is None or number < 0:
        raise InputError.of_value(
            name, value, "give a number of bytes, or a text such as '500 MiB'"
        )
    return number


def _whole_number(
    value: object, parse: Callable[[str], float], form: re.Pattern[str]
) -> int | None:
    """Return an integer given as such or as text of this form, or None if it is neither."""
    if isinstance(value, str):
        if not form.fullmatch(value.strip()):
            return None
        parsed = parse(value)
        return int(parsed) if parsed.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_share(text: str) -> float:
    """``"2.5%" -> 0.025``, ``"0.025"`` too."""
    found = _SHARE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text!r} is not a valid share: give 2.5% or 0.025")
    return _number(found["number"]) / (100 if found["percent"] else 1)


def _number(text: str) -> float:
    number = float(text.replace("_", "").replace(",", ""))
    if not math.isfinite(number):
        raise InputError(f"{text[:40]!r} is too large: give a smaller number")
    return number
