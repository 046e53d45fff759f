"""Universal bins for values: the upper ten bits of a float32.

One bit is the sign, eight are the exponent and one is half of the octave: 1,024 bins, each half an
octave wide. Counts of any two steps, ranks or runs can be added.
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
    """Return the smallest and the largest value of a bin.

    They are NaN for bins of non-finite values. Zero belongs to the first bins.
    """
    low, high = _edge(number % _HALF), _edge(number % _HALF + 1)
    high = min(high, _GREATEST) if is_finite(number) else high
    return (low, high) if number < _HALF else (-high, -low)


def is_finite(number: int) -> bool:
    """Return whether the values of a bin are finite."""
    return number % _HALF < _INFINITE


def quantiles(
    counts: Mapping[int, float],
    shares: Iterable[float],
    within: tuple[float, float] = (-math.inf, math.inf),
) -> list[float]:
    """Return quantiles of the finite values, each at most a bin's width off.

    A quantile is in the right bin, at its place among the other values there. Values of the two
    bins around zero count as 0, because zeros are more frequent than subnormal numbers. ``within``
    are the smallest and the largest of all values, which are known more precisely than their bins.
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
    """Return the lower edge of a bin of positive values."""
    if number > _INFINITE:
        return float("nan")
    value: float = struct.unpack("<f", struct.pack("<I", number << SHIFT))[0]
    return value


#: of all bins
_BOUNDS = [bounds(number) for number in range(BINS)]
