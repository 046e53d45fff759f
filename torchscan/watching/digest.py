"""Conversion of a sampled step in the shared memory into distributions, by the worker."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.channel import Message
from torchscan.watching.distribution_columns import (
    REAL,
    WHOLE,
    Columns,
    Distributions,
    estimate_norms,
)
from torchscan.watching.distributions import BINS, SHIFT
from torchscan.watching.guests import Guests
from torchscan.watching.sampled import Sampled, SampledValues
from torchscan.watching.schema import Announced, Series
from torchscan.watching.sinks.sink import SinkData

_NEAR = 0.01
_AT_A_TIME = 64


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


def columns_of(sampled: Sampled, rows: Sequence[int] | None = None) -> Columns:
    """Return the statistics of sampled rows, or of these rows, as columns."""
    updates, matrix = _updates(sampled), sampled.matrix
    if rows is not None:
        chosen = torch.tensor(rows)
        updates = updates[chosen]
        matrix = matrix[chosen]
        sampled = replace(
            sampled,
            exact=sampled.exact[chosen],
            numels=sampled.numels[chosen],
            sizes=sampled.sizes[chosen],
        )
    least, most, dead, sample_norm, norm = sampled.exact.double().unbind(1)
    is_looked_for = ~(least > most)
    is_exact = is_looked_for & least.isfinite() & most.isfinite()
    figures, (sizes, bins, counts) = _of_samples(matrix, sampled.sizes)
    figures |= {
        "numel": sampled.numels.clone(),  # the memory is overwritten
        "update": updates,
        "dead": dead,
        "sample_norm": sample_norm,
    }
    # values that a sample has missed show in the extremes
    has_nan = is_looked_for & least.isnan()
    has_inf = is_looked_for & (least.isinf() | most.isinf())
    figures["nan"] = figures["nan"].clamp(min=has_nan.long())
    figures["inf"] = figures["inf"].clamp(min=has_inf.long())
    figures["min"] = least.where(is_exact, figures["min"].double())
    figures["max"] = most.where(is_exact, figures["max"].double())
    # as in the file, so that sinks are shown the same numbers
    real = {name: figures[name].float() for name in REAL if name != "norm"}
    whole = {name: figures[name].long() for name in WHOLE}
    # squares of values below 1e-23 are 0 with 32 bits, and so is the norm from the device
    real["norm"] = norm.float().where(norm > 0, estimate_norms(whole | real))
    return Columns(figures=whole | real, is_exact=is_exact, sizes=sizes, bins=bins, counts=counts)


def saturated(values: Tensor, low: float, high: float) -> float:
    """The share of the values within a hundredth of their range from an end of it."""
    near = _NEAR * (high - low)
    return ((values < low + near) | (values > high - near)).float().mean().item()


def _updates(sampled: Sampled) -> Tensor:
    """Return the relative change of parameters, ``‖after − before‖ / ‖before‖``.

    It is NaN for other tensors, and for parameters that were zero.
    """
    before, after = sampled.pairs.unbind(1)
    is_valid = torch.arange(sampled.matrix.shape[1]) < sampled.sizes[before, None]
    old, new = (sampled.matrix[rows].double().where(is_valid, 0.0) for rows in (before, after))
    found = torch.full((len(sampled.sizes),), math.nan, dtype=torch.float64)
    length = old.norm(dim=1)
    found[after] = ((new - old).norm(dim=1) / length).where(length > 0, math.nan)
    return found


def _of_samples(samples: Tensor, sizes: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Figures and counts of rows, some at a time: memory is not asked for again and again then, and caches have it."""
    parts = [
        (each, torch.arange(samples.shape[1]) < size[:, None])
        for each, size in _pairs(samples, sizes)
    ]
    figures = [_figures(*part) for part in parts]
    counts = [_counts(*part) for part in parts]
    joined = {name: torch.cat([each[name] for each in figures]) for name in figures[0]}
    return joined, [torch.cat(each) for each in zip(*counts, strict=True)]


def _pairs(samples: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(samples.split(_AT_A_TIME), sizes.split(_AT_A_TIME), strict=True)


def _figures(samples: Tensor, is_valid: Tensor) -> dict[str, Tensor]:
    is_finite = samples.isfinite() & is_valid
    number, sampled = is_finite.sum(1), is_valid.sum(1)
    nan = inf = torch.zeros_like(number)
    if not torch.equal(number, sampled):
        nan, inf = ((each & is_valid).sum(1) for each in (samples.isnan(), samples.isinf()))
    values = samples.where(is_finite, 0.0)
    mean = values.sum(1, dtype=torch.float64) / number
    variance = (values - mean[:, None]).square_().where(is_finite, 0.0).sum(1) / number
    return {
        "sampled": sampled,
        "nan": nan,
        "inf": inf,
        "zero": (values == 0).sum(1) - (samples.shape[1] - number),
        "mean": mean,
        "std": variance.sqrt(),
        "min": samples.where(is_finite, math.inf).amin(1),
        "max": samples.where(is_finite, -math.inf).amax(1),
    }


def _counts(samples: Tensor, is_valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of filled bins per row, the bins, and their counts.

    Invalid values go into an extra bin.
    """
    num_rows, width = len(samples), BINS + 1
    upper_bits = samples.view(torch.int32) >> SHIFT
    numbers = (upper_bits & (BINS - 1)).where(is_valid, BINS)
    firsts = width * torch.arange(num_rows, dtype=torch.int32)
    places = numbers + firsts[:, None]
    counts = torch.bincount(places.flatten(), minlength=num_rows * width)
    found = counts.view(num_rows, width)[:, :BINS]
    rows, bins = found.nonzero(as_tuple=True)
    return torch.bincount(rows, minlength=num_rows), bins, found[rows, bins]
