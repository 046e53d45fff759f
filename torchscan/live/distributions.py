"""What a worker works out from sampled values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchscan.live.bins import BINS, SHIFT
from torchscan.live.sampled import Sampled
from torchscan.live.schema import Distribution, Series

#: between which bounds the results of modules of these types are
_BOUNDS = {
    "Sigmoid": (0.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Hardtanh": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
    "ReLU6": (0.0, 6.0),
}
_NEAR = 0.01


def distributions_of(sampled: Sampled) -> list[Distribution]:
    """Of its rows."""
    is_valid = torch.arange(sampled.samples.shape[1]) < sampled.sizes[:, None]
    least, most, dead, sample_norm = sampled.exact.double().unbind(1)
    is_exact = ~(least > most)
    columns = {
        **_of_sample(sampled.samples, is_valid),
        "numel": sampled.numels,
        "is_exact": is_exact & least.isfinite() & most.isfinite(),
        "update": _updates(sampled, is_valid),
        "dead": dead,
        "sample_norm": sample_norm,
    }
    # values that a sample has missed show in the extremes
    columns["nan"] = columns["nan"].clamp(min=(is_exact & least.isnan()).long())
    columns["inf"] = columns["inf"].clamp(min=(is_exact & (least.isinf() | most.isinf())).long())
    columns["least"] = least.where(columns["is_exact"], columns["least"])
    columns["most"] = most.where(columns["is_exact"], columns["most"])
    figures = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        Distribution(**dict(zip(columns, row, strict=True)), saturated=math.nan, custom={}, counts=counts)
        for row, counts in zip(figures, _counts(sampled.samples, is_valid), strict=True)
    ]


def bounds_of(series: Series) -> tuple[float, float] | None:
    """Between which values a series is because a module of its type returns it; None: there are no such bounds."""
    return _BOUNDS.get(series.type_name) if series.kind == "output" else None


def saturated(values: Tensor, low: float, high: float) -> float:
    """The share of the values that are within a hundredth of the range from a bound."""
    near = _NEAR * (high - low)
    return ((values < low + near) | (values > high - near)).float().mean().item()


def _updates(sampled: Sampled, is_valid: Tensor) -> Tensor:
    """How much a parameter has changed: ``‖after − before‖ / ‖before‖``; NaN where it was zero, and for what is none."""
    before, after = sampled.pairs.unbind(1)
    old, new = (sampled.samples[rows].double().where(is_valid[rows], 0.0) for rows in (before, after))
    found = torch.full((len(is_valid),), math.nan, dtype=torch.float64)
    found[after] = (new - old).norm(dim=1) / old.norm(dim=1)
    return found


def _of_sample(samples: Tensor, is_valid: Tensor) -> dict[str, Tensor]:
    is_nan, is_inf = samples.isnan() & is_valid, samples.isinf() & is_valid
    is_finite = is_valid & ~is_nan & ~is_inf
    values = samples.double().where(is_finite, 0.0)
    number = is_finite.sum(1)
    mean = values.sum(1) / number
    variance = ((values - mean[:, None]) ** 2).where(is_finite, 0.0).sum(1) / number
    return {
        "sampled": is_valid.sum(1),
        "nan": is_nan.sum(1),
        "inf": is_inf.sum(1),
        "zero": ((values == 0) & is_finite).sum(1),
        "mean": mean,
        "std": variance.sqrt(),
        "least": values.where(is_finite, math.inf).amin(1),
        "most": values.where(is_finite, -math.inf).amax(1),
    }


def _counts(samples: Tensor, is_valid: Tensor) -> list[dict[int, int]]:
    """How many values are in which bin. What is not valid goes into one bin more."""
    numbers = ((samples.view(torch.int32) >> SHIFT) & (BINS - 1)).where(is_valid, BINS).long()
    places = numbers + (BINS + 1) * torch.arange(len(samples))[:, None]
    found = torch.bincount(places.flatten(), minlength=len(samples) * (BINS + 1)).view(len(samples), BINS + 1)[:, :BINS]
    counts: list[dict[int, int]] = [{} for _ in range(len(samples))]
    rows, bins = found.nonzero(as_tuple=True)
    for row, number, count in zip(rows.tolist(), bins.tolist(), found[rows, bins].tolist(), strict=True):
        counts[row][number] = count
    return counts
