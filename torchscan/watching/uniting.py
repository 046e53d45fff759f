"""The merged distribution of one series over several ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torchscan.watching.schema import Distribution

_SUMS = ("numel", "sampled", "nan", "inf", "zero")


def merge_distributions(parts: Sequence[Distribution]) -> Distribution:
    """Each part weighs as much as it has values, of which as many may be sampled as of a larger one."""
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, Any] = {}
    for name in _SUMS:
        sums[name] = sum(getattr(part, name) for part in parts)
    mean, deviation = _moments(parts)
    dead = [part.dead for part in parts if not math.isnan(part.dead)]
    norms = [part.norm for part in parts if not math.isnan(part.norm)]
    custom: dict[str, float] = {}
    for part in parts:
        for name in part.custom:
            custom.setdefault(name, _mean(parts, partial(_custom, name)))
    return Distribution(
        **sums,
        mean=mean,
        std=deviation,
        min=min(part.min for part in parts),
        max=max(part.max for part in parts),
        is_exact=all(part.is_exact for part in parts),
        update=_update(parts),
        saturated=_mean(parts, lambda part: part.saturated),
        dead=min(dead, default=math.nan),
        sample_norm=_mean(parts, lambda part: part.sample_norm),
        norm=math.hypot(*norms) if norms else math.nan,
        custom=custom,
        counts=_counts(parts),
    )


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
