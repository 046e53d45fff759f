"""Histograms and statistics as sinks write them, from distributions made by hand."""

from __future__ import annotations

from typing import Any

from torchscan.types import Distribution
from torchscan.watching.sinks.sink import histogram, limited_histogram, merged, to_statistics


def distribution(counts: dict[int, int], **figures: Any) -> Distribution:
    number = sum(counts.values())
    known = dict.fromkeys(("nan", "inf", "zero"), 0) | dict.fromkeys(
        ("update", "saturated", "dead", "sample_norm", "norm"), float("nan")
    )
    rest = {
        "numel": number,
        "sampled": number,
        "mean": 0.0,
        "std": 1.0,
        "is_exact": True,
        "custom": {},
    }
    return Distribution(**{**known, **rest, "min": -9.0, "max": 9.0, **figures}, counts=counts)


def test_histograms_have_edges_that_grow_and_all_counts() -> None:
    """1 and 1.5 begin bins 254 and 255; 4 begins bin 258."""
    edges, counts = histogram(distribution({254: 3, 258: 2, 254 + 512: 1}))
    assert (edges, counts) == ([-1.5, -1.0, 1.0, 1.5, 4.0, 6.0], [1, 0, 3, 0, 2])
    edges, _ = histogram(distribution({254: 3, 258: 2}, min=1.25, max=5.0))
    assert edges == [1.25, 1.5, 4.0, 5.0]
    assert histogram(distribution({510: 1, 511: 2})) == ([], [])
    assert merged([0.0, 1.0, 1.25, 1.5, 3.0, 3.25], [1, 2, 3, 4, 5], 0.5) == (
        [0.0, 1.0, 1.5, 3.25],
        [1, 5, 9],
    )


def test_nan_statistics_and_zero_counts_are_left_out() -> None:
    found = to_statistics(
        distribution({254: 1}, nan=2, update=0.5, custom={"mine": 3.0, "none": float("nan")})
    )
    assert found == {
        "mean": 0.0,
        "std": 1.0,
        "min": -9.0,
        "max": 9.0,
        "update": 0.5,
        "mine": 3.0,
        "nan": 2.0,
    }


def test_a_histogram_is_limited_to_512_bins() -> None:
    counts = dict.fromkeys(range(508), 1) | dict.fromkeys(range(512, 512 + 508), 2)
    edges, few = limited_histogram(distribution(counts, min=-3e38, max=3e38))
    assert len(edges) - 1 == len(few) == 512
    assert sum(few) == 3 * 508
    assert few[-3:] == [1, 1, 1]
    assert few[:3] == [2, 2, 2]
