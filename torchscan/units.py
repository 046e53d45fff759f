"""The only place where numbers become text, and text becomes numbers.

Counts are decimal (1 k = 1000), memory is binary (1 KiB = 1024 bytes).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torchscan.errors import Argument, InputError, Value

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
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
#: seconds from which on a limit without a unit is more likely to be in milliseconds
_MAX_BARE_SECONDS = 10.0


def count(value: float, unit: str = "", digits: int = 2) -> str:
    """Return a count, scaled decimally: ``4089184256, "MACs" -> "4.09 GMACs"``."""
    scaled, suffix = _scale(value, 1000, _DECIMAL, digits)
    number = f"{scaled:.{digits}f}" if suffix else f"{value:.0f}"
    return f"{number} {suffix}{unit}".rstrip()


def memory(size: float, digits: int = 2) -> str:
    """Return bytes, scaled binarily: ``102228128 -> "97.49 MiB"``."""
    scaled, suffix = _scale(size, 1024, _BINARY, digits)
    if suffix == "B":
        return f"{size:.0f} B"
    return f"{scaled:.{digits}f} {suffix}"


def exact(value: int) -> str:
    """Return a complete count: ``25557032 -> "25,557,032"``."""
    return f"{value:,}"


def shape(sizes: list[int] | tuple[int, ...]) -> str:
    """Return a shape: ``(-1, 64, 56, 56) -> "(-1, 64, 56, 56)"``, of one size without a comma."""
    return f"({', '.join(map(str, sizes))})"


def _scale(value: float, base: int, suffixes: tuple[str, ...], digits: int) -> tuple[float, str]:
    """Divide by ``base`` until the *printed* number is below it.

    So 999,999 is 1.00 M, not 1000.00 k.
    """
    index = 0
    while round(abs(value), digits) >= base and index < len(suffixes) - 1:
        value /= base
        index += 1
    return value, suffixes[index]


def duration(seconds: float) -> str:
    """Return seconds with three digits: ``0.01234 -> "12.3 ms"``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        scaled = seconds / size
        if scaled >= 0.9995:
            return f"{_three_digits(scaled)} {unit}"
    return f"{_three_digits(seconds / 1e-6)} µs"


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"


# -- one unit for many figures ---------------------------------------------------------------------


class Scale(NamedTuple):
    """The unit that the figures of a column share, so that they can be compared at a glance."""

    size: float
    #: "M", "MiB", "ms"; "" for the figures themselves
    unit: str
    digits: int

    def text(self, value: float) -> str:
        """Return a value in this unit: ``118013952 -> "118.0"`` in millions.

        A value that would be printed as zero and is not is ``"<0.1"``.
        """
        least = 10.0**-self.digits
        scaled = value / self.size
        if 0 < scaled < least / 2:
            return f"<{least:.{self.digits}f}"
        return f"{scaled:,.{self.digits}f}"


PLAIN = Scale(1.0, "", 0)


def share(value: float) -> str:
    """Return a share: ``0.244 -> "24 %"``; one that would be 0 and is not is ``"<1 %"``."""
    text = f"{100 * value:.0f} %"
    return "<1 %" if value > 0 and text == "0 %" else text


def change(share: float, digits: int) -> str:
    """Return a change in percent: ``0.03, 2 -> "+3.00"``; a small one is ``"+<0.01"``."""
    return ("−" if share < 0 else "+") + Scale(0.01, "", digits).text(abs(share))


def scale_of_counts(values: Iterable[float]) -> Scale:
    """Return the greatest prefix in which the largest has three digits before the point.

    It has one digit after the point. Counts up to 100,000 are complete.
    """
    return _common(values, 1000, _DECIMAL, plain="", least=100)


def scale_of_memory(values: Iterable[float]) -> Scale:
    """Return the greatest binary prefix in which the largest has two digits before the point.

    Up to 10 KiB, the unit is a byte.
    """
    return _common(values, 1024, _BINARY, plain="B", least=10)


def unit_of_memory(size: float) -> tuple[float, str]:
    """Return the bytes and the name of the unit in which a size is 1 or more.

    For example, ``1.5 * 2**30 -> (2**30, "GiB")``.
    """
    _, name = _scale(size, 1024, _BINARY, 2)
    return float(1024 ** _BINARY.index(name)), name


def scale_of_wholes(values: Iterable[float], *, is_memory: bool = False) -> Scale:
    """Return the unit for values of complete models, in which the largest is 1 or more.

    Values have two digits after the point.
    """
    base, names = (1024, _BINARY) if is_memory else (1000, _DECIMAL)
    _, name = _scale(max(values, default=0), base, names, 2)
    power = names.index(name)
    return Scale(float(base**power), name, 2 if power else 0)


def scale_of_durations(values: Iterable[float], *, least: float = 10.0) -> Scale:
    """Return s, ms or µs: the unit in which the longest is ``least`` or more."""
    longest = max(values, default=0.0)
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if longest >= 0.9995 * least * size:
            return Scale(size, unit, 2)
    return Scale(1e-6, "µs", 1)


def _common(
    values: Iterable[float], base: int, names: Sequence[str], plain: str, least: int
) -> Scale:
    largest = max(values, default=0)
    power = 0
    while largest >= least * base ** (power + 1) and power < len(names) - 1:
        power += 1
    if power == 0:
        return Scale(1.0, plain, 0)
    return Scale(float(base**power), names[power], 1)


# -- text to numbers -------------------------------------------------------------------------------


def parse_argument(name: str, text: str, parse: Callable[[str], float]) -> float:
    """Return the number in the text of an argument. Errors begin with the argument's name."""
    try:
        return parse(text)
    except InputError as error:
        _, problem = error.parts
        raise InputError(Argument(name), " is ", Value(text), ", which", problem) from error


def parse_count(text: str) -> float:
    """Read a count with a decimal prefix, and optionally a unit: ``"4.2 GMACs" -> 4.2e9``."""
    found = _match(_COUNT, text, "count: give 25000000, 25_000_000, 25M or 4.2G (k, M, G, T, P, E)")
    prefix = (found["prefix"] or "").replace("K", "k").replace("B", "G")
    return _number(found["number"]) * 1000.0 ** _DECIMAL.index(prefix)


def parse_memory(text: str) -> float:
    """Read bytes: ``"1.5 GiB" -> 1610612736``; ``GB`` are 1000³, ``GiB`` 1024³."""
    problem = "amount of memory: give 1.5GiB (1024³), 800MB (1000²) or a number of bytes"
    found = _match(_MEMORY, text, problem)
    prefix = (found["prefix"] or "").replace("K", "k")
    base = 1024.0 if found["binary"] else 1000.0
    return _number(found["number"]) * base ** _DECIMAL.index(prefix)


def parse_duration(text: str) -> float:
    """Read seconds: ``"12.5 ms" -> 0.0125``."""
    found = _match(_DURATION, text, "duration: give 12.5ms, 80us or 2s")
    return _number(found["number"]) * _SECONDS[found["unit"]]


def checked_seconds(name: str, seconds: float) -> float:
    """Return a limit in seconds, or raise an InputError if a bare number is above any sense."""
    if seconds >= _MAX_BARE_SECONDS:
        raise InputError(
            Argument(name),
            f" is {seconds:g}, a number without a unit: give '{seconds:g} ms' or '{seconds:g} s'",
        )
    return seconds


def parse_tokens(text: str) -> float:
    """Read tokens, of which k are 1024, as lengths of contexts are given: ``"32k" -> 32768``."""
    found = _match(_TOKENS, text, "number of tokens: give 8192 or 8k (8 · 1024)")
    return _number(found["number"]) * (1024 if found["prefix"] else 1)


#: a number of tokens as an argument: 4096, or "4k"
Tokens = int | str


def tokens_of(name: str, value: object) -> int:
    """Return the tokens that an argument gives as a number or as text, at least one."""
    advice = "give a positive integer, or a text such as '4k'"
    return _whole_number(name, value, 1, parse_tokens, advice)


def bytes_of(name: str, value: object) -> int:
    """Return the bytes that an argument gives as a number or as text, zero or more."""
    advice = "give a number of bytes, or a text such as '500 MiB'"
    return _whole_number(name, value, 0, parse_memory, advice)


def _whole_number(
    name: str, value: object, least: int, parse: Callable[[str], float], advice: str
) -> int:
    number = value
    if isinstance(value, str):
        with contextlib.suppress(InputError):
            parsed = parse(value)
            number = int(parsed) if parsed.is_integer() else None
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise InputError.of_value(name, value, advice)
    return number


def parse_share(text: str) -> float:
    """Read a share: ``"2.5%" -> 0.025``, ``"0.025"`` too."""
    found = _match(_SHARE, text, "share: give 2.5% or 0.025")
    return _number(found["number"]) / (100 if found["percent"] else 1)


def _match(form: re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    """Return the parts of a text, or raise an InputError if it does not have this form."""
    found = form.fullmatch(text.strip())
    if found is None:
        raise InputError(repr(text), f" is not a valid {expected}")
    return found


def _number(text: str) -> float:
    number = float(text.replace("_", "").replace(",", ""))
    if not math.isfinite(number):
        raise InputError(repr(text[:40]), " is too large: give a smaller number")
    return number
