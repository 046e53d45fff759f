"""Equal blocks of a comparison in one row, as in the table of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple, cast

from torchscan.analyses.repeats import from_to
from torchscan.report.columns import full_name_of, name_of
from torchscan.report.compared_trees import parents_of
from torchscan.report.comparison import LayerChange
from torchscan.report.info_data import Layer
from torchscan.report.lines import Tree, merge_layers


class FoldedChange(NamedTuple):
    """A changed layer, or several layers with the same change."""

    name: str
    change: LayerChange
    #: number of layers; values are their sums
    repeats: int = 1
    #: the name before, or None if it is the same
    old_name: str | None = None

    @classmethod
    def of(cls, change: LayerChange) -> FoldedChange:
        """Return a change of one layer."""
        name, old_name = full_name_of(change.layer), None
        if change.moved_from is not None and change.before is not None:
            old_name = full_name_of(change.before)
        return cls(name, change, old_name=old_name)

    @property
    def title(self) -> str:
        """The name, with the number of layers if there are several."""
        return f"{self.name} ×{self.repeats}" if self.repeats > 1 else self.name


def fold_changes(changes: Sequence[LayerChange]) -> Iterator[FoldedChange]:
    """Yield the changes; equal changes of consecutive equal blocks are merged into one.

    The merged changes of the layers inside follow their block.
    """
    for _, group in groupby(changes, key=attrgetter("kind")):
        yield from _fold_group(list(group))


def _fold_group(changes: Sequence[LayerChange]) -> Iterator[FoldedChange]:
    """Yield the folded changes of layers that were all added, removed or changed."""
    layers = _nest(changes)
    parents = parents_of([layer["depth"] for layer in layers])
    names = {0: ""}
    for places, run in islice(Tree(layers).folded([False] * len(layers)), 1, None):
        above = names[cast("int", parents[run[0]])]
        name = from_to(name_of(layers[run[0]]), name_of(layers[run[-1]]))
        if above:
            name = f"{above}.{name}"
        names |= dict.fromkeys(run, name)
        yield _fold(name, [changes[place - 1] for place in places])


def _fold(name: str, changes: Sequence[LayerChange]) -> FoldedChange:
    """Return a row of equal changes; their names differ from the old ones by the same prefix."""
    merged = _merge(changes)
    if len(changes) == 1:
        return FoldedChange.of(merged)._replace(name=name)
    old_name = None
    if merged.moved_from is not None:
        old, new, _ = _renaming(merged)
        old_name = f"{old}.{name.removeprefix(new).removeprefix('.')}".removeprefix(".")
    return FoldedChange(name, merged, len(changes), old_name)


def _renaming(change: LayerChange) -> tuple[str, str, bool]:
    """Return the old and new path without the names at their end that have not changed.

    They are equal for all layers of a list that was renamed. The last value is whether the number
    of the call has changed.
    """
    if change.moved_from is None:
        return "", "", False
    path, call = change.moved_from
    old, new = path.split("."), change.path.split(".")
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return ".".join(old), ".".join(new), call != change.call


def _merge(changes: Sequence[LayerChange]) -> LayerChange:
    """Return the last of equal changes, with the sums of all values on both sides."""
    sides: dict[str, Layer | None] = {"before": None, "after": None}
    for side in sides:
        layers = [getattr(each, side) for each in changes]
        if None not in layers:
            sides[side] = merge_layers(layers)
    return replace(changes[-1], before=sides["before"], after=sides["after"])


def _nest(changes: Sequence[LayerChange]) -> list[Layer]:
    """Return the layers as a tree below an added root, which comes first.

    A layer outside of the others keeps its full name, so that only layers of the same list are
    consecutive. Its type includes its old values and place, so that only equal changes compare
    equal.
    """
    root = cast("Layer", {**changes[0].layer, "depth": 0})
    nested = [root]
    around: list[Layer] = []
    for change in changes:
        layer = change.layer
        name = layer["path"] or layer["name"]
        while around:
            prefix = f"{around[-1]['path']}."
            if layer["depth"] > around[-1]["depth"] and layer["path"].startswith(prefix):
                name = layer["path"].removeprefix(prefix)
                break
            around.pop()
        around.append(layer)
        was = change.to_dict()["before"], _renaming(change)
        own = {"depth": len(around), "name": name, "type": f"{layer['type']} {was}"}
        nested.append(cast("Layer", {**layer, **own}))
    return nested
