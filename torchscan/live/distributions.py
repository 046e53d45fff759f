"""What a worker works out from sampled values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchscan.live.bins import BINS, SHIFT
from torchscan.live.sampled import Sampled
from torchscan.live.schema import Distribution


def distributions_of(sampled: Sampled) -> dict[int, Distribution]:
    """By the numbers of the series."""
    rows = _rows(sampled)
    return {number: rows[row] for number, row in sampled.series.tolist()}


def _rows(sampled: Sampled) -> list[Distribution]:
    is_valid = torch.arange(sampled.samples.shape[1]) < sampled.sizes[:, None]
    least, most = sampled.extremes[:, 0].double(), sampled.extremes[:, 1].double()
    is_exact = ~(least > most)
    columns = {
        **_of_sample(sampled.samples, is_valid),
        "numel": sampled.numels,
        "is_exact": is_exact & least.isfinite() & most.isfinite(),
        "update": _updates(sampled, is_valid),
    }
    # values that a sample has missed show in the extremes
    columns["nan"] = columns["nan"].clamp(min=(is_exact & least.isnan()).long())
    columns["inf"] = columns["inf"].clamp(min=(is_exact & (least.isinf() | most.isinf())).long())
    columns["least"] = least.where(columns["is_exact"], columns["least"])
    columns["most"] = most.where(columns["is_exact"], columns["most"])
    figures = zip(*(column.tolist() for column in columns.values()), strict=True)
    counts = _counts(sampled.samples, is_valid)
    return [
        Distribution(**dict(zip(columns, row, strict=True)), counts=each) for row, each in zip(figures, counts, strict=True)
    ]


def _updates(sampled: Sampled, is_valid: Tensor) -> Tensor:
    """How much a parameter has changed: ``‖after − before‖ / ‖before‖``; NaN where it was zero, and for what is none."""
    before, after = sampled.pairs.unbind(1)
    values = sampled.samples.double().where(is_valid, 0.0)
    found = torch.full((len(values),), math.nan, dtype=torch.float64)
    found[after] = (values[after] - values[before]).norm(dim=1) / values[before].norm(dim=1)
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
