"""Numbers of a page: rounded, in few digits, and without those that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

#: distance from the middle of two decimals below which it decides how Python rounds
_TIE = 1e-9
#: powers of ten that a float64 holds exactly
_MAX_POWER = 22
_EXACT_POWERS = [10.0**power for power in range(_MAX_POWER + 1)]
_POWERS = torch.tensor(_EXACT_POWERS, dtype=torch.float64)


def round_to_digits(values: Tensor, digits: Tensor) -> Tensor:
    """Return values with so many significant digits each, the closest float64 of each decimal.

    The decimals are then as short as Python writes them: ``0.123``, not ``0.12299999999999998``.
    """
    size = values.abs()
    is_normal = size.isfinite() & (size > 0)
    size = size.where(is_normal, 1.0)
    exponents = size.log10().floor().long()
    powers = digits - 1 - exponents
    up = _POWERS[powers.clamp(0, _MAX_POWER)]
    down = _POWERS[powers.neg().clamp(0, _MAX_POWER)]
    scaled = values * up / down
    # whole numbers times or divided by exact powers are rounded once
    whole = scaled.round()
    rounded = (whole * down / up).where(is_normal, values)

    fractions = scaled.abs() % 1
    is_tie = (fractions - 0.5).abs() < _TIE
    is_far = powers.abs() > _MAX_POWER
    is_special = is_normal & (is_tie | is_far)
    places = is_special.nonzero().flatten()
    special = values[places].tolist()
    numbers = digits[places].tolist()
    exact = []
    for value, number in zip(special, numbers, strict=True):
        text = f"{value:.{number}g}"
        exact.append(float(text))
    rounded[places] = torch.tensor(exact, dtype=torch.float64)
    return rounded


def to_finite(values: Tensor) -> list[float | None]:
    """Return plain values, with None for those that are not finite."""
    found: list[float | None] = values.tolist()
    is_wrong = values.isfinite().logical_not()
    places = is_wrong.nonzero().flatten()
    for index in places.tolist():
        found[index] = None
    return found
