"""The distributions of tensors over the steps of a run, in at most so many columns, while more steps are written."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torchscan.live.bands import bands_of
from torchscan.live.heat import HeatmapColumn
from torchscan.live.schema import Distribution, Phase, Series

#: columns, at most
_MAX_COLUMNS = 160


class OverSteps:
    """Steps whose numbers lie close together share a column, and those are ever wider: memory does not grow with the run."""

    def __init__(self, phase: Phase = "train") -> None:
        self._phase = phase
        self._width = 1
        self._columns_by_series: dict[Series, dict[int, HeatmapColumn]] = defaultdict(dict)
        #: the first and the last step of each column, by its number
        self._steps: dict[int, tuple[int, int]] = {}

    def add(self, step: int, distributions: Mapping[Series, Distribution]) -> None:
        """One step of one process; also where there is nothing to add, since that is to be seen."""
        self._put(
            step // self._width,
            (step, step),
            {series: HeatmapColumn(each) for series, each in distributions.items()},
        )
        while max(self._steps) - min(self._steps) >= _MAX_COLUMNS:
            self._widen()

    def _widen(self) -> None:
        found, steps = self._columns_by_series, self._steps
        self._width, self._columns_by_series, self._steps = 2 * self._width, defaultdict(dict), {}
        for column, span in steps.items():
            self._put(
                column // 2,
                span,
                {series: each[column] for series, each in found.items() if column in each},
            )

    def _put(
        self, column: int, span: tuple[int, int], found: Mapping[Series, HeatmapColumn]
    ) -> None:
        first, last = self._steps.get(column, span)
        self._steps[column] = min(first, span[0]), max(last, span[1])
        for series, each in found.items():
            self._columns_by_series[series].setdefault(column, each).add(each)

    def columns_by_series(self) -> list[tuple[Series, dict[str, Any]]]:
        """For a page: the columns in which a series was seen, and the step ``until`` which each reaches."""
        until = self._until()
        return [
            (series, self._to_plot(columns, until))
            for series, columns in self._columns_by_series.items()
        ]

    def _to_plot(
        self, columns: Mapping[int, HeatmapColumn], until: Mapping[int, int]
    ) -> dict[str, Any]:
        places = sorted(columns)
        spans = [(*self._steps[place], until[place]) for place in places]
        steps = {
            name: [span[at] for span in spans] for at, name in enumerate(("first", "last", "until"))
        }
        return {"phase": self._phase, **steps, **bands_of([columns[place] for place in places])}

    def _until(self) -> dict[int, int]:
        """Return where each column ends: where the next recorded one begins. The last one is as wide as the others."""
        if not self._steps:
            return {}

        places = sorted(self._steps)
        firsts = [self._steps[place][0] for place in places]
        widths = [after - before for before, after in pairwise(firsts)] or [1]
        _, last = self._steps[places[-1]]
        end = max(last + 1, firsts[-1] + statistics.median_low(widths))
        return dict(zip(places, [*firsts[1:], end], strict=True))
