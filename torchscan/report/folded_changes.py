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

    @classmethod
    def of(cls, change: LayerChange) -> FoldedChange:
        """Return a change of one layer."""
        return cls(full_name_of(change.layer), change)

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
        yield FoldedChange(name, _merge([changes[place - 1] for place in places]), len(places))


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
        was = change.to_dict()["before"], change.moved_from
        own = {"depth": len(around), "name": name, "type": f"{layer['type']} {was}"}
        nested.append(cast("Layer", {**layer, **own}))
    return nested
