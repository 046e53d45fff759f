"""Frames of a video, and how their panels are laid out."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from torch import Tensor

from tests.watching.test_distributions import of
from torchscan.watching.schema import Series
from torchscan.watching.sinks.drawing import Box
from torchscan.watching.sinks.frames import BAR, Frames, FrameSeries

OUTPUT = Series(path="a", type_name="A", kind="output", name="0")


def test_four_panels_of_a_wide_frame_are_two_rows_of_two() -> None:
    """300 by 200 pixels are four panels of 150 by 100."""
    panels = list(Box(10, 20, 310, 220).divide(4))
    assert panels == [
        Box(10, 20, 160, 120),
        Box(160, 20, 310, 120),
        Box(10, 120, 160, 220),
        Box(160, 120, 310, 220),
    ]


def drawn(values: Tensor, whole: Tensor | None = None) -> Tensor:
    """Return the pixels of a frame of 320 by 240 with one series, by row and column."""
    shown = FrameSeries(OUTPUT, of(values), whole)
    picture = Frames((320, 240)).draw("step 1", "train", [shown])
    assert picture.size == (320, 240)
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return pixels.view(240, 320, 3)


def bar_heights(values: Tensor) -> list[int]:
    """Return the heights of the bars in a frame, in pixels, from left to right."""
    pixels = drawn(values)
    color = torch.tensor(list(bytes.fromhex(BAR.removeprefix("#"))))
    heights = (pixels == color).all(2).sum(0).tolist()
    return [max(bar) for is_bar, bar in groupby(heights, bool) if is_bar]


def test_bars_of_a_histogram_are_as_high_as_values_are_dense() -> None:
    """A bin from 1 to 1.5 with three values is 4 times as dense as one from 4 to 6 with as many."""
    pytest.importorskip("PIL")
    dense, sparse = bar_heights(torch.tensor([1.0, 1.2, 1.5 - 2**-20, 4.0, 5.0, 6.0 - 2**-20]))
    assert dense > 100
    assert sparse == pytest.approx(dense / 4, abs=2)


def test_a_map_fills_the_height_above_its_key() -> None:
    """From the label, at 54 and 16 high, and 8 below it, to 192.5.

    The panel ends at 218. The key below the map is 5 high, its ticks 13.5; between are 4 and 3.
    """
    pytest.importorskip("PIL")
    values = torch.ones(9, 9)
    column = drawn(values, values)[:, 160]
    is_of_map = (column == column[130]).all(1)
    assert is_of_map[: 218 - 13 - 3 - 5].nonzero().flatten().tolist() == list(range(78, 192))
