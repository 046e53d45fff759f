"""Minimum cuts of small networks, found by hand."""

from __future__ import annotations

import pytest

from torchscan.analyses.minimum_cut import FlowNetwork


def network(edges: list[tuple[int, int, int | None]], nodes: int) -> FlowNetwork:
    made = FlowNetwork(nodes)
    for tail, head, capacity in edges:
        made.connect(tail, head, capacity)
    return made


def test_the_narrowest_edge_of_a_chain_is_cut() -> None:
    chain = network([(0, 1, 5), (1, 2, 2), (2, 3, 4)], 4)
    assert chain.reached_after_cut(0, 3) == {0, 1}


def test_two_narrow_edges_are_cut_where_one_wide_edge_carries_more() -> None:
    """Beyond node 1, the paths of 3 and 4 carry 7; before it, the edge carries 9."""
    diamond = network([(0, 1, 9), (1, 2, 3), (1, 3, 4), (2, 4, 8), (3, 4, 8)], 5)
    assert diamond.reached_after_cut(0, 4) == {0, 1}


def test_flow_is_sent_back_where_a_first_path_blocks_two_others() -> None:
    """0-1-2-3 is a path, but 0-1-3 and 0-2-3 carry twice as much: all edges at the sink are cut."""
    crossed = network([(0, 1, 1), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1)], 4)
    assert crossed.reached_after_cut(0, 3) == {0}


def test_edges_without_a_capacity_are_not_cut() -> None:
    fixed = network([(0, 1, None), (1, 2, 6), (2, 3, None)], 4)
    assert fixed.reached_after_cut(0, 3) == {0, 1}
    with pytest.raises(ValueError, match="can't be cut"):
        network([(0, 1, None), (1, 2, None)], 3).reached_after_cut(0, 2)
