"""Lines of the layer table: layers with all that they call, and equal blocks in one line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from operator import itemgetter
from typing import NamedTuple

from torchscan.analyses.repeats import from_to, is_next
from torchscan.report.columns import full_name_of, name_of
from torchscan.report.info_data import SUMS, Layer

_sums_of = itemgetter(*SUMS)
#: values that equal layers have in common
_values_of = itemgetter("type", "is_shared", "complete", "input_shape", "output_shape", *SUMS)

#: what ``×`` in a name says
FOLDED = "× marks identical layers in one row; values are their sums."


class Line(NamedTuple):
    """A layer, or several equal ones that follow each other, with the sums of their values."""

    name: str
    full_name: str
    #: with shapes and receptive field of the last
    own: Layer
    #: with everything that is called; the same object as ``own`` if nothing is
    total: Layer
    repeats: int = 1


class Lines(NamedTuple):
    """The rows that a table shows."""

    lines: Sequence[Line]
    #: on rows of several layers, and on layers that were left out
    remarks: Sequence[str] = ()


def lines_of(layers: Sequence[Layer], *, fold_repeats: bool | None) -> Lines:
    """Return a line for each run of equal blocks, or for each layer.

    None: for each run if that takes no more than half as many lines.
    """
    tree = Tree(layers)
    if fold_repeats is None or fold_repeats:
        idle = _find_idle(layers)
        max_lines = len(layers) if fold_repeats else len(layers) // 2
        # Each type of layer needs a line.
        types = {layer["type"] for layer, is_idle in zip(layers, idle, strict=True) if not is_idle}
        folded = []
        if len(types) <= max_lines:
            folded = list(islice(tree.folded(idle), max_lines + 1))
        if 0 < len(folded) <= max_lines:
            shown = [tree.line(*each) for each in folded]
            return Lines(shown, _remarks(shown, compress(layers, idle)))
    lines = []
    for layer, total in zip(layers, tree.totals, strict=True):
        lines.append(Line(name_of(layer), full_name_of(layer), layer, total))
    return Lines(lines)


def _find_idle(layers: Sequence[Layer]) -> list[bool]:
    """Return whether each layer does nothing: an Identity, or Dropout in evaluation mode."""
    idle = []
    for layer in layers:
        is_inner_leaf = layer["depth"] > 0 and layer["is_leaf"]
        if not is_inner_leaf or not layer["complete"] or any(_sums_of(layer)):
            idle.append(False)
        else:
            idle.append(layer["input_shape"] == layer["output_shape"] is not None)
    return idle


def _remarks(lines: Iterable[Line], hidden: Iterable[Layer]) -> list[str]:
    remarks = []
    if any(line.repeats > 1 for line in lines):
        remarks.append(FOLDED)
    names = []
    for name, count in Counter([layer["type"] for layer in hidden]).items():
        names.append(f"{name} ×{count}" if count > 1 else name)
    if names:
        remarks.append(f"Hidden layers without operators: {', '.join(names)}.")
    return remarks


class Tree:
    """The tree of calls. Layers are numbered in the order of their calls."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._children: list[list[int]] = [[] for _ in layers]
        above_by_depth: list[int] = []
        for index, layer in enumerate(layers):
            del above_by_depth[layer["depth"] :]
            if above_by_depth:
                self._children[above_by_depth[-1]].append(index)
            above_by_depth.append(index)

        #: each layer with everything that it calls: itself if it calls nothing
        self.totals = list(layers)
        for index in reversed(range(len(layers))):  # children before their parents
            if self._children[index]:
                called = [self.totals[child] for child in reversed(self._children[index])]
                self.totals[index] = _add_layers([layers[index], *called])

    def line(self, places: Sequence[int], run: Sequence[int]) -> Line:
        """Return the line of equal layers, the last of which are a run in the last block."""
        first, last = self._layers[run[0]], self._layers[run[-1]]
        full_name = from_to(full_name_of(first), full_name_of(last))
        own = merge_layers([self._layers[place] for place in places])
        if len(run) > 1:
            own = {**own, "path": full_name}
        total = own
        if any(self._children[place] for place in places):
            total = merge_layers([self.totals[place] for place in places])
        return Line(
            name=from_to(name_of(first), name_of(last)),
            full_name=full_name,
            own=own,
            total=total,
            repeats=len(run),
        )

    def folded(self, hidden: Sequence[bool]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the arguments of :meth:`line` for each run of equal blocks.

        Each is followed by those that the run calls. Layers that are ``hidden`` are left out.
        """
        values = list(map(_values_of, self._layers))
        waiting: list[tuple[list[int], list[int]]] = [([0], [0])]
        while waiting:
            places, run = waiting.pop()
            yield places, run
            shown = []
            for place in places:
                children = self._children[place]
                shown.append([each for each in children if not hidden[each]])
            below = []
            start = 0
            for siblings in self._runs(shown[-1], values):
                # Equal blocks have equal children at equal positions.
                stop = start + len(siblings)
                equal = [each for children in shown for each in children[start:stop]]
                below.append((equal, siblings))
                start = stop
            waiting += reversed(below)

    def _runs(self, siblings: Iterable[int], values: Sequence[object]) -> Iterator[list[int]]:
        """Yield the runs of equal layers that follow each other."""
        run: list[int] = []
        for index in siblings:
            if run and self._is_equal(run[-1], index, values) and self._follows(run[-1], index):
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

    def _is_equal(self, index: int, other_index: int, values: Sequence[object]) -> bool:
        """Return whether two layers, and those that they call, show the same values."""
        pairs = [(index, other_index)]
        while pairs:
            one, other = pairs.pop()
            if values[one] != values[other]:
                return False
            children, other_children = self._children[one], self._children[other]
            if len(children) != len(other_children):
                return False
            for child, other_child in zip(children, other_children, strict=True):
                if self._layers[child]["name"] != self._layers[other_child]["name"]:
                    return False
                pairs.append((child, other_child))
        return True


def _add_layers(layers: Sequence[Layer]) -> Layer:
    """Return the first of several layers with the sums of all: the one that calls the others."""
    caller, *called = layers
    total: Layer = {**caller}
    total["is_shared"] = any(layer["is_shared"] for layer in layers)
    for key in SUMS:
        total[key] = sum([layer[key] for layer in layers])
    if "time_estimate" in caller:
        for layer in called:
            total["time_estimate"] += layer["time_estimate"]
    return total


def merge_layers(layers: Sequence[Layer]) -> Layer:
    """Return the last of equal layers with the sums of all, and with the largest peak."""
    if len(layers) == 1:
        return layers[0]
    merged: Layer = {**layers[-1]}
    for key, values in zip(SUMS, zip(*map(_sums_of, layers), strict=True), strict=True):
        merged[key] = sum(values)
    if "time_estimate" in merged:
        merged["time_estimate"] = math.fsum(layer["time_estimate"] for layer in layers)
    if "peak_bytes" in merged:
        merged["activation_bytes"] = sum(layer["activation_bytes"] or 0 for layer in layers)
        merged["peak_bytes"] = max(layer["peak_bytes"] or 0 for layer in layers)
    return merged
