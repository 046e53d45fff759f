"""Bins that nobody chooses, and what a worker makes of samples."""

from __future__ import annotations

import math
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchscan.watching.bins import BINS, bounds, is_finite, quantiles
from torchscan.watching.distribution_columns import Distributions
from torchscan.watching.distributions import columns_of
from torchscan.watching.packing import packed, unpacked
from torchscan.watching.sampled import Sampled
from torchscan.watching.schema import Distribution


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
    samples = torch.tensor([[3.0, 4.0]])
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


def test_nothing_but_nan() -> None:
    found = of(torch.full((5,), math.nan))
    assert (found.nan, found.sampled) == (5, 5)
    assert math.isnan(found.mean)
    assert all(map(math.isnan, quantiles(found.counts, (0.5,))))


def test_a_round_trip() -> None:
    found = {number: of(make()) for number, make in enumerate(KNOWN.values())}
    assert repr(dict(unpacked(packed(found)))) == repr(found)
    assert dict(unpacked(packed({}))) == {}
