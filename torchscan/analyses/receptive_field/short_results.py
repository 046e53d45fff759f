"""Short forms of the values of layers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

#: one number for all axes; one per axis; by input, if there are several
Short = int | Fraction | str | tuple[Any, ...] | dict[str, Any] | None


def short_by_input(inputs: Sequence[str], values: Sequence[int | Fraction | str | None]) -> Short:
    """Return the values of axes in short, given the input of each."""
    if not values:
        return None
    if values.count(values[0]) == len(values):
        return values[0]
    by_input: dict[str, list[Any]] = {}
    for name, value in zip(inputs, values, strict=True):
        by_input.setdefault(name, []).append(value)

    short: dict[str, Any] = {}
    for name, of_input in by_input.items():
        are_equal = of_input.count(of_input[0]) == len(of_input)
        short[name] = of_input[0] if are_equal else tuple(of_input)
    shorts = [*short.values()]
    return shorts[0] if shorts.count(shorts[0]) == len(shorts) else short


def plain_short(value: Short) -> Any:
    """Return plain data: fractions as decimals, one number per axis as a list."""
    if value is None or type(value) is int:
        return value  # most are, and no other type is asked for as fast
    if isinstance(value, dict):
        return {name: plain_short(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain_short(each) for each in value]
    return float(value) if isinstance(value, Fraction) else value
