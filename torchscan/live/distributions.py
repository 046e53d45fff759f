"""Statistics that the worker computes from sampled values."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchscan.live.bins import BINS, SHIFT
from torchscan.live.packing import Columns
from torchscan.live.sampled import Sampled

_NEAR = 0.01
_AT_A_TIME = 64
_TYPES = {
    "Q": torch.int64,
    "d": torch.float64,
    "B": torch.uint8,
    "H": torch.int16,
    "I": torch.int32,
}


def columns_of(sampled: Sampled) -> Columns:
    """Return the statistics of sampled rows, as columns."""
    least, most, dead, sample_norm, norm = sampled.exact.double().unbind(1)
    is_looked_for = ~(least > most)
    is_exact = is_looked_for & least.isfinite() & most.isfinite()
    figures, (sizes, bins, counts) = _of_samples(sampled.matrix, sampled.sizes)
    figures |= {
        "numel": sampled.numels,
        "update": _updates(sampled),
        "dead": dead,
        "sample_norm": sample_norm,
    }
    # values that a sample has missed show in the extremes
    figures["nan"] = figures["nan"].clamp(min=(is_looked_for & least.isnan()).long())
    figures["inf"] = figures["inf"].clamp(
        min=(is_looked_for & (least.isinf() | most.isinf())).long()
    )
    figures["min"] = least.where(is_exact, figures["min"].double())
    figures["max"] = most.where(is_exact, figures["max"].double())
    squares = sampled.numels * (figures["mean"] ** 2 + figures["std"] ** 2)
    figures["norm"] = norm.where(~norm.isnan(), squares.sqrt())
    return Columns(
        figures={
            name: _array("d" if column.is_floating_point() else "Q", column)
            for name, column in figures.items()
        },
        is_exact=_array("B", is_exact),
        sizes=_array("H", sizes),
        bins=_array("H", bins),
        counts=_array("I", counts),
    )


def _array(kind: str, column: Tensor) -> array[Any]:
    """Whose memory is the tensor's as it was."""
    values = column.to(_TYPES[kind]).contiguous()
    memory = bytearray(values.numel() * values.element_size())
    if memory:
        torch.frombuffer(memory, dtype=values.dtype).copy_(values)
    found = array(kind)
    found.frombytes(memory)
    return found


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
    numbers = ((samples.view(torch.int32) >> SHIFT) & (BINS - 1)).where(is_valid, BINS)
    places = numbers + (BINS + 1) * torch.arange(len(samples), dtype=torch.int32)[:, None]
    found = torch.bincount(places.flatten(), minlength=len(samples) * (BINS + 1)).view(
        len(samples), BINS + 1
    )[:, :BINS]
    rows, bins = found.nonzero(as_tuple=True)
    return torch.bincount(rows, minlength=len(samples)), bins, found[rows, bins]
