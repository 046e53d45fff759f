"""Conversion of a step in the shared memory into distributions."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchscan.watching.channel import Message
from torchscan.watching.distribution_columns import Distributions
from torchscan.watching.distributions import columns_of, saturated
from torchscan.watching.guests import Guests
from torchscan.watching.sampled import Sampled, SampledValues
from torchscan.watching.schema import Announced, Series
from torchscan.watching.sinks.sink import SinkData


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
        torch.set_num_threads(1)

    def read(
        self, memory: mmap.mmap, at: int, message: Message, announced: Mapping[int, Announced]
    ) -> Digested:
        """Return the digest of the step at this position."""
        sampled = Sampled.read(memory, at, message)
        numbers, rows = (column.tolist() for column in sampled.series.unbind(1))
        known = [announced[number] for number in numbers]
        series = [each.series for each in known]
        values = SampledValues(sampled, series)
        custom = {}
        if self._guests.has_statistics:
            custom = self._guests.figures([values[each] for each in series])
        shares = [_saturated_of(values, each) for each in known]
        can_die = [each.can_die for each in known]
        # not those of parameters before the step, which only updates are computed from
        used = list(dict.fromkeys(rows))
        places = {row: place for place, row in enumerate(used)}
        found = Distributions(
            columns=columns_of(sampled, used),
            numbers=range(len(series)),
            rows=[places[row] for row in rows],
            saturated=shares,
            can_die=can_die,
            custom=custom,
        )
        return Digested(numbers=numbers, series=series, found=found, values=values)


def _saturated_of(values: SampledValues, announced: Announced) -> float:
    if announced.bounds is None:
        return math.nan
    return saturated(values[announced.series], *announced.bounds)
