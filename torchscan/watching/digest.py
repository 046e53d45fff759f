"""Conversion of a sampled step in the shared memory into distributions, by the worker."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.distribution_columns import Distributions
from torchscan.watching.guests import Guests
from torchscan.watching.message_socket import Message
from torchscan.watching.row_statistics import RowStatistics
from torchscan.watching.sampled import Sampled, SampledValues
from torchscan.watching.schema import Announced, Series
from torchscan.watching.sinks.sink import SinkData

_NEAR = 0.01
#: layouts of steps that are kept: passes of several models and phases take turns
_NUM_LAYOUTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    """Series, distributions and values of a step."""

    #: of its series, on the line
    numbers: list[int]
    series: list[Series]
    found: Distributions
    values: SampledValues

    def numbered(self, numbers: Sequence[int]) -> Distributions:
        """Return the distributions under the numbers that their series have in the file."""
        return replace(self.found, numbers=numbers)

    def seen(self, times: Mapping[str, Any]) -> SinkData:
        """Return the step in the form that sinks get."""
        named = {each: self.found[place] for place, each in enumerate(self.series)}
        return SinkData(**times, distributions=named, values=self.values)


class Digest:
    """A reader of steps. The process uses one thread from now on."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._layouts: dict[tuple[bytes, ...], _StepLayout] = {}
        torch.set_num_threads(1)

    def read(
        self,
        memory: mmap.mmap,
        records: Sequence[tuple[Message, int]],
        announced: Mapping[int, Announced],
    ) -> list[Digested]:
        """Return the digests of the steps at these positions.

        Steps with the same layout are read together: small ones cost little more than one of them.
        """
        steps = [Sampled.read(memory, at, message) for message, at in records]
        alike: dict[_StepLayout, list[int]] = defaultdict(list)
        for index, sampled in enumerate(steps):
            alike[self._layout_of(sampled, announced)].append(index)
        digested: dict[int, Digested] = {}
        for layout, indices in alike.items():
            size = layout.rows.num_together
            for start in range(0, len(indices), size):
                chosen = indices[start : start + size]
                together = [steps[index] for index in chosen]
                found = self._read_alike(layout, together)
                digested |= zip(chosen, found, strict=True)
        return [digested[index] for index in range(len(steps))]

    def _layout_of(self, sampled: Sampled, announced: Mapping[int, Announced]) -> _StepLayout:
        key = tuple(bytes_of(each) for each in (sampled.series, sampled.sizes, sampled.pairs))
        layout = self._layouts.pop(key, None) or _StepLayout(sampled, announced)
        if len(self._layouts) >= _NUM_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]
        self._layouts[key] = layout  # the last one is the newest
        return layout

    def _read_alike(self, layout: _StepLayout, steps: Sequence[Sampled]) -> list[Digested]:
        digested = []
        for sampled, columns in zip(steps, layout.rows.columns(steps), strict=True):
            values = SampledValues(sampled, layout.series)
            custom = {}
            if self._guests.has_statistics:
                custom = self._guests.figures([values[each] for each in layout.series])
            found = Distributions(
                columns=columns,
                numbers=range(len(layout.series)),
                rows=layout.places,
                saturated=layout.saturated(values),
                can_die=layout.can_die,
                custom=custom,
            )
            numbers, series = layout.numbers, layout.series
            digested.append(Digested(numbers=numbers, series=series, found=found, values=values))
        return digested


class _StepLayout:
    """The series and the rows of a step, which most steps have in common."""

    def __init__(self, sampled: Sampled, announced: Mapping[int, Announced]) -> None:
        self.numbers, rows = (column.tolist() for column in sampled.series.unbind(1))
        known = [announced[number] for number in self.numbers]
        self.series = [each.series for each in known]
        self.can_die = [each.can_die for each in known]
        self._bounds: list[tuple[int, Series, tuple[float, float]]] = []
        for place, each in enumerate(known):
            if each.bounds is not None:
                self._bounds.append((place, each.series, each.bounds))
        self._no_shares = [math.nan] * len(known)
        # not those of parameters before the step, which only updates are computed from
        used = list(dict.fromkeys(rows))
        indices = {row: index for index, row in enumerate(used)}
        self.places = [indices[row] for row in rows]
        self.rows = RowStatistics(sampled, torch.tensor(used, dtype=torch.int64))

    def saturated(self, values: SampledValues) -> list[float]:
        """Return the share of saturated values of each series, NaN for those without bounds."""
        if not self._bounds:
            return self._no_shares
        shares = list(self._no_shares)
        for place, series, bounds in self._bounds:
            shares[place] = saturated(values[series], *bounds)
        return shares


def bytes_of(column: Tensor) -> bytes:
    """Return the memory of a column."""
    address = column.data_ptr()
    return ctypes.string_at(address, column.nbytes) if column.numel() else b""


def saturated(values: Tensor, low: float, high: float) -> float:
    """Return the share of values within a hundredth of their range from an end of it."""
    near = _NEAR * (high - low)
    is_near = (values < low + near) | (values > high - near)
    return is_near.float().mean().item()
