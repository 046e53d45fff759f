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
    """The places of boxes and lines."""

    #: the middle of each box
    places: Sequence[Point]
    #: the points of each edge, from its first to its last
    ways: Sequence[Sequence[Point]]
    size: Size


def lay_out(sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out boxes with these sizes. Edges go from earlier boxes to later ones."""
    ranks = _ranks(len(sizes), edges)
    chains, layers, below = _add_bends(ranks, edges)
    _order(layers, below)
    num_nodes = sum(map(len, layers))
    widths = [size.wide for size in sizes] + [0.0] * (num_nodes - len(sizes))
    xs = _place_across(layers, below, widths, len(sizes))

    heights = []
    for layer in layers:
        boxes = [sizes[node].tall for node in layer if node < len(sizes)]
        heights.append(max(boxes, default=0.0))
    ys = _place_down(heights)
    stops: dict[int, _Stop] = {}
    for y, height, layer in zip(ys, heights, layers, strict=True):
        stops.update((node, _Stop(xs[node], y, height / 2)) for node in layer)

    ways = []
    for chain in chains:
        first, last = sizes[chain[0]].tall / 2, sizes[chain[-1]].tall / 2
        ways.append(_way([stops[node] for node in chain], first, last))
    right = max((x + width / 2 for x, width in zip(xs, widths, strict=True)), default=0.0)
    bottom = ys[-1] + heights[-1] / 2 if heights else 0.0
    places = [(stops[node].x, stops[node].y) for node in range(len(sizes))]
    return Layout(places, ways, Size(right, bottom))


def _ranks(number: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the length of the longest path to each box.

    A box without edges to it stands just above the first box that reads it.
    """
    into, out = defaultdict(list), defaultdict(list)
    for source, target in edges:
        into[target].append(source)
        out[source].append(target)
    ranks = [0] * number
    for at in _sort_by_edges(number, into, out):
        ranks[at] = max((ranks[source] + 1 for source in into[at]), default=0)
    for at in range(number):
        if not into[at] and out[at]:
            ranks[at] = min(ranks[target] for target in out[at]) - 1
    return ranks


def _sort_by_edges(number: int, into: dict[int, list[int]], out: dict[int, list[int]]) -> list[int]:
    """Return the boxes in an order in which each comes after all that lead to it."""
    waiting = [len(into[at]) for at in range(number)]
    ready = [at for at in range(number) if not waiting[at]]
    for at in ready:
        for target in out[at]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return ready


def _add_bends(
    ranks: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]], dict[int, list[int]]]:
    """Return the nodes along each edge, the layers, and the nodes below each node.

    An edge bends in each layer that it crosses.
    """
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


# -- order in the layers -------------------------------------------------------------------------


def _order(layers: list[list[int]], below: dict[int, list[int]]) -> None:
    """Sort the nodes of each layer in place, so that few lines cross."""
    above = _reversed(below)
    best = [list(layer) for layer in layers]
    min_crossings = _count_crossings(layers, below)
    for sweep in range(_SWEEPS):
        if not min_crossings:
            break
        if sweep % 2 == 0:
            for upper, lower in pairwise(layers):
                _sort_layer(lower, upper, above)
        else:
            for lower, upper in pairwise(reversed(layers)):
                _sort_layer(upper, lower, below)
        crossings = _count_crossings(layers, below)
        if crossings < min_crossings:
            best = [list(layer) for layer in layers]
            min_crossings = crossings
    layers[:] = best


def _sort_layer(layer: list[int], fixed: Sequence[int], neighbours: dict[int, list[int]]) -> None:
    """Sort a layer by the mean position of the neighbors. Boxes without neighbors keep theirs."""
    at = {node: place for place, node in enumerate(fixed)}
    means = {}
    for place, node in enumerate(layer):
        near = [at[each] for each in neighbours.get(node, ()) if each in at]
        if near:
            means[node] = sum(near) / len(near)
        else:
            means[node] = place * len(fixed) / len(layer)
    layer.sort(key=means.__getitem__)


def _count_crossings(layers: Sequence[Sequence[int]], below: dict[int, list[int]]) -> int:
    """Return the number of crossing lines."""
    crossings = 0
    for upper, lower in pairwise(layers):
        at = {node: place for place, node in enumerate(lower)}
        ends: list[int] = []
        for node in upper:
            ends += sorted(at[each] for each in below.get(node, ()) if each in at)
        crossings += _count_inversions(ends, len(lower))
    return crossings


def _count_inversions(places: Sequence[int], num_places: int) -> int:
    """Return the number of pairs in falling order, counted by a Fenwick tree."""
    inversions = 0
    sums = [0] * (num_places + 1)
    for number, place in enumerate(places):
        index = place + 1
        not_larger = 0
        while index:
            not_larger += sums[index]
            index -= index & -index
        inversions += number - not_larger
        index = place + 1
        while index < len(sums):
            sums[index] += 1
            index += index & -index
    return inversions


def _reversed(below: dict[int, list[int]]) -> dict[int, list[int]]:
    above = defaultdict(list)
    for one, others in below.items():
        for other in others:
            above[other].append(one)
    return above


# -- places --------------------------------------------------------------------------------------


class _Stop(NamedTuple):
    """A node on the way of an edge: its place, and half the height of its layer."""

    x: float
    y: float
    half: float


def _place_across(
    layers: Sequence[Sequence[int]],
    below: dict[int, list[int]],
    widths: Sequence[float],
    num_boxes: int,
) -> list[float]:
    """Return the middle of each node, from the left end of all on."""

    def gap(one: int, other: int) -> float:
        between = _GAP if widths[one] or widths[other] else _LINE_GAP
        return (widths[one] + widths[other]) / 2 + between

    middles = across(layers, _reversed(below), below, gap, num_boxes)
    left = min((middles[node] - widths[node] / 2 for node in middles), default=0.0)
    return [middles[node] - left for node in range(len(widths))]


def _place_down(heights: Sequence[float]) -> list[float]:
    """Return the middle of each layer."""
    middles = []
    y = 0.0
    for height in heights:
        middles.append(y + height / 2)
        y += height + _LAYER_GAP
    return middles


def _way(stops: Sequence[_Stop], first: float, last: float) -> list[Point]:
    """Return the points from the lower side of a box to the upper side of another.

    The line goes straight down through each layer and bends between them. ``first`` and ``last``
    are half the heights of the boxes.
    """
    points = []
    for index, (x, y, half) in enumerate(stops):
        begin, end = y - half, y + half
        if index == 0:
            begin = y + first
        if index == len(stops) - 1:
            end = y - last
        points += [(x, begin), (x, end)]
    return [one for one, other in pairwise(points) if one != other] + points[-1:]
