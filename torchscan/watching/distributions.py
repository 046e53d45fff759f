"""Distributions as counts in universal bins: quantiles, and several ranks as one.

A bin is the upper ten bits of a float32. One bit is the sign, eight are the exponent and one is
half of the octave: 1,024 bins, each half an octave wide. Counts of any two steps, ranks or runs can
be added.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torchscan.watching.schema import Distribution, Kind

#: bins from 0 up, and as many from 0 down
_HALF = 512
BINS = 2 * _HALF
#: bits of a float32 below those of a bin
SHIFT = 22
_INFINITE, _NOT_A_NUMBER = 510, 511
_GREATEST = (2 - 2**-23) * 2.0**127
#: statistics that add up over ranks
_SUMS = ("numel", "sampled", "nan", "inf", "zero")


def bounds(number: int) -> tuple[float, float]:
    """Return the smallest and the largest value of a bin.

    They are NaN for bins of non-finite values. Zero belongs to the first bins.
    """
    position = number % _HALF
    low, high = _edge(position), _edge(position + 1)
    if is_finite(number):
        high = min(high, _GREATEST)
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
    if not ends:
        return [math.nan for _ in shares]
    total = ends[-1]
    return [_value_at(share * total, ordered, ends, within) for share in shares]


def _value_at(
    place: float,
    ordered: list[tuple[float, float, float]],
    ends: list[float],
    within: tuple[float, float],
) -> float:
    last = len(ends) - 1
    number = next((number for number, end in enumerate(ends) if place <= end), last)
    low, high, count = ordered[number]
    if not (low and high):
        low = high = 0.0
    smallest, largest = within
    low = min(max(low, smallest), largest)
    high = min(max(high, smallest), largest)
    start = ends[number] - count
    return low + (high - low) * (place - start) / count


def _edge(number: int) -> float:
    """Return the lower edge of a bin of positive values."""
    if number > _INFINITE:
        return float("nan")
    bits = struct.pack("<I", number << SHIFT)
    (value,) = struct.unpack("<f", bits)
    return float(value)


#: of all bins
_BOUNDS = [bounds(number) for number in range(BINS)]


def merge_distributions(parts: Sequence[Distribution], kind: Kind) -> Distribution:
    """Return one distribution of all ranks for a series of this kind.

    Each part weighs as much as it has values, also if fewer of them were sampled.
    """
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, Any] = {}
    for name in _SUMS:
        sums[name] = sum(getattr(part, name) for part in parts)
    mean, deviation = _moments(parts)
    smallest = _without_nan(part.min for part in parts)
    largest = _without_nan(part.max for part in parts)
    dead = _without_nan(part.dead for part in parts)
    saturated = _mean(parts, [part.saturated for part in parts])
    sample_norm = _mean(parts, [part.sample_norm for part in parts])
    return Distribution(
        **sums,
        mean=mean,
        std=deviation,
        min=min(smallest, default=math.nan),
        max=max(largest, default=math.nan),
        is_exact=all(part.is_exact for part in parts),
        update=_update(parts),
        saturated=saturated,
        dead=min(dead, default=math.nan),
        sample_norm=sample_norm,
        norm=_norm(parts, kind),
        custom=_merge_custom(parts),
        counts=_counts(parts),
    )


def _without_nan(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _norm(parts: Sequence[Distribution], kind: Kind) -> float:
    """Return the norm of the whole tensor.

    Parameters and their gradients are equal on all ranks (DDP), or each rank has a part of them
    (FSDP). Other tensors are parts of one batch.
    """
    norms = _without_nan(part.norm for part in parts)
    if not norms:
        return math.nan
    if kind in ("param", "param_grad"):
        # The same positions are sampled on each rank.
        contents: list[tuple[object, ...]] = []
        for part in parts:
            moments = (part.numel, part.norm, part.mean, part.std, part.min, part.max)
            # as text, since NaN is not equal to itself
            contents.append((*map(str, moments), dict(part.counts)))
        first, *others = contents
        if all(content == first for content in others):
            return norms[0]
    return math.hypot(*norms)


def _moments(parts: Sequence[Distribution]) -> tuple[float, float]:
    """Return the mean and the standard deviation of the finite values.

    ``mean = Σ nᵢ mᵢ / Σ nᵢ`` and ``std² = Σ nᵢ (sᵢ² + (mᵢ − mean)²) / Σ nᵢ``.
    """
    sizes = [(_estimate_finite(part), part) for part in parts]
    known = [(size, part) for size, part in sizes if size > 0]
    total = sum(size for size, _ in known)
    if not total:
        return math.nan, math.nan
    mean = sum(size * part.mean for size, part in known) / total
    squares = [size * (part.std**2 + (part.mean - mean) ** 2) for size, part in known]
    return mean, math.sqrt(sum(squares) / total)


def _estimate_finite(part: Distribution) -> float:
    """Return the estimated number of finite values."""
    if not part.sampled:
        return 0.0
    num_finite = part.sampled - part.nan - part.inf
    return part.numel * num_finite / part.sampled


def _update(parts: Sequence[Distribution]) -> float:
    """Return ``√(Σ uᵢ² ‖pᵢ‖² / Σ ‖pᵢ‖²)``, with ``‖pᵢ‖² = nᵢ (sᵢ² + mᵢ²)``."""
    known: list[tuple[float, float]] = []
    for part in parts:
        if not math.isnan(part.update):
            square = _estimate_finite(part) * (part.std**2 + part.mean**2)
            known.append((square, part.update))
    total = sum(square for square, _ in known if not math.isnan(square))
    if not total:
        return math.nan
    changes = sum(square * update**2 for square, update in known)
    return math.sqrt(changes / total)


def _mean(parts: Sequence[Distribution], values: Sequence[float]) -> float:
    """Return the mean of the known values, one of each part, by the sizes of the parts."""
    known: list[tuple[int, float]] = []
    for part, value in zip(parts, values, strict=True):
        if not math.isnan(value):
            known.append((part.numel, value))
    if not known:
        return math.nan
    total = sum(size * value for size, value in known)
    return total / sum(size for size, _ in known)


def _merge_custom(parts: Sequence[Distribution]) -> dict[str, float]:
    """Return the means of the user's statistics, in the order in which the parts have them."""
    names: dict[str, None] = {}
    for part in parts:
        names |= dict.fromkeys(part.custom)
    custom = {}
    for name in names:
        custom[name] = _mean(parts, [part.custom.get(name, math.nan) for part in parts])
    return custom


def _counts(parts: Sequence[Distribution]) -> dict[int, int]:
    """Return merged counts in which each sampled value stands for equally many values.

    If fewer values of a larger tensor were sampled, they count several times.
    """
    filled = [part for part in parts if part.counts]
    known = [(part, part.numel / sum(part.counts.values())) for part in filled]
    min_weight = min((weight for _, weight in known), default=1.0)
    counts: Counter[int] = Counter()
    for part, weight in known:
        times = weight / min_weight
        for number, count in part.counts.items():
            counts[number] += round(count * times)
    return dict(counts)
