"""Taps of transposed convolutions, adaptive pools, repetitions and interpolation."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import lru_cache

from torchscan.ops.windows import HERE, Taps

#: keeps what is asked for again and again: tables as long as a dimension
_table_cache = lru_cache(maxsize=64)


@lru_cache(maxsize=1024)
def transposed_taps(size: int, step: int, padding: int, spacing: int) -> Taps:
    """Return the taps of a transposed convolution.

    They are the whole numbers among ``i = (j + padding − spacing·t) / step``.
    """
    table = []
    for phase in range(step):
        places = [phase + padding - spacing * tap for tap in range(size)]
        table.append(tuple(place // step for place in places if place % step == 0))
    return Taps(tuple(table), 1)


@_table_cache
def tiled_taps(size: int) -> Taps:
    """Return the taps of a dimension that is repeated as a whole: ``i = j mod size``."""
    return Taps(tuple((place,) for place in range(size)), 0)


@_table_cache
def repeated_taps(times: int) -> Taps:
    """Return the taps of elements that are each repeated: ``i = j div times``."""
    return Taps(((0,),) * times, 1)


@_table_cache
def bin_taps(size: int, count: int) -> Taps:
    """An adaptive pool: from ``⌊j·size/count⌋`` until just before ``⌈(j + 1)·size/count⌉``."""
    common = math.gcd(size, count)
    size, count = size // common, count // common
    table = []
    for j in range(count):
        start = j * size // count
        stop = -(-(j + 1) * size // count)
        table.append(tuple(range(start, stop)))
    return Taps(tuple(table), size)


@_table_cache
def group_taps(inside: int, outside: int, count: int) -> Taps:
    """Return the channels of a grouped convolution: those of its own group."""
    size, per_group = inside // count, outside // count
    if size == per_group == 1:
        return HERE
    return Taps((tuple(range(size)),) * per_group, size)


#: the distance from which on an interpolation kernel is zero
_REACH = {"linear": 1, "cubic": 2, "lanczos": 3}


@_table_cache
def nearest_taps(size: int, resized: int, factor: float | None, center: float) -> Taps:
    """Return the taps of the nearest neighbor: ``i = ⌊(j + center) · scale⌋``.

    It is rounded as torch's kernels do it, in 32 bits.

    Where the quotient is a whole number, that may give one less. If it doesn't, the places follow a
    period.
    """
    exact = _scale(size, resized, factor)
    quotient = 1 / factor if factor else size / resized
    scale = _round_to_single(quotient)
    if resized == 2 * size and not center:
        places = [j // 2 for j in range(resized)]
    else:
        places = [math.floor(_round_to_single((j + center) * scale)) for j in range(resized)]
    last = size - 1
    table = tuple((min(place, last),) for place in places)
    period, rise = exact.denominator, exact.numerator
    pairs = zip(table, table[period:], strict=False)
    is_periodic = all(place + rise == later for (place,), (later,) in pairs)
    if is_periodic and period < resized:
        return Taps(table[:period], rise)
    return Taps(table, round(exact * resized))


def _round_to_single(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


@_table_cache
def interpolation_taps(
    size: int, resized: int, factor: float | None, kernel: str, *, aligned: bool, antialias: bool
) -> Taps:
    """Return the taps of the neighbors whose weight is not zero.

    They are neighbors of ``(j + ½) · scale − ½``, or of ``j · scale`` with aligned corners.
    """
    scale, center = _scale(size, resized, factor), Fraction(1, 2)
    if aligned:
        scale, center = Fraction(0), Fraction(0)
        if resized > 1:
            scale = Fraction(size - 1, resized - 1)
    stretch = max(scale, Fraction(1)) if antialias else Fraction(1)
    period = min(scale.denominator, resized)
    places = ((j + center) * scale - center for j in range(period))
    table = tuple(_neighbors(place, kernel, stretch) for place in places)
    return Taps(table, round(scale * period))


def _scale(size: int, resized: int, factor: float | None) -> Fraction:
    """Return the scale, from the factor if there is one.

    A factor such as 1.3 is taken as 13/10 if that makes no difference.
    """
    if not factor:
        return Fraction(size, resized)
    exact = 1 / Fraction(factor)
    simple = exact.limit_denominator(1000)
    makes_no_difference = abs(simple - exact) * resized < Fraction(1, 10**6)
    return simple if makes_no_difference else exact


def _neighbors(place: Fraction, kernel: str, stretch: Fraction) -> tuple[int, ...]:
    """Return the neighbors at which a kernel is not zero.

    It is zero from its reach on; cubic and Lanczos kernels also at whole distances other than 0.
    """
    reach = _REACH[kernel] * stretch
    neighbors = []
    first, end = math.floor(place - reach) + 1, math.ceil(place + reach)
    for index in range(first, end):
        distance = abs(index - place) / stretch
        if distance == 0 or kernel == "linear" or distance.denominator != 1:
            neighbors.append(index)
    return tuple(neighbors)
