"""Values with few significant digits, for the data of a page."""

from __future__ import annotations

import torch
from torch import Tensor

#: distance from the middle of two decimals below which it decides how Python rounds
_TIE = 1e-9
#: powers of ten that a float64 holds exactly
_MAX_POWER = 22
_POWERS = torch.tensor([10.0**power for power in range(_MAX_POWER + 1)], dtype=torch.float64)


def round_to_digits(values: Tensor, digits: Tensor) -> Tensor:
    """Return values with so many significant digits each, the closest float64 of each decimal.

    The decimals are then as short as Python writes them: ``0.123``, not ``0.12299999999999998``.
    """
    size = values.abs()
    is_normal = size.isfinite() & (size > 0)
    exponents = size.where(is_normal, 1.0).log10().floor().long()
    powers = digits - 1 - exponents
    up, down = (_POWERS[each.clamp(0, _MAX_POWER)] for each in (powers, -powers))
    scaled = values * up / down
    # whole numbers times or divided by exact powers are rounded once
    rounded = (scaled.round() * down / up).where(is_normal, values)
    is_tie = (scaled.abs() % 1 - 0.5).abs() < _TIE
    is_special = is_normal & (is_tie | (powers.abs() > _MAX_POWER))
    places = is_special.nonzero().flatten()
    exact = [
        float(f"{value:.{number}g}")
        for value, number in zip(values[places].tolist(), digits[places].tolist(), strict=True)
    ]
    rounded[places] = torch.tensor(exact, dtype=torch.float64)
    return rounded


def to_finite(values: Tensor) -> list[float | None]:
    """Return plain values, with None for those that are not finite."""
    found: list[float | None] = values.tolist()
    for index in (~values.isfinite()).nonzero().flatten().tolist():
        found[index] = None
    return found
