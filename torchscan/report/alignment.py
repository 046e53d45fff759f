"""Alignment of the layers of two models or runs, also where an index or a prefix has moved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from torchscan.report.compared_trees import ComparedTree, Name, Node

T = TypeVar("T", bound=Hashable)
#: a layer of each side, by index
Pair = tuple[int, int]

#: a part of a name that is a number
_INDEX = re.compile(r"(?:^|\.)\d+(?:\.|$)")
#: containers of torch, which say nothing about what is in them
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
#: weights of two layers that have nothing in common, the same class, also equal parameters, or
#: also equal shapes and costs
_SAME_NAME = (2, 4, 6, 8)
_OTHER_NAME = (0, 1, 5, 7)
#: pairs of children that are weighed against each other, at most; more are aligned by name
_MAX_WEIGHED = 250_000


def align_nodes(before: Sequence[Node], after: Sequence[Node]) -> dict[int, int]:
    """Return the index of the node after that each node before is compared with.

    Children of aligned nodes are aligned by name. Where names are numbers, as in a
    ``Sequential``, equal content counts more than an equal name, because a layer that is inserted
    shifts all numbers after it. Otherwise, layers with different names are aligned only if they
    have equal parameters or contain equal layers. If one side wraps the model of the other, the
    two models are aligned. Of the remaining calls, those with the same path are aligned, because
    another module may call a module now.
    """
    known: dict[Hashable, int] = {}
    old, new = ComparedTree(nodes=before, known=known), ComparedTree(nodes=after, known=known)
    aligned: dict[int, int] = {}
    waiting = _find_roots(old, new)
    while waiting:
        one, other = waiting.pop()
        aligned[one] = other
        waiting += _Siblings(old, new, old.children[one], new.children[other]).pairs()
    aligned.update(_pair_called_elsewhere(before, after, aligned))
    return aligned


def merge_aligned(
    num_before: int, num_after: int, aligned: Mapping[int, int]
) -> list[tuple[int | None, int | None]]:
    """Return the indices of both sides, aligned ones together, in the order of the side after.

    A node that is gone comes after the remaining node that preceded it.
    """
    first = {other: one for one, other in aligned.items()}
    old = [(one, aligned.get(one)) for one in range(num_before)]
    new = [(first.get(other), other) for other in range(num_after)]
    return merge_orders(old, new)


def merge_orders(old: Sequence[T], new: Sequence[T]) -> list[T]:
    """Return all keys in their new order.

    One that is gone comes after the remaining one that preceded it, or else first.
    """
    remaining = set(new)
    first: list[T] = []
    gone_after: dict[T, list[T]] = {key: [] for key in new}
    gone = first
    for key in old:
        if key in remaining:
            gone = gone_after[key]
        else:
            gone.append(key)
    merged = first
    for key in new:
        merged += [key, *gone_after[key]]
    return merged


def _find_roots(before: ComparedTree, after: ComparedTree) -> list[Pair]:
    """Return the two models, or the model of one side and where the other side wraps it.

    A run may call its model several times.
    """
    if not before.nodes or not after.nodes:
        return []
    inside = _find_wrapped(before, after)
    if inside:
        return list(zip(before.roots, inside, strict=False))
    inside = _find_wrapped(after, before)
    if inside:
        return list(zip(inside, after.roots, strict=False))
    return list(zip(before.roots, after.roots, strict=False))


def _find_wrapped(model: ComparedTree, wrapper: ComparedTree) -> list[int]:
    """Return the calls of the model inside its wrapper; the list is empty if there are none.

    A model of the same class is a wrapper only if it contains an equal model, and does not have
    all layers of the model itself, by their paths or their content.
    """
    equal = [index for index, kind in enumerate(wrapper.kinds) if kind == model.kinds[0]]
    wanted = model.nodes[0].type_name
    if wrapper.nodes[0].type_name == wanted:
        return equal if _lacks_layers(wrapper, model) else []
    if equal:
        return equal
    same = [index for index, node in enumerate(wrapper.nodes) if node.type_name == wanted]
    paths = {wrapper.nodes[index].path for index in same}
    return same if len(paths) == 1 and wanted not in _CONTAINERS else []


def _lacks_layers(wrapper: ComparedTree, model: ComparedTree) -> bool:
    """Return whether layers of the model are neither at their paths nor directly in a wrapper."""
    found = {(node.path, node.type_name) for node in wrapper.nodes}
    missing = [node for node in model.nodes if (node.path, node.type_name) not in found]
    if not missing:
        return False
    inner = Counter(model.kinds[index] for index in model.children[0])
    owned = Counter(wrapper.kinds[index] for index in wrapper.children[0])
    return not inner <= owned


def _pair_called_elsewhere(
    before: Sequence[Node], after: Sequence[Node], aligned: Mapping[int, int]
) -> Iterator[Pair]:
    """Yield pairs of the remaining nodes that have the same path and call.

    In a layer whose path has changed, an equal path is a different module.
    """
    left = set(range(len(after))) - set(aligned.values())
    rest = {(after[index].path, after[index].call): index for index in left}
    if not rest:
        return
    moved: set[str] = set()
    for one, other in aligned.items():
        if before[one].path != after[other].path:
            moved.update((before[one].path, after[other].path))
    if "" in moved:  # one model wraps the other one
        return
    for index, node in enumerate(before):
        same = rest.get((node.path, node.call))
        around = accumulate(node.path.split("."), "{}.{}".format)
        if index not in aligned and same is not None and moved.isdisjoint(around):
            yield index, same


class _Siblings:
    """The children of two layers that are compared with each other."""

    def __init__(
        self, before: ComparedTree, after: ComparedTree, old: Sequence[int], new: Sequence[int]
    ) -> None:
        self._before, self._after = before, after
        self._old = dict(zip(before.names(old), old, strict=True))
        self._new = dict(zip(after.names(new), new, strict=True))

    def pairs(self) -> list[Pair]:
        """Return the children that are compared with each other."""
        named = [name for name in self._old if name in self._new and not _INDEX.search(name[0])]
        pairs = [(name, name) for name in named]
        known = set(named)
        old = [name for name in self._old if name not in known]
        new = [name for name in self._new if name not in known]
        pairs += self._align(old, new)
        return [(self._old[one], self._new[other]) for one, other in pairs]

    def _align(self, old: list[Name], new: list[Name]) -> list[tuple[Name, Name]]:
        """Return the best alignment of two sequences of names, which keeps their order."""
        pairs: list[tuple[Name, Name]] = []
        for end in (0, -1):
            while old and new and self._weight(old[end], new[end]) == max(_SAME_NAME):
                pairs.append((old.pop(end), new.pop(end)))
        if len(old) * len(new) <= _MAX_WEIGHED:
            pairs += self._weigh(old, new)

        # what changed its place
        done = {one for one, _ in pairs}
        free = set(new) - {other for _, other in pairs}
        return pairs + [(name, name) for name in old if name in free and name not in done]

    def _weigh(self, old: list[Name], new: list[Name]) -> list[tuple[Name, Name]]:
        """Return the alignment with the largest sum of weights (Needleman and Wunsch)."""
        width = len(new) + 1
        best = [[0] * width for _ in range(len(old) + 1)]
        weights = []
        for one in old:
            row_weights = [self._weight(one, other) for other in new]
            weights.append(row_weights)
        for row in range(len(old) - 1, -1, -1):
            for column in range(width - 2, -1, -1):
                skipped = max(best[row + 1][column], best[row][column + 1])
                weight = weights[row][column]
                taken = best[row + 1][column + 1] + weight if weight else 0
                best[row][column] = max(skipped, taken)

        pairs = []
        row = column = 0
        while row < len(old) and column < len(new):
            weight = weights[row][column]
            if weight and best[row][column] == best[row + 1][column + 1] + weight:
                pairs.append((old[row], new[column]))
                row, column = row + 1, column + 1
            elif best[row][column] == best[row + 1][column]:
                row += 1
            else:
                column += 1
        return pairs

    def _weight(self, old: Name, new: Name) -> int:
        """Return how much speaks for a pair, or 0 if the two have nothing in common."""
        one, other = self._old[old], self._new[new]
        before, after = self._before, self._after
        are_numbered = bool(_INDEX.search(old[0]) and _INDEX.search(new[0]))
        is_same_class = before.nodes[one].type_name == after.nodes[other].type_name
        likeness = 0
        if before.exact[one] == after.exact[other]:
            likeness = 3
        elif before.kinds[one] == after.kinds[other]:
            likeness = 2
        elif is_same_class:
            likeness = 1
        if old == new:
            return _SAME_NAME[likeness]
        if are_numbered or (likeness > 1 and before.distinct[one]):
            return _OTHER_NAME[likeness]
        return 0
