"""Bytes that ranks send, by hand."""

from __future__ import annotations

import pytest

from torchscan.ops.communication import Kind, sent_bytes

RINGS: tuple[Kind, ...] = ("all-gather", "reduce-scatter", "all-to-all")


@pytest.mark.parametrize("kind", RINGS)
def test_each_rank_sends_its_part_to_all_others(kind: Kind) -> None:
    assert [sent_bytes(kind, 1200, ranks) for ranks in (1, 2, 3, 4)] == [0, 600, 800, 900]


def test_an_all_reduce_scatters_and_gathers() -> None:
    assert [sent_bytes("all-reduce", 1200, ranks) for ranks in (1, 2, 3, 4)] == [
        0,
        1200,
        1600,
        1800,
    ]


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_a_root_sends_or_gets_the_complete_tensor(kind: Kind) -> None:
    assert [sent_bytes(kind, 1200, ranks) for ranks in (1, 2, 3)] == [0, 1200, 1200]


@pytest.mark.parametrize("kind", ["send", "receive"])
def test_what_goes_from_one_to_another_goes_once(kind: Kind) -> None:
    assert [sent_bytes(kind, 1200, ranks) for ranks in (1, 2, 3)] == [1200, 1200, 1200]
