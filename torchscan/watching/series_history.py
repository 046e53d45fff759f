"""One series of a watched run over its steps."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchscan.errors import InputError
from torchscan.watching.distributions import merge_distributions, quantiles
from torchscan.watching.run_reader import Reader
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
            choices = ", ".join([*STATISTICS, *custom])
            raise InputError(f"{name!r} is not a statistic: choose from {choices}")
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


def read_histories(
    readers: Iterable[Reader], series: Sequence[Series], phase: Phase
) -> list[History]:
    """Return several series over the steps of all ranks, of which each is read once."""
    found: dict[Series, dict[tuple[int, int], list[Distribution]]] = {
        each: defaultdict(list) for each in series
    }
    for reader in readers:
        known = reader.series()
        numbers = {number: found[each] for number, each in known.items() if each in found}
        for watched in reader.steps(phase):
            place = watched.step, watched.number
            for number in numbers.keys() & watched.distributions.keys():
                numbers[number][place].append(watched.distributions[number])
    return [_history_of(each, phase, steps) for each, steps in found.items()]


def _history_of(
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


def find_by_label(every: Collection[Series], label: str) -> Series:
    """Return the series with a label, or raise an error that names some that are like it."""
    found = next((each for each in every if each.label == label), None)
    if found is None:
        labels = [each.label for each in every]
        near = difflib.get_close_matches(label, labels, 3, 0.5) or labels[:3]
        some = ", ".join(map(repr, near)) or "none"
        raise InputError(f"{label!r} is not a series: choose from {some}, …; find() lists all")
    return found
