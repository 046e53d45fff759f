"""Lines of the layer table: layers with all that they call, and equal blocks in one line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

from torchscan.analyses.repeats import from_to, is_next
from torchscan.report.columns import full_name_of, name_of
from torchscan.report.info_data import SUMS, Layer

_sums_of = itemgetter(*SUMS)
_flags_of = itemgetter("type", "is_shared", "complete")

#: what ``×`` in a name says
FOLDED = "× marks identical layers in one row; values are their sums."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A layer, or several equal ones that follow each other, with the sums of their values."""

    name: str
    full_name: str
    #: with shapes and receptive field of the last
    own: Layer
    #: with everything that is called; the same object as ``own`` if nothing is
    total: Layer
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows that a table shows."""

    lines: Sequence[Line]
    #: how many layers of which type were left out
    hidden: Counter[str] = field(default_factory=Counter)


def lines_of(layers: Sequence[Layer], *, fold_repeats: bool | None) -> Lines:
    """Return a line for each run of equal blocks, or for each layer.

    None: for each run if that takes no more than half as many lines.
    """
    tree = Tree(layers)
    if fold_repeats or (fold_repeats is None and _may_fold(layers)):
        most = len(layers) // 2
        folded = list(tree.folded() if fold_repeats else islice(tree.folded(), most + 1))
        if fold_repeats or len(folded) <= most:
            hidden = Counter(layer["type"] for layer in layers if _is_idle(layer))
            return Lines([tree.line(*each) for each in folded], hidden)
    lines = []
    for layer, total in zip(layers, tree.totals, strict=True):
        name, full_name = name_of(layer), full_name_of(layer)
        lines.append(Line(name=name, full_name=full_name, own=layer, total=total))
    return Lines(lines)


def _may_fold(layers: Sequence[Layer]) -> bool:
    """Return whether equal blocks may save half of the lines: each type of layer needs one."""
    types = {layer["type"] for layer in layers if not _is_idle(layer)}
    return 2 * len(types) <= len(layers)


def _is_idle(layer: Layer) -> bool:
    """Return whether a layer does nothing: an Identity, or Dropout in evaluation mode."""
    if layer["depth"] == 0 or not layer["is_leaf"] or not layer["complete"]:
        return False
    if any(_sums_of(layer)):
        return False
    return layer["input_shape"] == layer["output_shape"] is not None


class Tree:
    """The tree of calls. Layers are numbered in the order of their calls."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._children: list[list[int]] = [[] for _ in layers]
        #: each layer with everything that it calls: itself if it calls nothing
        self.totals = list(layers)
        above_by_depth: list[int] = []
        pairs = []
        for index, layer in enumerate(layers):
            del above_by_depth[layer["depth"] :]
            if above_by_depth:
                pairs.append((index, above_by_depth[-1]))
            above_by_depth.append(index)
        for index, parent in reversed(pairs):  # children before their parents
            if not self._children[parent]:
                self.totals[parent] = layers[parent].copy()
            self._children[parent].append(index)
            total, above = self.totals[index], self.totals[parent]
            above["is_shared"] |= total["is_shared"]
            for key in SUMS:
                above[key] += total[key]
            if "time_estimate" in layers[index]:
                above["time_estimate"] += total["time_estimate"]
        for children in self._children:
            children.reverse()  # the last one came first

    def line(self, places: Sequence[int], run: Sequence[int]) -> Line:
        """Return the line of equal layers, the last of which are a run in the last block."""
        first, last = self._layers[run[0]], self._layers[run[-1]]
        full_name = from_to(full_name_of(first), full_name_of(last))
        own = total = merge_layers([self._layers[place] for place in places])
        if any(self._children[place] for place in places):
            total = merge_layers([self.totals[place] for place in places])
        if len(run) > 1:
            own = {**own, "path": full_name}
        return Line(
            name=from_to(name_of(first), name_of(last)),
            full_name=full_name,
            own=own,
            total=total,
            repeats=len(run),
        )

    def folded(self, *, hides_idle: bool = True) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the arguments of :meth:`line` for each run of equal blocks.

        Each is followed by those that the run calls, without idle ones if it ``hides_idle``.
        """
        kinds = self._kinds()
        waiting: list[tuple[list[int], list[int]]] = [([0], [0])]
        while waiting:
            places, run = waiting.pop()
            yield places, run
            shown: list[list[int]] = []
            for place in places:
                children = self._children[place]
                if hides_idle:
                    children = [each for each in children if not _is_idle(self._layers[each])]
                shown.append(children)
            below = []
            start = 0
            for siblings in self._runs(shown[-1], kinds):
                # Equal blocks have equal children at equal positions.
                stop = start + len(siblings)
                equal = [each for children in shown for each in children[start:stop]]
                below.append((equal, siblings))
                start = stop
            waiting += reversed(below)

    def _runs(self, siblings: Iterable[int], kinds: Sequence[int]) -> Iterator[list[int]]:
        """Yield the runs of equal layers that follow each other."""
        run: list[int] = []
        for index in siblings:
            if run and kinds[run[-1]] == kinds[index] and self._follows(run[-1], index):
                run.append(index)
                continue
            if run:
                yield run
            run = [index]
        if run:
            yield run

    def _follows(self, index: int, other_index: int) -> bool:
        """Return whether another layer is next in a numbered list, or its module's next call."""
        one, other = self._layers[index], self._layers[other_index]
        if one["path"] == other["path"]:
            return other["call"] == one["call"] + 1
        return is_next(one["name"], other["name"])

    def _kinds(self) -> list[int]:
        """Number the kinds of layers.

        Layers of one kind, and their children, show the same values.
        """
        known: dict[tuple[Any, ...], int] = {}
        kinds = [0] * len(self._layers)
        for index in reversed(range(len(self._layers))):
            children = self._children[index]
            below = tuple([(self._layers[child]["name"], kinds[child]) for child in children])
            layer = self._layers[index]
            shapes = str(layer["input_shape"]), str(layer["output_shape"])
            key = (*_flags_of(layer), *_sums_of(layer), *shapes, below)
            kinds[index] = known.setdefault(key, len(known))
        return kinds


def merge_layers(layers: Sequence[Layer]) -> Layer:
    """Return the last of equal layers with the sums of all, and with the largest peak."""
    if len(layers) == 1:
        return layers[0]
    merged = layers[-1].copy()
    for key, values in zip(SUMS, zip(*map(_sums_of, layers), strict=True), strict=True):
        merged[key] = sum(values)
    if "time_estimate" in merged:
        merged["time_estimate"] = math.fsum(layer["time_estimate"] for layer in layers)
    if "peak_bytes" in merged:
        merged["activation_bytes"] = sum(layer["activation_bytes"] or 0 for layer in layers)
        merged["peak_bytes"] = max(layer["peak_bytes"] or 0 for layer in layers)
    return merged
