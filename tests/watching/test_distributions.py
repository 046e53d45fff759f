"""Bins, quantiles and norms of distributions, and several ranks as one, by hand."""

from __future__ import annotations

import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchscan.watching.distribution_columns import Distributions
from torchscan.watching.distributions import BINS, bounds, is_finite, merge_distributions, quantiles
from torchscan.watching.packing import pack_steps
from torchscan.watching.row_statistics import RowStatistics, columns_of
from torchscan.watching.sampled import Sampled
from torchscan.watching.schema import Distribution, Kind
from torchscan.watching.unpacking import unpacked


def bin_of(value: float) -> int:
    """By the bits of the value, one at a time."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(f"{bits:032b}"[:10], 2)


def of(values: Tensor) -> Distribution:
    """All of them sampled."""
    rows = values.flatten().float()
    sampled = Sampled(
        step=0,
        phase="train",
        number=0,
        time=time.time(),
        series=torch.tensor([[7, 0]]),
        numels=torch.tensor([rows.numel()]),
        sizes=torch.tensor([rows.numel()]),
        exact=torch.tensor([[math.inf, -math.inf, math.nan, math.nan, math.nan]]),
        pairs=torch.empty(0, 2, dtype=torch.int64),
        samples=rows,
    )
    found = Distributions(
        columns=columns_of(sampled), numbers=[7], rows=[0], saturated=[math.nan], can_die=[False]
    )
    return found[7]


KNOWN: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: torch.randn(20_000),
    "uniform": lambda: torch.rand(20_000),
    "far from zero": lambda: 1000 + torch.randn(20_000),
    "heavy tails": lambda: torch.randn(20_000) / torch.rand(20_000),
    "over all magnitudes": lambda: torch.exp(20 * torch.randn(20_000)),
    "integers": lambda: torch.randint(-100, 100, (20_000,)),
    "bf16": lambda: torch.randn(20_000).bfloat16(),
    "half of them 0": lambda: torch.relu(torch.randn(20_000)),
    "tiny": lambda: 1e-42 * torch.randn(20_000),
}


@pytest.mark.parametrize("name", KNOWN)
def test_quantiles_are_wrong_by_a_bin_at_most(name: str) -> None:
    torch.manual_seed(0)
    values = KNOWN[name]().float()
    shares = (0.001, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999)
    for share, found in zip(shares, quantiles(of(values).counts, shares), strict=True):
        exact = float(values.double().quantile(share, interpolation="nearest"))
        low, high = bounds(bin_of(exact))
        assert abs(found - exact) <= high - low, (share, exact)


@pytest.mark.parametrize("name", KNOWN)
def test_values_are_in_the_bins_that_their_bits_say(name: str) -> None:
    torch.manual_seed(0)
    values = KNOWN[name]().float()
    assert of(values).counts == Counter(map(bin_of, values.tolist()))


def test_bins_lie_side_by_side() -> None:
    for start in (0, BINS // 2):
        for number in range(start, start + 509):
            low, high = bounds(number)
            following = bounds(number + 1)
            assert (high == following[0]) if start == 0 else (low == following[1])
            assert low < high
    assert [number for number in range(BINS) if not is_finite(number)] == [510, 511, 1022, 1023]


def test_what_is_no_number_is_counted_apart() -> None:
    found = of(torch.tensor([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3.0]))
    assert (found.sampled, found.nan, found.inf, found.zero) == (8, 2, 2, 2)
    assert (found.mean, found.min, found.max) == (1.0, 0.0, 3.0)
    assert found.std == pytest.approx(math.sqrt((2 * 1 + 0 + 4) / 4))
    assert sum(found.counts.values()) == 8


def test_the_norm_is_estimated_from_the_sampled_values_unless_it_is_known() -> None:
    """Two of 200 values were sampled, 3 and 4: their mean square is 12.5, so that of 200 is 2,500."""
    samples = torch.tensor([3.0, 4.0])
    exact = torch.tensor([[math.inf, -math.inf, math.nan, math.nan, math.nan]])
    sampled = Sampled(
        step=0,
        phase="train",
        number=0,
        time=1.0,
        series=torch.tensor([[7, 0]]),
        numels=torch.tensor([200]),
        sizes=torch.tensor([2]),
        exact=exact,
        pairs=torch.empty(0, 2, dtype=torch.int64),
        samples=samples,
    )
    assert columns_of(sampled).figures["norm"].tolist() == [50.0]
    known = exact.clone()
    known[0, -1] = 60.0
    assert columns_of(replace(sampled, exact=known)).figures["norm"].tolist() == [60.0]


def test_steps_that_are_read_together_do_not_mix() -> None:
    """Rows of 2, 1, 2 and 0 values; the second pair of values is the first one after the step."""

    def sampled(*values: float) -> Sampled:
        unknown = torch.tensor([math.inf, -math.inf, math.nan, math.nan, math.nan])
        return Sampled(
            step=0,
            phase="train",
            number=0,
            time=1.0,
            series=torch.tensor([[7, 0], [8, 1], [9, 2], [10, 3]]),
            numels=torch.tensor([2, 1, 2, 0]),
            sizes=torch.tensor([2, 1, 2, 0]),
            exact=unknown.repeat(4, 1),
            pairs=torch.tensor([[0, 2]]),
            samples=torch.tensor(values, dtype=torch.float32),
        )

    steps = [sampled(3, 4, 0, 3, 9), sampled(1, 0, math.nan, 2, math.inf)]
    first, second = RowStatistics(steps[0], torch.arange(4)).columns(steps)
    assert first.figures["mean"].tolist()[:3] == [3.5, 0, 6]
    assert first.figures["std"].tolist()[:3] == [0.5, 0, 3]
    assert first.figures["update"].tolist()[2] == 1
    assert first.figures["nan"].tolist() == [0, 0, 0, 0]
    assert first.sizes.tolist() == [2, 1, 2, 0]
    assert first.bins.tolist() == [*map(bin_of, (3, 4)), bin_of(0), *map(bin_of, (3, 9))]
    assert second.figures["mean"].tolist()[0] == 0.5
    assert second.figures["mean"].tolist()[2] == 2
    assert second.figures["nan"].tolist() == [0, 1, 0, 0]
    assert second.figures["inf"].tolist() == [0, 0, 1, 0]
    assert second.figures["zero"].tolist() == [1, 0, 0, 0]
    assert second.counts.tolist() == [1, 1, 1, 1, 1]
    for columns in (first, second):
        assert columns.figures["sampled"].tolist() == [2, 1, 2, 0]
        assert math.isnan(columns.figures["mean"].tolist()[3])


def test_nothing_but_nan() -> None:
    found = of(torch.full((5,), math.nan))
    assert (found.nan, found.sampled) == (5, 5)
    assert math.isnan(found.mean)
    assert all(map(math.isnan, quantiles(found.counts, (0.5,))))


def test_a_round_trip() -> None:
    found = {number: of(make()) for number, make in enumerate(KNOWN.values())}
    some, none = pack_steps([found, {}])
    assert repr(dict(unpacked(some))) == repr(found)
    assert dict(unpacked(none)) == {}


# -- several ranks as one ------------------------------------------------------------------------


def merge(parts: Sequence[Distribution]) -> Distribution:
    """Return the distribution of an output, of which each rank has a part."""
    return merge_distributions(parts, "output")


def test_each_weighs_as_much_as_it_has_values() -> None:
    """512 of 100,000 ones and all of 512 zeros: the mean is 100,000 / 100,512."""
    ones = replace(of(torch.ones(512)), numel=100_000)
    zeros = of(torch.zeros(512))
    found = merge([ones, zeros])
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
        merge([merge([ones, twos]), ones]),
        merge([ones, merge([ones, twos])]),
        merge([ones, twos, ones]),
    ):
        assert sorted(
            count / sum(found.counts.values()) for count in found.counts.values()
        ) == pytest.approx([1 / 33, 32 / 33])


def test_a_part_without_values_adds_nothing() -> None:
    ones = of(torch.ones(4))
    empty = replace(ones, numel=0, sampled=0, counts={})
    assert merge([ones, empty]).counts == ones.counts


def test_parts_of_the_same_size_add_up() -> None:
    values = torch.randn(2, 300)
    found, whole = merge([of(each) for each in values]), of(values.flatten())
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
    assert merge([large, small]).update == pytest.approx(
        math.hypot(0.1, 0.1) / math.hypot(100, 0.1)
    )
    assert merge([large, large]).update == pytest.approx(0.001)


def test_the_norm_of_parts_of_a_batch_is_that_of_all_their_values() -> None:
    """25 values of 3 have the norm 15, and 16 values of 2 have 8; one part has a norm of its own."""
    threes, twos = of(torch.full((25,), 3.0)), of(torch.full((16,), 2.0))
    assert (threes.norm, twos.norm) == (15.0, 8.0)
    assert merge([threes, twos]).norm == pytest.approx(17.0)
    assert merge([threes, threes]).norm == pytest.approx(15.0 * math.sqrt(2))
    assert merge([threes, replace(twos, norm=20.0)]).norm == pytest.approx(25.0)
    assert merge([threes, replace(twos, norm=math.nan)]).norm == 15.0


@pytest.mark.parametrize("kind", ["param", "param_grad"])
def test_the_norm_of_equal_parameters_is_that_of_one_of_them(kind: Kind) -> None:
    """Replicas have the same values; shards of a tensor differ, and add up."""
    threes, twos = of(torch.full((25,), 3.0)), of(torch.full((16,), 2.0))
    assert merge_distributions([threes, threes], kind).norm == 15.0
    assert merge_distributions([threes, twos], kind).norm == pytest.approx(17.0)
    assert math.isnan(merge_distributions([replace(twos, norm=math.nan)] * 2, kind).norm)


def test_units_are_dead_if_they_are_for_all() -> None:
    """Of which no more can be said than that they are no more than in the part where fewest are."""
    parts = [replace(of(torch.ones(4)), dead=dead) for dead in (0.5, 0.25, math.nan)]
    assert merge(parts).dead == 0.25


def test_what_is_unknown_in_all_stays_unknown() -> None:
    found = merge([of(torch.ones(4))] * 2)
    assert all(
        math.isnan(getattr(found, name)) for name in ("update", "dead", "saturated", "sample_norm")
    )
    empty = merge([of(torch.tensor([math.nan]))] * 2)
    assert math.isnan(empty.mean)
    assert empty.nan == 2


def test_a_rank_without_finite_values_hides_no_extreme_of_another() -> None:
    bad, good = of(torch.tensor([math.nan])), of(torch.tensor([-1.0, 2.0]))
    for parts in ([bad, good], [good, bad]):
        assert (merge(parts).min, merge(parts).max) == (-1.0, 2.0)
