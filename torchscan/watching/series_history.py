"""One series of a watched run over its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchscan.errors import InputError
from torchscan.watching.distributions import merge_distributions, quantiles
from torchscan.watching.schema import STATISTICS, Distribution, Phase, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One series over the steps that are kept."""

    series: Series
    phase: Phase
    steps: tuple[int, ...]
    distributions: tuple[Distribution, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        span = f", {self.steps[0]} … {self.steps[-1]}" if self.steps else ""
        return f"<History of {self.series.label!r}, {self.phase}: {len(self)} steps{span}>"

    def statistic(self, name: str) -> list[float]:
        """Return a statistic of each step by its name in :class:`Distribution`, or a custom one."""
        if name in STATISTICS:
            return [getattr(each, name) for each in self.distributions]
        custom = dict.fromkeys(known for each in self.distributions for known in each.custom)
        if name not in custom:
            raise InputError(
                f"{name!r} is not a statistic: choose from {', '.join([*STATISTICS, *custom])}"
            )
        return [each.custom.get(name, math.nan) for each in self.distributions]

    def quantiles(self, *shares: float) -> list[list[float]]:
        """Return quantiles of each step's finite values: ``quantiles(0.05, 0.5, 0.95)``."""
        wrong = next((share for share in shares if not 0 <= share <= 1), None)
        if wrong is not None:
            raise InputError(
                f"quantile {wrong!r} is out of range: give shares from 0 to 1, such as 0.05 for 5 %"
            )
        by_step = []
        for each in self.distributions:
            extremes = (each.min, each.max)
            by_step.append(quantiles(each.counts, shares, extremes))
        return [list(by_share) for by_share in zip(*by_step, strict=True)]


def history_of(
    series: Series, phase: Phase, found: Mapping[tuple[int, int], Sequence[Distribution]]
) -> History:
    """Return the history of a series, from the distributions of all ranks by step and number."""
    keys = sorted(found)
    distributions = tuple(merge_distributions(found[key], series.kind) for key in keys)
    return History(
        series=series,
        phase=phase,
        steps=tuple(step for step, _ in keys),
        distributions=distributions,
    )
