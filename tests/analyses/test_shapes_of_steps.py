"""Shapes after the steps of windows, by hand."""

from __future__ import annotations

from torchscan.analyses.receptive_field.envelope_steps import shape_after
from torchscan.ops.windows import Reshape, Unfold


def test_windows_take_the_place_of_a_dimension_and_their_size_is_the_last() -> None:
    """From 150 numbers, windows of 6 begin at 0, 4, … 144: there are 37."""
    assert shape_after((1, 150, 2), Unfold(1, 6, 4)) == (1, 37, 2, 6)


def test_windows_with_gaps_are_wider() -> None:
    """Windows of 6 numbers at every second place span 11: they begin at 0, 4, … 136."""
    assert shape_after((150,), Unfold(0, 6, 4, 2)) == (35, 6)


def test_other_steps_have_a_shape() -> None:
    assert shape_after((2, 6), Reshape((3, 4))) == (3, 4)
