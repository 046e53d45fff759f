"""How far estimated times lie from measured ones, in a few numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FarOff:
    """Estimates beside what was measured."""

    models: int
    #: of the estimate's distance from the measured time, as a share of the latter
    median: float
    #: four of five measured times lie within the estimate times 1 ± this
    kept: float
    #: estimate ÷ measured, the median
    bias: float
    #: Spearman's correlation of both
    ranks: float


def far_off(estimates: Sequence[float], measured: Sequence[float]) -> FarOff:
    """Of at least one model."""
    ratios = [estimate / time for estimate, time in zip(estimates, measured, strict=True)]
    return FarOff(
        models=len(ratios),
        median=statistics.median(abs(ratio - 1) for ratio in ratios),
        kept=four_of_five([abs(1 / ratio - 1) for ratio in ratios]),
        bias=statistics.median(ratios),
        ranks=spearman(estimates, measured),
    )


def four_of_five(distances: Sequence[float]) -> float:
    """The least that four of five of these, or more, do not exceed."""
    return sorted(distances)[math.ceil(0.8 * len(distances)) - 1]


def rounded_up(share: float) -> float:
    """To a whole per cent; what is one but for the last bits of its number stays."""
    return math.ceil(round(100 * share, 9)) / 100


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """The correlation of ranks."""
    return statistics.correlation(_ranks(first), _ranks(second)) if len(first) > 1 else 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    places = {index: float(place) for place, index in enumerate(order)}
    return [places[index] for index in range(len(values))]
