"""Bins whose edges nobody chooses: the upper ten bits of a float32.

One bit is the sign, eight are the exponent and one is half of the octave: 1,024 bins, each half an octave wide. Counts of any
two steps, ranks or runs can be added up.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from itertools import accumulate

#: bins from 0 up, and as many from 0 down
_HALF = 512
BINS = 2 * _HALF
#: bits of a float32 below those of a bin
SHIFT = 22
_INFINITE, _NOT_A_NUMBER = 510, 511
_GREATEST = (2 - 2**-23) * 2.0**127


def bounds(number: int) -> tuple[float, float]:
    """The least and the greatest value of a bin; NaN for what is no number, and zero belongs to the first bins."""
    low, high = _edge(number % _HALF), _edge(number % _HALF + 1)
    high = min(high, _GREATEST) if is_finite(number) else high
    return (low, high) if number < _HALF else (-high, -low)


def is_finite(number: int) -> bool:
    """Whether the values of a bin are."""
    return number % _HALF < _INFINITE


def quantiles(
    counts: Mapping[int, float],
    shares: Iterable[float],
    within: tuple[float, float] = (-math.inf, math.inf),
) -> list[float]:
    """Of the finite values: each in the right bin, by its place among the others there, so wrong by a bin's width at most.

    Those of the two bins around zero are 0, which they hold more often than subnormal numbers. ``within``: the least and the
    greatest of all values, which are known better than the bins that they are in.
    """
    ordered = sorted(
        (*_BOUNDS[number], count) for number, count in counts.items() if is_finite(number)
    )
    ends = list(accumulate(count for *_, count in ordered))
    return [_at(share * ends[-1], ordered, ends, within) if ends else math.nan for share in shares]


def _at(
    place: float,
    ordered: list[tuple[float, float, float]],
    ends: list[float],
    within: tuple[float, float],
) -> float:
    number = next((number for number, end in enumerate(ends) if place <= end), len(ends) - 1)
    low, high, count = ordered[number]
    if not (low and high):
        low = high = 0.0
    low, high = (min(max(edge, within[0]), within[1]) for edge in (low, high))
    return low + (high - low) * (place - (ends[number] - count)) / count


def _edge(number: int) -> float:
    """Where a bin of positive values begins."""
    if number > _INFINITE:
        return float("nan")
    value: float = struct.unpack("<f", struct.pack("<I", number << SHIFT))[0]
    return value


#: of all bins
_BOUNDS = [bounds(number) for number in range(BINS)]
