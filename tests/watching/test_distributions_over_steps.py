"""The distributions of a run over its steps: which steps share a column, and how far it reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.watching.test_distributions import of
from torchscan.watching.distribution_columns import side_by_side
from torchscan.watching.distributions_over_steps import OverSteps
from torchscan.watching.schema import Series

SERIES = Series(path="0", type_name="Linear", kind="output", name="0")
ONE, TWO = of(torch.ones(8)), of(torch.full((8,), 2.0))


def drawn(over: OverSteps) -> dict[str, Any]:
    ((series, found),) = over.columns_by_series()
    assert series == SERIES
    return found


def test_a_step_is_a_column_while_there_are_few() -> None:
    over = OverSteps()
    for step in (20, 0, 10):
        over.add(step, {SERIES: ONE})
    found = drawn(over)
    assert (found["first"], found["last"], found["until"]) == (
        [0, 10, 20],
        [0, 10, 20],
        [10, 20, 30],
    )


@pytest.mark.slow
def test_of_many_steps_neighbours_share_a_column_and_no_value_is_lost() -> None:
    over = OverSteps()
    for step in range(1000):
        over.add(step, {SERIES: of(torch.full((8,), 1000.0 if step == 501 else 1.0))})
    found = drawn(over)
    assert len(found["first"]) == 125
    assert (found["first"][:2], found["last"][-1], found["until"][-1]) == ([0, 8], 999, 1000)
    assert max(found["max"]) == 1000


def test_columns_have_what_is_known_of_their_steps_together() -> None:
    over = OverSteps()
    for step in range(161):
        over.add(step, {SERIES: TWO if step == 1 else ONE})
    found = drawn(over)
    assert (found["min"][0], found["max"][0]) == (1, 2)


def test_a_run_that_begins_late_has_columns_as_narrow_as_one_that_begins_at_0() -> None:
    """It was resumed from a checkpoint."""
    over = OverSteps()
    for step in range(1_000_000, 1_000_160):
        over.add(step, {SERIES: ONE})
    assert len(drawn(over)["first"]) == 160


def test_a_call_that_was_left_out_in_some_steps_has_no_columns_there() -> None:
    over = OverSteps()
    for step in range(6):
        over.add(step, {} if step in (2, 3) else {SERIES: ONE})
    found = drawn(over)
    assert (found["first"], found["until"]) == ([0, 1, 4, 5], [1, 2, 5, 6])


def test_steps_of_one_run_may_have_different_series() -> None:
    """A reader gives the same series for all steps.

    The first step has one of them, the second the other.
    """
    over, other = OverSteps(), replace(SERIES, path="1")
    series = {0: SERIES, 1: other}
    over.add_sampled(0, side_by_side({0: ONE}), series)
    over.add_sampled(1, side_by_side({1: TWO}), series)
    found = {}
    for each, columns in over.columns_by_series():
        found[each] = columns["first"], columns["max"]
    assert found == {SERIES: ([0], [1.0]), other: ([1], [2.0])}


@pytest.mark.few(1)
@pytest.mark.parametrize("order", [1, -1])
def test_each_value_counts_as_much_as_any_other_in_whatever_order_steps_are_read(
    order: int,
) -> None:
    """A file is read from its beginning, a server reads from the end; 512 values are sampled of a tensor, however large it is.

    In each column half of the values are 1 and the others 20; large steps and small ones alternate in both halves.
    """
    one, two = (of(torch.full((512,), value)) for value in (1.0, 20.0))
    over = OverSteps()
    for step in range(2560)[::order]:
        kind = one if step % 16 < 8 else two
        over.add(step, {SERIES: replace(kind, numel=512 if step % 2 else 512 * 64)})
    found = drawn(over)
    assert len(found["first"]) == 160
    row = 2 - found["near"]["power"]  # behind that of zeros
    assert found["near"]["percent"][row] == [50] * 160, "between -10 and 10"
