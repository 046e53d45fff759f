"""The lines of the layer table: each layer with all that it calls, equal blocks in one line, and without what does nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchscan.analyses.repeats import from_to, is_next
from torchscan.report.columns import full_name_of, name_of
from torchscan.report.info_data import SUMS, Layer

#: what ``×`` in a name says
FOLDED = "× marks identical layers in one row; values are their sums."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A layer, or several equal ones that follow each other: its figures are the sums of all of them."""

    name: str
    full_name: str
    #: with shapes and receptive field of the last
    own: Layer
    #: with everything that is called
    total: Layer
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows that a table shows."""

    lines: Sequence[Line]
    #: how many layers of which type were left out
    hidden: Counter[str]


def lines_of(layers: Sequence[Layer], *, fold_repeats: bool | None) -> Lines:
    """With equal blocks in one line, or each on its own; None: in one where that takes no more than half as many lines."""
    tree = Tree(layers)
    if fold_repeats is not False:
        folded = list(tree.folded())
        if fold_repeats or 2 * len(folded) <= len(layers):
            return Lines(folded, Counter(layer["type"] for layer in layers if tree.is_idle(layer)))
    return Lines([tree.line([at], [at]) for at in range(len(layers))], Counter())


class Tree:
    """The tree of calls. Layers are numbered in the order of their calls."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._children: list[list[int]] = [[] for _ in layers]
        self.totals = [layer.copy() for layer in layers]
        for at, parent in _parents(layers):
            self._children[parent].insert(0, at)
            self.totals[parent]["is_shared"] |= self.totals[at]["is_shared"]
            for key in SUMS:
                self.totals[parent][key] += self.totals[at][key]
            if "time_estimate" in layers[at]:
                self.totals[parent]["time_estimate"] += self.totals[at]["time_estimate"]

    def is_idle(self, layer: Layer) -> bool:
        """Return whether a layer does nothing: an Identity, or Dropout in evaluation mode."""
        is_same = layer["input_shape"] == layer["output_shape"] is not None
        return (
            is_same
            and layer["is_leaf"]
            and layer["depth"] > 0
            and layer["complete"]
            and not any(layer[key] for key in SUMS)
        )

    def line(self, places: Sequence[int], run: Sequence[int]) -> Line:
        """For equal layers at these places, the last of which are a run in the last block."""
        one, other = self._layers[run[0]], self._layers[run[-1]]
        full_name, own = (
            from_to(full_name_of(one), full_name_of(other)),
            _merge_layers([self._layers[at] for at in places]),
        )
        return Line(
            name=from_to(name_of(one), name_of(other)),
            full_name=full_name,
            own={**own, "path": full_name} if len(run) > 1 else own,
            total=_merge_layers([self.totals[at] for at in places]),
            repeats=len(run),
        )

    def folded(self) -> Iterator[Line]:
        """Equal blocks that follow each other in one line, and those that they call below it."""
        kinds = self._kinds()
        waiting: list[tuple[list[int], list[int]]] = [([0], [0])]
        while waiting:
            places, run = waiting.pop()
            yield self.line(places, run)
            shown = {
                at: [each for each in self._children[at] if not self.is_idle(self._layers[each])]
                for at in places
            }
            last = shown[places[-1]]
            runs = [[last.index(at) for at in each] for each in self._runs(last, kinds)]
            below = [
                (
                    [shown[at][number] for at in places for number in each],
                    [last[number] for number in each],
                )
                for each in runs
            ]
            waiting += reversed(below)

    def _runs(self, siblings: Iterable[int], kinds: Sequence[int]) -> Iterator[list[int]]:
        run: list[int] = []
        for at in siblings:
            if (
                run
                and kinds[run[-1]] == kinds[at]
                and _follows(self._layers[run[-1]], self._layers[at])
            ):
                run.append(at)
                continue
            if run:
                yield run
            run = [at]
        if run:
            yield run

    def _kinds(self) -> list[int]:
        """Number the kinds of layers.

        Layers of one kind, and their children, show the same values.
        """
        known: dict[tuple[Any, ...], int] = {}
        kinds = [0] * len(self._layers)
        for at in reversed(range(len(self._layers))):
            below = tuple(
                (self._layers[child]["name"], kinds[child]) for child in self._children[at]
            )
            kinds[at] = known.setdefault((*_visible_values(self._layers[at]), below), len(known))
        return kinds


def _visible_values(layer: Layer) -> tuple[Any, ...]:
    figures = (layer[key] for key in SUMS)
    return (
        layer["type"],
        str(layer["input_shape"]),
        str(layer["output_shape"]),
        layer["is_shared"],
        layer["complete"],
        *figures,
    )


def _follows(one: Layer, other: Layer) -> bool:
    """Return whether a layer is the next of a numbered list, or its module's next call."""
    if one["path"] == other["path"]:
        return other["call"] == one["call"] + 1
    return is_next(one["name"], other["name"])


def _merge_layers(layers: Sequence[Layer]) -> Layer:
    """The last of equal ones, with the sums of all; of what is alive at one time the most."""
    if len(layers) == 1:
        return layers[0]
    found = layers[-1].copy()
    for key in SUMS:
        found[key] = sum(layer[key] for layer in layers)
    if "time_estimate" in found:
        found["time_estimate"] = math.fsum(layer["time_estimate"] for layer in layers)
    if "peak_bytes" in found:
        found["activation_bytes"] = sum(layer["activation_bytes"] or 0 for layer in layers)
        found["peak_bytes"] = max(layer["peak_bytes"] or 0 for layer in layers)
    return found


def _parents(layers: Sequence[Layer]) -> Iterator[tuple[int, int]]:
    """Positions of each layer and its parent, last first, so that children are summed before their parents."""
    above: list[int] = []
    found = []
    for position, layer in enumerate(layers):
        del above[layer["depth"] :]
        if above:
            found.append((position, above[-1]))
        above.append(position)
    return reversed(found)
