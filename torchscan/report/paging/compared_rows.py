"""Rows of two aligned sides: the same layer of both in one row, in the order of the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from torchscan.analyses.module_graph import ModuleGraphs
from torchscan.report.alignment import Pair, merge_orders
from torchscan.report.compared_trees import parents_of
from torchscan.report.info_content import tree_order
from torchscan.report.info_data import Layer, summed
from torchscan.report.paging.row_values import key_of, rounded, shapes_of, truncate_text
from torchscan.trace.trace import Trace

#: values of a layer that a page adds up over the layers inside
_SUMS = {
    "params": ("grad_params", "nograd_params"),
    "macs": ("macs",),
    "flops": ("flops",),
    "bytes": ("bytes_read", "bytes_written"),
    "time": ("time_estimate",),
}


@dataclass(slots=True, kw_only=True)
class PageSide:
    """The rows of one side, and the graphs inside them, if there are any."""

    rows: Sequence[dict[str, Any]]
    levels: Sequence[dict[str, Any]] = ()
    #: by row the number of what it is aligned by: its first layer
    layers: Sequence[int]
    children: Mapping[int | None, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        children: dict[int | None, list[int]] = {}
        for index, row in enumerate(self.rows):
            children.setdefault(row["in"], []).append(index)
        self.children = children

    @property
    def content(self) -> dict[str, Any]:
        """Data of this side for the page."""
        return {"rows": self.rows, "levels": self.levels}


#: a row of each side, or None
_Rows = tuple[int | None, int | None]


class PairedRows:
    """Makes the rows that show both sides."""

    def __init__(
        self,
        before: PageSide,
        after: PageSide,
        aligned: Mapping[int, int],
        describe: Callable[[int, int], list[str]],
    ) -> None:
        """``describe`` returns what changed between a row before and the row after."""
        self._before, self._after = before, after
        self._describe = describe
        row_after = {layer: index for index, layer in enumerate(after.layers)}
        self._other: dict[int, int] = {}
        for index, layer in enumerate(before.layers):
            other = row_after.get(aligned.get(layer, -1))
            if other is not None:
                self._other[index] = other
        self._first = {other: index for index, other in self._other.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows from the model down, each after the one that it is in."""
        rows: list[dict[str, Any]] = []
        waiting: list[tuple[_Rows, int | None]] = []
        roots = self._merge(self._before.children.get(None, []), self._after.children.get(None, []))
        waiting += [(pair, None) for pair in reversed(roots)]
        while waiting:
            pair, above = waiting.pop()
            number = len(rows)
            depth = 0 if above is None else rows[above]["depth"] + 1
            rows.append({**self._row(pair), "in": above, "depth": depth})
            waiting += [(inner, number) for inner in reversed(self._inside(pair))]
        for row in reversed(rows):
            if row["in"] is not None and row["kind"] != "same":
                above_row = rows[row["in"]]
                if above_row["kind"] == "same":
                    above_row["kind"] = "inside"
        return rows

    def _inside(self, pair: _Rows) -> list[_Rows]:
        """Return the rows in a row, in the order of the calls now."""
        one, other = pair
        old: list[int] = []
        new: list[int] = []
        if one is not None:
            old = self._before.children.get(one, [])
        if other is not None:
            new = self._after.children.get(other, [])
        return self._merge(old, new)

    def _merge(self, old: Sequence[int], new: Sequence[int]) -> list[_Rows]:
        before: list[_Rows] = [(index, self._other.get(index)) for index in old]
        after: list[_Rows] = [(self._first.get(index), index) for index in new]
        siblings = (set(old), set(new))
        return [pair for pair in merge_orders(before, after) if self._is_here(pair, *siblings)]

    def _is_here(self, pair: _Rows, old: Collection[int], new: Collection[int]) -> bool:
        """Return whether a pair has its row among these siblings.

        If the two are in different rows, it is the one after. If a wrapper is gone, it stays in
        its wrapper.
        """
        one, other = pair
        if one is None or other is None:
            return True
        was_in, is_in = self._before.rows[one]["in"], self._after.rows[other]["in"]
        is_unwrapped = was_in is not None and is_in is None
        return one in old if is_unwrapped else other in new

    def _row(self, pair: _Rows) -> dict[str, Any]:
        one, other = pair
        if other is None:
            row = self._before.rows[cast("int", one)]
            key = f"before:{row['key']}"
        else:
            row = self._after.rows[other]
            key = row["key"]
        found = {name: row[name] for name in ("name", "path", "type", "repeats")}
        found |= {"key": key, "sides": [one, other], "kind": "same", "what": []}
        if "calls" in row:
            found["calls"] = [key, *row["calls"]]
        if other is None:
            return {**found, "kind": "removed"}
        if one is None:
            return {**found, "kind": "added"}

        old = self._before.rows[one]
        found["what"] = list(map(truncate_text, self._describe(one, other)))
        # A model is named by its class, which may have been described.
        if old["name"] != row["name"] and f"{old['name']} → {row['name']}" not in found["what"]:
            found["was"] = old["name"]
        if found["what"]:
            found["kind"] = "changed"
        return found


def starts_of(
    before: Trace | None, after: Trace | None, aligned: Mapping[int, int]
) -> tuple[Collection[int], Collection[int]]:
    """Return the calls of each trace that begin a row, so that rows of both show the same layers.

    Equal calls that follow each other share a row only if they do so on the other side too, or if
    both are missing there. ``aligned`` are layers in the order of the tree. If a side has no trace,
    all calls of the other one begin a row.
    """
    if before is None or after is None:
        return _all_calls(before), _all_calls(after)

    old_order, new_order = tree_order(before), tree_order(after)
    calls = {old_order[one]: new_order[other] for one, other in aligned.items()}
    back = {other: one for one, other in calls.items()}
    old_links, new_links = set(_find_links(before)), set(_find_links(after))
    starts = _find_starts(old_links, new_links, calls)
    return set(starts), set(_find_starts(new_links, old_links, back))


def _all_calls(trace: Trace | None) -> Collection[int]:
    return () if trace is None else range(len(trace.modules))


def _find_links(trace: Trace) -> Iterator[Pair]:
    """Yield each call and the next one that shares its row."""
    graphs = ModuleGraphs(trace)
    for call in trace.modules:
        if len(call.children) > 1:
            for node in graphs.folded(graphs.in_call(call.index)).nodes:
                yield from pairwise(node.calls)


def _find_starts(
    links: Iterable[Pair], other_links: Collection[Pair], other: Mapping[int, int]
) -> Iterator[int]:
    for first, second in links:
        ends = other.get(first), other.get(second)
        if ends != (None, None) and ends not in other_links:
            yield second


def row_of_call(path: str, call: int, type_name: str, above: int | None) -> dict[str, Any]:
    """Return a row without values for one call of a module, in the row ``above``."""
    return {
        "path": truncate_text(path),
        "key": key_of(path, call),
        "type": truncate_text(type_name),
        "repeats": 1,
        "input": [],
        "output": [],
        "rf": "",
        "complete": True,
        "in": above,
    }


def rows_of_layers(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return a row for each layer of an info, with the sums over what is inside."""
    parents = parents_of([layer["depth"] for layer in layers])
    rows: list[dict[str, Any]] = []
    for layer, parent in zip(layers, parents, strict=True):
        row = row_of_call(layer["path"], layer["call"], layer["type"], parent)
        row["name"] = truncate_text(layer["name"])
        row["input"] = shapes_of(layer["input_shape"])
        row["output"] = shapes_of(layer["output_shape"])
        row["complete"] = layer["complete"]
        values = cast("Mapping[str, Any]", layer)
        known = [name for name, keys in _SUMS.items() if keys[0] in values]
        row |= {name: summed(layer, _SUMS[name]) for name in known}
        if layer.get("peak_bytes") is not None:
            row |= {"peak": layer["peak_bytes"], "activations": layer["activation_bytes"]}
        rows.append(row)
    _add_up(rows)
    return rows


def _add_up(rows: Sequence[dict[str, Any]]) -> None:
    """Add the values of each row to those of the row that it is in."""
    for row in reversed(rows):  # what is inside comes after it
        if row["in"] is not None:
            for name in _SUMS.keys() & row.keys():
                rows[row["in"]][name] += row[name]
    for row in rows:
        if "time" in row:
            row["time"] = rounded(row["time"])
