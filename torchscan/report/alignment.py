"""Alignment of the layers of two infos, also where an index or a prefix of paths has moved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torchscan.plain import to_plain
from torchscan.report.info_data import PARAMETER_SUMS, SUMS, Layer

T = TypeVar("T", bound=Hashable)
#: by path what modules say of themselves (``extra_repr``)
Settings = Mapping[str, str]
#: a layer of each side, by index
Pair = tuple[int, int]
#: a name among those of the same call, and how often it occurred before
_Name = tuple[str, int]

#: a part of a name that is a number
_INDEX = re.compile(r"(?:^|\.)\d+(?:\.|$)")
#: containers of torch, which say nothing about what is in them
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
#: weight of two layers of the same name and content
_SAME = 8
#: pairs of children that are weighed against each other, at most; more are aligned by name
_MAX_WEIGHED = 250_000


def align_layers(
    before: Sequence[Layer],
    after: Sequence[Layer],
    settings: tuple[Settings, Settings] = ({}, {}),
) -> dict[int, int]:
    """Return for each layer before, by its index, the one after that it is compared with.

    Children of aligned layers are aligned by name. Where names are numbers, as in a
    ``Sequential``, equal content counts more than an equal name, because a layer that is inserted
    shifts all numbers behind it. A model that the other one wraps is aligned with what is wrapped.
    """
    known: dict[Hashable, int] = {}
    old, new = (
        _LayerTree(layers=layers, settings=texts, known=known)
        for layers, texts in zip((before, after), settings, strict=True)
    )
    aligned: dict[int, int] = {}
    waiting = [_find_roots(old, new)]
    while waiting:
        one, other = waiting.pop()
        aligned[one] = other
        waiting += _Siblings(old, new, old.children[one], new.children[other]).pairs()
    return aligned


@dataclass(slots=True, kw_only=True)
class _LayerTree:
    """The layers of one info as a tree, with the numbers of their contents.

    Both sides share the numbers, so equal contents have equal numbers.
    """

    layers: Sequence[Layer]
    settings: Settings
    known: dict[Hashable, int]
    children: list[list[int]] = field(default_factory=list)
    #: by layer the number of its content with shapes and costs, and of what it is without them
    exact: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.children = children_of([layer["depth"] for layer in self.layers])
        self.exact = [0] * len(self.layers)
        self.kinds = [0] * len(self.layers)
        for index in reversed(range(len(self.layers))):  # children come after their parents
            layer, inner = self.layers[index], self.children[index]
            content = (layer["type"], self.settings.get(layer["path"], ""))
            kind = ("kind", *content, *[layer[key] for key in PARAMETER_SUMS])
            shapes = (str(to_plain(layer["input_shape"])), str(to_plain(layer["output_shape"])))
            exact = ("exact", *content, *shapes, *[layer[key] for key in SUMS])
            self.kinds[index] = self._number((*kind, *[self.kinds[each] for each in inner]))
            self.exact[index] = self._number((*exact, *[self.exact[each] for each in inner]))

    def _number(self, content: Hashable) -> int:
        return self.known.setdefault(content, len(self.known))

    def names(self, layers: Sequence[int]) -> list[_Name]:
        """Return the names of siblings, each with its number among calls of the same name."""
        seen: Counter[str] = Counter()
        names = []
        for index in layers:
            name = self.layers[index]["name"]
            names.append((name, seen[name]))
            seen[name] += 1
        return names


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


def children_of(depths: Sequence[int]) -> list[list[int]]:
    """Return the children of each layer, from the depths of all in the order of the tree."""
    children: list[list[int]] = []
    way: list[int] = []
    for index, depth in enumerate(depths):
        children.append([])
        del way[depth:]
        if way:
            children[way[-1]].append(index)
        way.append(index)
    return children


def _find_roots(before: _LayerTree, after: _LayerTree) -> Pair:
    """Return the two models, or the model of one side and where the other side wraps it."""
    if before.layers[0]["type"] != after.layers[0]["type"]:
        inside = _find_wrapped(before, after)
        if inside is not None:
            return 0, inside
        inside = _find_wrapped(after, before)
        if inside is not None:
            return inside, 0
    return 0, 0


def _find_wrapped(model: _LayerTree, wrapper: _LayerTree) -> int | None:
    equal = [index for index, kind in enumerate(wrapper.kinds) if kind == model.kinds[0]]
    if equal:
        return equal[0]
    wanted = model.layers[0]["type"]
    same = [index for index, layer in enumerate(wrapper.layers) if layer["type"] == wanted]
    if len(same) == 1 and wanted not in _CONTAINERS:
        return same[0]
    return None


class _Siblings:
    """The children of two layers that are compared with each other."""

    def __init__(
        self, before: _LayerTree, after: _LayerTree, old: Sequence[int], new: Sequence[int]
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

    def _align(self, old: list[_Name], new: list[_Name]) -> list[tuple[_Name, _Name]]:
        """Return the best alignment of two sequences of names, which keeps their order."""
        pairs: list[tuple[_Name, _Name]] = []
        for end in (0, -1):
            while old and new and self._weight(old[end], new[end]) == _SAME:
                pairs.append((old.pop(end), new.pop(end)))
        if len(old) * len(new) <= _MAX_WEIGHED:
            pairs += self._weigh(old, new)

        # what changed its place
        done = {one for one, _ in pairs}
        free = set(new) - {other for _, other in pairs}
        return pairs + [(name, name) for name in old if name in free and name not in done]

    def _weigh(self, old: list[_Name], new: list[_Name]) -> list[tuple[_Name, _Name]]:
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

    def _weight(self, old: _Name, new: _Name) -> int:
        """Return how much speaks for a pair, or 0 if the two have nothing in common."""
        one, other = self._old[old], self._new[new]
        has_same_name = old == new
        if self._before.exact[one] == self._after.exact[other]:
            return _SAME if has_same_name else 7
        if self._before.kinds[one] == self._after.kinds[other]:
            return 6 if has_same_name else 5
        if self._before.layers[one]["type"] == self._after.layers[other]["type"]:
            return 4 if has_same_name else 1
        return 2 if has_same_name else 0
