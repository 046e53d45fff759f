"""Several processes' distributions as one, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.watching.test_bins import of
from torchscan.watching.uniting import merge_distributions


def test_each_weighs_as_much_as_it_has_values() -> None:
    """512 of 100,000 ones and all of 512 zeros: the mean is 100,000 / 100,512."""
    ones = replace(of(torch.ones(512)), numel=100_000)
    zeros = of(torch.zeros(512))
    found = merge_distributions([ones, zeros])
    share = 100_000 / 100_512
    assert (found.numel, found.sampled, found.zero) == (100_512, 1024, 512)
    assert found.mean == pytest.approx(share)
    assert found.std == pytest.approx(math.sqrt(share * (1 - share)))
    assert sum(count for number, count in found.counts.items() if number) / sum(
        found.counts.values()
    ) == pytest.approx(share)


def test_what_was_put_together_can_be_put_together_again() -> None:
    """512 values are sampled of each part: of 512 ones, of 32,768 twos, and of 512 ones again."""
    ones, twos = of(torch.ones(512)), replace(of(torch.full((512,), 2.0)), numel=32_768)
    for found in (
        merge_distributions([merge_distributions([ones, twos]), ones]),
        merge_distributions([ones, merge_distributions([ones, twos])]),
        merge_distributions([ones, twos, ones]),
    ):
        assert sorted(
            count / sum(found.counts.values()) for count in found.counts.values()
        ) == pytest.approx([1 / 33, 32 / 33])


def test_a_part_without_values_adds_nothing() -> None:
    ones = of(torch.ones(4))
    empty = replace(ones, numel=0, sampled=0, counts={})
    assert merge_distributions([ones, empty]).counts == ones.counts


def test_parts_of_the_same_size_add_up() -> None:
    values = torch.randn(2, 300)
    found, whole = merge_distributions([of(each) for each in values]), of(values.flatten())
    assert found.counts == whole.counts
    assert found.mean == pytest.approx(whole.mean)
    assert found.std == pytest.approx(whole.std)
    assert (found.min, found.max) == (whole.min, whole.max)


def test_what_a_step_has_changed_of_shards() -> None:
    """A shard of length 100 that changed by a thousandth, and one of length 0.1 that doubled."""
    large, small = (
        replace(of(torch.full((100,), 10.0)), update=0.001),
        replace(of(torch.full((100,), 0.01)), update=1.0),
    )
    assert merge_distributions([large, small]).update == pytest.approx(
        math.hypot(0.1, 0.1) / math.hypot(100, 0.1)
    )
    assert merge_distributions([large, large]).update == pytest.approx(0.001)


def test_the_norm_of_parts_is_that_of_all_their_values() -> None:
    """25 values of 3 have the norm 15, and 16 values of 2 have 8; one part has a norm of its own."""
    threes, twos = of(torch.full((25,), 3.0)), of(torch.full((16,), 2.0))
    assert (threes.norm, twos.norm) == (15.0, 8.0)
    assert merge_distributions([threes, twos]).norm == pytest.approx(17.0)
    assert merge_distributions([threes, replace(twos, norm=20.0)]).norm == pytest.approx(25.0)
    assert merge_distributions([threes, replace(twos, norm=math.nan)]).norm == 15.0


def test_units_are_dead_if_they_are_for_all() -> None:
    """Of which no more can be said than that they are no more than in the part where fewest are."""
    parts = [replace(of(torch.ones(4)), dead=dead) for dead in (0.5, 0.25, math.nan)]
    assert merge_distributions(parts).dead == 0.25


def test_what_is_unknown_in_all_stays_unknown() -> None:
    found = merge_distributions([of(torch.ones(4))] * 2)
    assert all(
        math.isnan(getattr(found, name)) for name in ("update", "dead", "saturated", "sample_norm")
    )
    empty = merge_distributions([of(torch.tensor([math.nan]))] * 2)
    assert math.isnan(empty.mean)
    assert empty.nan == 2
