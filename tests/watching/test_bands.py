"""Bands of distributions over time, by hand and against the quantiles of single steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.watching.test_distributions import KNOWN, of
from torchscan.watching.bands import NUM_POWERS, SHARES
from torchscan.watching.distributions import quantiles
from torchscan.watching.distributions_over_steps import OverSteps
from torchscan.watching.page_numbers import round_to_digits, to_finite
from torchscan.watching.schema import Series

SERIES = Series(path="0", type_name="ReLU", kind="output", name="0")
ONES, ZEROS = torch.ones(64), torch.zeros(64)


def bands(*columns: Tensor) -> dict[str, Any]:
    over = OverSteps()
    for step, values in enumerate(columns):
        over.add(step, {SERIES: of(values)})
    ((_, found),) = over.columns_by_series()
    return found


def near(found: dict[str, Any], power: int) -> list[int]:
    """Return the percentage of values within ``10**power``, by column."""
    row: list[int] = found["near"]["percent"][power - found["near"]["power"] + 1]
    return row


@pytest.mark.parametrize("name", KNOWN)
def test_quantiles_are_those_of_each_column(name: str) -> None:
    columns = [KNOWN[name](), 3 * KNOWN[name]()]
    rows = bands(*columns)["quantiles"]
    for at, column in enumerate(columns):
        seen = of(column)
        expected = quantiles(seen.counts, SHARES, (seen.min, seen.max))
        assert [row[at] for row in rows] == pytest.approx(expected, rel=6e-3, abs=1e-44)


def test_values_near_zero_are_counted_by_powers_of_ten() -> None:
    """Of 100 values, 40 are zeros, 30 are ±0.5 and 30 are 20."""
    values = torch.cat([torch.zeros(40), torch.full((15,), 0.5), torch.full((15,), -0.5)])
    found = bands(torch.cat([values, torch.full((30,), 20.0)]))
    assert found["near"]["power"] == 1 - NUM_POWERS + 1
    assert found["near"]["percent"][0] == [40], "zeros"
    assert [near(found, power) for power in (-7, -1, 0, 1)] == [[40], [40], [70], [70]]


def test_a_value_at_the_edge_of_the_zero_band_is_in_it() -> None:
    found = bands(ONES, -ONES, 1.5 * ONES)
    assert near(found, 0) == [100, 100, 0]
    assert near(found, -1) == [0, 0, 0]


def test_values_within_a_bin_count_by_their_place_in_it() -> None:
    """In one bin from 0.75 to 1: a quarter of uniform values lies below 0.8125; 0.1 is in (0.09375, 0.125)."""
    found = bands(torch.linspace(0.09375, 0.125, 513)[:-1], torch.rand(20_000))
    assert near(found, -1)[0] == pytest.approx(20, abs=1)
    assert near(found, -1)[1] == pytest.approx(10, abs=1)


def test_a_series_of_zeros_has_bands_at_zero() -> None:
    found = bands(ZEROS)
    assert found["quantiles"] == [[0.0]] * len(SHARES)
    assert {tuple(row) for row in found["near"]["percent"]} == {(100,)}


def test_values_that_are_not_finite_are_counted_apart() -> None:
    found = bands(torch.tensor([1.0, torch.nan, torch.inf]), torch.full((2,), torch.nan))
    assert (found["nan"], found["inf"]) == ([1, 2], [1, 0])
    assert (found["min"], found["max"]) == ([1.0, None], [1.0, None])
    assert [row[0] for row in found["quantiles"]] == [1.0] * len(SHARES)
    assert [row[1] for row in found["quantiles"]] == [None] * len(SHARES)
    assert near(found, 0) == [100, 0]


def test_values_within_a_decade_keep_more_digits() -> None:
    assert bands(torch.tensor([1.00012, 1.00034]))["min"] == [1.0001]
    assert bands(torch.tensor([0.00012, 1.00034]))["max"] == [1.0]


def test_dead_units_and_updates_are_means_of_the_steps_that_know_them() -> None:
    found = bands(ONES)
    assert "dead" not in found
    assert "update" not in found
    over = OverSteps()
    for rank, (dead, update) in enumerate(((0.5, math.nan), (0.25, 1e-3), (math.nan, 3e-3))):
        over.add(0, {SERIES: replace(of((rank + 1) * ONES), dead=dead, update=update)})
    ((_, found),) = over.columns_by_series()
    assert (found["dead"], found["update"]) == ([0.375], [0.002])


def test_values_are_rounded_to_significant_digits_as_python_writes_them() -> None:
    """Ties go to even digits; 0.15 is stored a little below that, so it rounds to 0.1."""
    values = [0.123456, -98765.0, 1.25e-30, 4.5678e30, 2.5, 3.5, 0.15, 0.0]
    digits = [3, 2, 2, 3, 1, 1, 1, 3]
    found = round_to_digits(torch.tensor(values, dtype=torch.float64), torch.tensor(digits))
    expected = [float(f"{value:.{number}g}") for value, number in zip(values, digits, strict=True)]
    assert found.tolist() == expected
    assert found.tolist()[:3] == [0.123, -99000.0, 1.2e-30]


def test_values_that_are_not_finite_are_none_in_the_data_of_a_page() -> None:
    values = torch.tensor([1.5, math.nan, math.inf, -math.inf], dtype=torch.float64)
    rounded = round_to_digits(values, torch.full((4,), 3))
    assert to_finite(rounded) == [1.5, None, None, None]
