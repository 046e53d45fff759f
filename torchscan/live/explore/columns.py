"""The distributions of a call over the steps, in at most so many columns, while more steps are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torchscan.live.heat import MOST_COLUMNS, heat_of
from torchscan.live.schema import Distribution, Series
from torchscan.live.uniting import together


class Columns:
    """Steps whose numbers lie close together share a column, and those are ever wider: memory does not grow with the run."""

    def __init__(self) -> None:
        self._width = 1
        self._found: dict[Series, dict[int, Distribution]] = defaultdict(dict)
        self._steps: dict[int, tuple[int, int]] = {}

    def add(self, step: int, distributions: Mapping[Series, Distribution]) -> None:
        """One step of one process."""
        while step // self._width >= MOST_COLUMNS:
            self._widen()
        self._put(step // self._width, (step, step), distributions)

    def _widen(self) -> None:
        found, steps = self._found, self._steps
        self._width, self._found, self._steps = 2 * self._width, defaultdict(dict), {}
        for column, span in steps.items():
            self._put(column // 2, span, {series: each[column] for series, each in found.items() if column in each})

    def _put(self, column: int, span: tuple[int, int], distributions: Mapping[Series, Distribution]) -> None:
        first, last = self._steps.get(column, span)
        self._steps[column] = min(first, span[0]), max(last, span[1])
        for series, each in distributions.items():
            columns = self._found[series]
            columns[column] = together([columns[column], each]) if column in columns else each

    def drawn(self) -> list[dict[str, Any]]:
        """For a page; the columns of a series are those in which it was seen."""
        return [self._drawn(series, columns) for series, columns in self._found.items()]

    def _drawn(self, series: Series, columns: Mapping[int, Distribution]) -> dict[str, Any]:
        places = sorted(columns)
        drawn = heat_of(places, [columns[place] for place in places])
        spans = [self._steps[place] for place in places]
        return {
            "kind": series.kind,
            "name": series.what,
            **drawn,
            "first": [each[0] for each in spans],
            "last": [each[1] for each in spans],
        }
