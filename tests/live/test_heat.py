"""Distributions over time as a picture, by hand: 1 is in bin 254, 2 in bin 256, with two bins for each octave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.live.test_bins import of
from torchscan.live.heat import HeatmapColumn, heat_of

ONES, TWOS, ZEROS = torch.ones(64), torch.full((64,), 2.0), torch.zeros(64)


def heat(*columns: Tensor) -> dict[str, Any]:
    return heat_of([HeatmapColumn(of(each)) for each in columns])


def test_rows_go_from_the_greatest_to_the_least_with_one_around_zero() -> None:
    found = heat(ONES, -TWOS)
    assert (found["nearest"], found["up"], found["down"]) == (254, 1, 3)
    assert found["rows"] == ["F0", "00", "00", "00", "0F"], "1; around 0; -1, -1.5, -2"
    assert (found["least"], found["most"]) == ([1.0, -2.0], [1.0, -2.0])


def test_zeros_are_in_the_row_around_zero() -> None:
    found = heat(torch.cat([ONES, ZEROS]))
    assert found["rows"][0] == found["rows"][1] > "0"
    assert heat(ZEROS)["rows"] == ["F"]


def test_what_is_near_zero_has_no_rows_of_its_own() -> None:
    """One of 65 values lies 90 octaves lower: 180 empty rows."""
    assert len(heat(torch.cat([ONES, torch.tensor([2.0**-90])]))["rows"]) == 2


def test_what_is_not_finite_is_counted_and_has_no_row() -> None:
    found = heat(torch.tensor([1.0, torch.nan, torch.inf]), torch.full((2,), torch.nan))
    assert (found["nan"], found["inf"]) == ([1, 2], [1, 0])
    assert found["rows"][0] == "F0"
    assert found["mean"] == [1.0, None]
    assert found["quantiles"][1] == [None] * 3


def test_quantiles_are_those_of_the_column() -> None:
    ((low, middle, high),) = heat(torch.linspace(1, 2, 512)[:-1])["quantiles"]
    assert (low, middle, high) == (
        pytest.approx(1.05, abs=0.02),
        pytest.approx(1.5, abs=0.02),
        pytest.approx(1.95, abs=0.02),
    )
