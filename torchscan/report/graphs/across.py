"""Horizontal positions of boxes in given layers: straight lines, boxes centered on neighbors.

After Brandes and Köpf, "Fast and simple horizontal coordinate assignment" (2001). Four times, from
above and from below, to the left and to the right, each box is aligned with the median of its
neighbors, and aligned boxes are moved as far as possible. The position is the mean of the two
middle ones of these four.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

Neighbours = Mapping[int, Sequence[int]]
Layers = Sequence[Sequence[int]]


def across(
    layers: Layers,
    above: Neighbours,
    below: Neighbours,
    gap: Callable[[int, int], float],
    bends: int,
) -> dict[int, float]:
    """Return the position of each node.

    ``gap`` is the distance between the middles of two neighbors; nodes from ``bends`` on are bends.
    """
    crossed = _crossed(layers, above, bends)
    found = []
    for ordered, neighbours in ((layers, above), (layers[::-1], below)):
        heads = _aligned(ordered, neighbours, crossed)
        found.append(_compacted(ordered, heads, gap))
        mirrored = [layer[::-1] for layer in ordered]
        heads = _aligned(mirrored, neighbours, crossed)
        x = _compacted(mirrored, heads, gap)
        found.append({node: -place for node, place in x.items()})
    return _balanced(found)


def _crossed(layers: Layers, above: Neighbours, bends: int) -> set[tuple[int, int]]:
    """Return the segments that cross a segment between two bends, which must be straight."""
    crossed = set()
    for upper, lower in itertools.pairwise(layers):
        places = {node: place for place, node in enumerate(upper)}
        begin, left = 0, 0
        for place, node in enumerate(lower):
            bend = _bend_above(node, above, bends)
            if bend is None and place < len(lower) - 1:
                continue
            right = len(upper) if bend is None else places[bend]
            for other in lower[begin : place + 1]:
                for source in above.get(other, ()):
                    is_inner = other >= bends and source >= bends
                    if not is_inner and not left <= places[source] <= right:
                        crossed.add((source, other))
            begin, left = place + 1, right
    return crossed


def _bend_above(node: int, above: Neighbours, bends: int) -> int | None:
    """Return the bend that a bend follows, or None for other nodes."""
    if node < bends:
        return None
    for source in above.get(node, ()):
        if source >= bends:
            return source
    return None


def _aligned(
    layers: Layers, neighbours: Neighbours, crossed: set[tuple[int, int]]
) -> dict[int, int]:
    """Return the first node of the line that each node is aligned with."""
    heads = {node: node for layer in layers for node in layer}
    is_taken = set[int]()
    places = {node: place for layer in layers for place, node in enumerate(layer)}
    for layer in layers:
        reached = -1
        for node in layer:
            near = sorted(neighbours.get(node, ()), key=places.__getitem__)
            for median in near[(len(near) - 1) // 2 : len(near) // 2 + 1]:
                is_free = heads[node] == node and median not in is_taken
                is_straight = crossed.isdisjoint(((median, node), (node, median)))
                if is_free and is_straight and reached < places[median]:
                    heads[node] = heads[median]
                    is_taken.add(median)
                    reached = places[median]
    return heads


def _compacted(
    layers: Layers, heads: Mapping[int, int], gap: Callable[[int, int], float]
) -> dict[int, float]:
    """Return positions with each line as far to the left as those beside it allow.

    Lines that nothing holds on the left are then moved to the right.
    """
    right: dict[int, dict[int, float]] = defaultdict(dict)
    left: dict[int, dict[int, float]] = defaultdict(dict)
    for layer in layers:
        for one, other in itertools.pairwise(layer):
            a, b = heads[one], heads[other]
            right[a][b] = left[b][a] = max(right[a].get(b, 0.0), gap(one, other))
    order = _from_left(dict.fromkeys(heads.values()), left, right)
    x: dict[int, float] = {}
    for head in order:
        x[head] = max((x[each] + far for each, far in left[head].items()), default=0.0)
    for head in reversed(order):
        limit = min((x[each] - far for each, far in right[head].items()), default=x[head])
        x[head] = max(x[head], limit)
    return {node: x[head] for node, head in heads.items()}


def _from_left(
    heads: Mapping[int, None],
    left: Mapping[int, Mapping[int, float]],
    right: Mapping[int, Mapping[int, float]],
) -> list[int]:
    waiting = {head: len(left.get(head, ())) for head in heads}
    ready = [head for head in heads if not waiting[head]]
    for head in ready:
        for other in right.get(head, ()):
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return ready


def _balanced(found: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return the mean of the two middle positions, with each shifted to one end of the narrowest.

    The first and the third of the four are those to the left.
    """
    ends = [(min(x.values(), default=0.0), max(x.values(), default=0.0)) for x in found]
    left, right = min(ends, key=lambda each: each[1] - each[0])
    shifts = []
    for index, (start, end) in enumerate(ends):
        shifts.append(left - start if index % 2 == 0 else right - end)
    balanced = {}
    shifted = list(zip(found, shifts, strict=True))
    for node in found[0]:
        _, one, other, _ = sorted(x[node] + shift for x, shift in shifted)
        balanced[node] = (one + other) / 2
    return balanced
