"""Layout of a graph in layers from top to bottom, each box below all that it reads.

The layer of a box is the length of the longest path to it. In a layer, boxes are ordered by the
mean position of their neighbors, in several sweeps; the order with the fewest crossings is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from torchscan.report.graphs.across import across

#: between boxes beside each other, lines beside each other, and layers
_GAP, _LINE_GAP, _LAYER_GAP = 22.0, 14.0, 28.0
_SWEEPS = 12


Point = tuple[float, float]


class Size(NamedTuple):
    """The size of a box."""

    wide: float
    tall: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The middle of each box, the bends of each edge from its first point to its last, and the size of all."""

    places: Sequence[Point]
    ways: Sequence[Sequence[Point]]
    size: Size


def lay_out(sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out boxes with these sizes. Edges go from earlier boxes to later ones."""
    ranks = _ranks(len(sizes), edges)
    chains, layers, below = _with_bends(ranks, edges)
    _order(layers, below)
    wide = [*(size.wide for size in sizes), *[0.0] * (sum(map(len, layers)) - len(sizes))]
    found = across(
        layers, _reversed(below), below, lambda one, other: _gap(wide[one], wide[other]), len(sizes)
    )
    left = min((found[at] - wide[at] / 2 for at in found), default=0.0)
    x = [found[at] - left for at in range(len(wide))]
    tall = [
        max((sizes[at].tall for at in layer if at < len(sizes)), default=0.0) for layer in layers
    ]
    y = _down(tall)
    at_rank = {node: rank for rank, layer in enumerate(layers) for node in layer}
    ways = [
        _way(
            [(x[at], y[at_rank[at]], tall[at_rank[at]] / 2) for at in chain],
            sizes[chain[0]].tall / 2,
            sizes[chain[-1]].tall / 2,
        )
        for chain in chains
    ]
    right = max((x[at] + wide[at] / 2 for at in range(len(wide))), default=0.0)
    return Layout(
        [(x[at], y[ranks[at]]) for at in range(len(sizes))],
        ways,
        Size(right, (y[-1] + tall[-1] / 2) if tall else 0.0),
    )


def _ranks(number: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The length of the longest way to each; what nothing leads to stands just above what reads it first."""
    into, out = defaultdict(list), defaultdict(list)
    for source, target in edges:
        into[target].append(source)
        out[source].append(target)
    ranks = [0] * number
    for at in _in_order(number, into, out):
        ranks[at] = max((ranks[source] + 1 for source in into[at]), default=0)
    for at in range(number):
        if not into[at] and out[at]:
            ranks[at] = min(ranks[target] for target in out[at]) - 1
    return ranks


def _in_order(number: int, into: dict[int, list[int]], out: dict[int, list[int]]) -> list[int]:
    """Each after all that lead to it."""
    waiting = [len(into[at]) for at in range(number)]
    ready = [at for at in range(number) if not waiting[at]]
    for at in ready:
        for target in out[at]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return ready


def _with_bends(
    ranks: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]], dict[int, list[int]]]:
    """An edge bends in each layer that it crosses: the nodes along each edge, the layers, and who follows whom."""
    layers: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for at, rank in enumerate(ranks):
        layers[rank].append(at)
    below, chains, number = defaultdict(list), [], len(ranks)
    for source, target in edges:
        chain = [source]
        for rank in range(ranks[source] + 1, ranks[target]):
            layers[rank].append(number)
            chain.append(number)
            number += 1
        chain.append(target)
        for one, other in pairwise(chain):
            below[one].append(other)
        chains.append(chain)
    return chains, layers, below


# -- order in the layers -------------------------------------------------------------------------------------------------


def _order(layers: list[list[int]], below: dict[int, list[int]]) -> None:
    above = _reversed(below)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        for rank in range(1, len(layers)) if downwards else reversed(range(len(layers) - 1)):
            _sort(
                layers[rank],
                layers[rank - 1 if downwards else rank + 1],
                above if downwards else below,
            )
        crossings = _crossings(layers, below)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _sort(layer: list[int], fixed: Sequence[int], neighbours: dict[int, list[int]]) -> None:
    """Sort a layer by the mean position of the neighbors. Boxes without neighbors keep theirs."""
    at = {node: place for place, node in enumerate(fixed)}
    means = {}
    for place, node in enumerate(layer):
        near = [at[each] for each in neighbours.get(node, ()) if each in at]
        means[node] = sum(near) / len(near) if near else place * len(fixed) / len(layer)
    layer.sort(key=means.__getitem__)


def _crossings(layers: Sequence[Sequence[int]], below: dict[int, list[int]]) -> int:
    """Return the number of crossing lines: inversions, counted by a Fenwick tree."""
    found = 0
    for upper, lower in pairwise(layers):
        at = {node: place for place, node in enumerate(lower)}
        ends = [
            place
            for node in upper
            for place in sorted(at[each] for each in below.get(node, ()) if each in at)
        ]
        sums = [0] * (len(lower) + 1)
        for number, end in enumerate(ends):
            place, smaller = end + 1, 0
            while place:
                smaller += sums[place]
                place -= place & -place
            found += number - smaller
            place = end + 1
            while place < len(sums):
                sums[place] += 1
                place += place & -place
    return found


def _reversed(below: dict[int, list[int]]) -> dict[int, list[int]]:
    above = defaultdict(list)
    for one, others in below.items():
        for other in others:
            above[other].append(one)
    return above


# -- places --------------------------------------------------------------------------------------------------------------


def _gap(one: float, other: float) -> float:
    return (one + other) / 2 + (_GAP if one or other else _LINE_GAP)


def _down(tall: Sequence[float]) -> list[float]:
    found, y = [], 0.0
    for each in tall:
        found.append(y + each / 2)
        y += each + _LAYER_GAP
    return found


def _way(chain: Sequence[tuple[float, float, float]], first: float, last: float) -> list[Point]:
    """From the lower side of a box to the upper side of another: straight down through each layer, bent between them.

    Of each node its place and half the height of its layer; ``first`` and ``last`` are half the heights of the boxes.
    """
    points = []
    for at, (x, y, half) in enumerate(chain):
        points.append((x, y + first if at == 0 else y - half))
        points.append((x, y - last if at == len(chain) - 1 else y + half))
    return [one for one, other in pairwise(points) if one != other] + points[-1:]
