"""Distributions as counts in universal bins: quantiles, and several ranks as one.

A bin is the upper ten bits of a float32. One bit is the sign, eight are the exponent and one is half
of the octave: 1,024 bins, each half an octave wide. Counts of any two steps, ranks or runs can be
added.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
    custom: dict[str, float] = {}
    for part in parts:
        for name in part.custom:
            custom.setdefault(name, _mean(parts, partial(_custom, name)))
    return Distribution(
        **sums,
        mean=mean,
        std=deviation,
        min=min(_without_nan(part.min for part in parts), default=math.nan),
        max=max(_without_nan(part.max for part in parts), default=math.nan),
        is_exact=all(part.is_exact for part in parts),
        update=_update(parts),
        saturated=_mean(parts, lambda part: part.saturated),
        dead=min(_without_nan(part.dead for part in parts), default=math.nan),
        sample_norm=_mean(parts, lambda part: part.sample_norm),
        norm=_norm(parts, kind),
        custom=custom,
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
    is_replicated = kind in ("param", "param_grad") and _are_replicas(parts)
    return norms[0] if is_replicated else math.hypot(*norms)


def _are_replicas(parts: Sequence[Distribution]) -> bool:
    """Return whether all ranks have the same values: the same positions are sampled on each."""
    first, *others = parts
    own = _content_of(first)
    return all(_content_of(part) == own for part in others)


def _content_of(part: Distribution) -> tuple[object, ...]:
    moments = (part.numel, part.norm, part.mean, part.std, part.min, part.max)
    return *map(str, moments), dict(part.counts)  # NaN is not equal to itself


def _moments(parts: Sequence[Distribution]) -> tuple[float, float]:
    """``mean = Σ nᵢ mᵢ / Σ nᵢ`` and ``std² = Σ nᵢ (sᵢ² + (mᵢ − mean)²) / Σ nᵢ``, of the finite values."""
    known = [(size, part) for part in parts if (size := _finite(part)) > 0]
    whole = sum(size for size, _ in known)
    if not whole:
        return math.nan, math.nan
    mean = sum(size * part.mean for size, part in known) / whole
    return mean, math.sqrt(
        sum(size * (part.std**2 + (part.mean - mean) ** 2) for size, part in known) / whole
    )


def _finite(part: Distribution) -> float:
    """Return the estimated number of finite values."""
    return part.numel * (part.sampled - part.nan - part.inf) / part.sampled if part.sampled else 0.0


def _update(parts: Sequence[Distribution]) -> float:
    """``√(Σ uᵢ² ‖pᵢ‖² / Σ ‖pᵢ‖²)``, with ``‖pᵢ‖² = nᵢ (sᵢ² + mᵢ²)``."""
    known = [
        (_finite(part) * (part.std**2 + part.mean**2), part.update)
        for part in parts
        if not math.isnan(part.update)
    ]
    whole = sum(size for size, _ in known if not math.isnan(size))
    return math.sqrt(sum(size * update**2 for size, update in known) / whole) if whole else math.nan


def _mean(parts: Sequence[Distribution], figure: Callable[[Distribution], float]) -> float:
    known = [(part.numel, figure(part)) for part in parts]
    known = [(size, value) for size, value in known if not math.isnan(value)]
    if not known:
        return math.nan
    total = sum(size * value for size, value in known)
    return total / sum(size for size, _ in known)


def _custom(name: str, part: Distribution) -> float:
    return part.custom.get(name, math.nan)


def _counts(parts: Sequence[Distribution]) -> dict[int, int]:
    """Return merged counts in which each sampled value stands for equally many values.

    If fewer values of a larger tensor were sampled, they count several times.
    """
    known = [(part, part.numel / sum(part.counts.values())) for part in parts if part.counts]
    min_weight = min((weight for _, weight in known), default=1.0)
    counts: Counter[int] = Counter()
    for part, weight in known:
        times = weight / min_weight
        for number, count in part.counts.items():
            counts[number] += count if times == 1 else round(count * times)
    return dict(counts)
