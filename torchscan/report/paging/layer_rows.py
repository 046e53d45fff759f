"""Layers of a page and the graphs inside them, in which equal layers are one row."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from torchscan.analyses.module_graph import GraphEdge, GraphNode, ModuleGraph, ModuleGraphs
from torchscan.analyses.module_graph.graph_builder import name_among, plain_end
from torchscan.analyses.receptive_field import ReceptiveField
from torchscan.analyses.roofline import Roofline
from torchscan.report.columns import field_text, sizes
from torchscan.report.graphs.words import shape_of
from torchscan.report.info_content import tree_order
from torchscan.report.info_data import InfoData, Layer
from torchscan.report.paging.row_values import (
    MAX_SHAPES,
    key_of,
    label_of,
    parse_settings,
    rounded,
    seen_by,
    shapes_of,
    sides_of,
    truncate_text,
)
from torchscan.trace.events import ModuleCall
from torchscan.trace.trace import Trace

#: inputs or outputs of a call, at least, of which names tell which is which
_MIN_NAMED = 2
#: names of arguments that have only a position
_PLACES = ("args[",)
_COUNTS = ("params", "macs", "flops", "bytes")
#: values with sums
_SUMMABLE = (*_COUNTS, "time")
Settings = Mapping[str, str]


@dataclass(slots=True)
class LayerRows:
    """All rows, each after the one that it is in, and the levels that they open."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    levels: list[dict[str, Any]] = field(default_factory=list)


class _PendingRow(NamedTuple):
    """A row to be made, for equal calls at these places, in the row above."""

    node: GraphNode
    places: Sequence[int]
    above: int | None
    depth: int
    #: in the graph, which is told the number of the row
    box: dict[str, Any]


class Paging:
    """Makes the rows of a record."""

    def __init__(
        self,
        trace: Trace,
        info: InfoData,
        *,
        roofline: Roofline | None,
        settings: Settings,
        failed: int | None,
        fields: ReceptiveField | None,
        starts: Collection[int] = (),
    ) -> None:
        """``settings`` are texts by path; each of the calls ``starts`` begins a row."""
        self._starts = starts
        self._fields = [] if fields is None else list(fields)
        self._trace = trace
        self._graphs = ModuleGraphs(trace, failed)
        self._layers = dict(zip(tree_order(trace), info["layers"], strict=True))
        self._settings = settings
        self._limits = {} if roofline is None else _limits(roofline)
        self._totals = self._summed_up()

    def rows(self) -> LayerRows:
        """From the model down, each row after the one that it is in."""
        name = self._trace.root.type_name
        root = GraphNode(kind="module", name=name, type_name=name, calls=(0,))
        found = LayerRows()
        waiting = [_PendingRow(root, [0], None, 0, {})]
        while waiting:
            pending = waiting.pop()
            number = len(found.rows)
            pending.box["row"] = number
            row = self._row(pending.node, pending.places)
            row |= {"in": pending.above, "depth": pending.depth}
            found.rows.append(row)
            call = self._trace.modules[pending.node.calls[0]]
            if call.children or call.ops or number == 0:
                row["level"] = len(found.levels)
                level, inside = self._level(pending, number)
                found.levels.append(level)
                waiting += reversed(inside)
        return found

    def _summed_up(self) -> list[dict[str, Any]]:
        """Return the values of each call with everything inside it."""
        totals = [self._own(call.index) for call in self._trace.modules]
        for call in reversed(self._trace.modules):  # children come after their parents
            if call.parent is None:
                continue
            total, above = totals[call.index], totals[call.parent]
            for name in _SUMMABLE:
                above[name] += total[name]
            for limiter, time in total["limits"].items():
                above["limits"][limiter] = above["limits"].get(limiter, 0.0) + time
        return totals

    def _own(self, call: int) -> dict[str, Any]:
        layer = self._layers[call]
        return {
            "params": layer["grad_params"] + layer["nograd_params"],
            "macs": layer["macs"],
            "flops": layer["flops"],
            "bytes": layer["bytes_read"] + layer["bytes_written"],
            "time": layer.get("time_estimate", 0.0),
            "limits": dict(self._limits.get((layer["path"], layer["call"]), {})),
        }

    def _level(self, row: _PendingRow, number: int) -> tuple[dict[str, Any], list[_PendingRow]]:
        """Return the graph inside a row, and the rows in it.

        Of equal blocks it is the first one's.
        """
        modules = self._trace.modules
        call = row.node.calls[0]
        graph = self._graphs.folded(self._graphs.in_call(call), self._starts)
        boxes, inside = [], []
        for index, node in enumerate(graph.nodes):
            name = truncate_text(node.name)
            box = {"kind": node.kind, "name": name, "shape": shape_of(graph, index)}
            boxes.append(box)
            if node.kind == "module":
                # the same children of all equal calls
                positions = [modules[call].children.index(each) for each in node.calls]
                places = [modules[place].children[at] for place in row.places for at in positions]
                inside.append(_PendingRow(node, places, number, row.depth + 1, box))
        edges = [self._edge(graph, edge) for edge in graph.edges]
        return {"nodes": boxes, "edges": edges}, inside

    def _edge(self, graph: ModuleGraph, edge: GraphEdge) -> list[Any]:
        """Return an edge, its shapes and, where they say which tensor it is, its names."""
        names: dict[str, None] = {}
        for tensor in edge.tensors:
            name = self._port(graph, edge, tensor)
            if name:
                names[name] = None
        shapes = dict.fromkeys(sizes(list(graph.specs[each].shape)) for each in edge.tensors)
        found = [edge.source, edge.target, ", ".join(shapes)]
        if names:
            found.append(truncate_text(", ".join(names)))
        return found

    def _port(self, graph: ModuleGraph, edge: GraphEdge, tensor: int) -> str:
        """Return the name of the argument that reads a tensor, or of the result that it is.

        A module with one input or one output has no need of it.
        """
        reader, writer = graph.nodes[edge.target], graph.nodes[edge.source]
        if reader.kind == "module":
            call = self._trace.modules[reader.calls[0]]
            return self._name_at(tensor, call.inputs, call.input_names)
        if writer.kind == "module":
            call = self._trace.modules[writer.calls[-1]]
            return self._name_at(tensor, call.outputs, call.output_names)
        return ""

    def _name_at(self, tensor: int, tensors: Sequence[int], names: Sequence[str]) -> str:
        if len(tensors) < _MIN_NAMED:
            return ""
        name = name_among(self._trace, tensor, tensors, names)
        return "" if name is None else _telling(name)

    def _named_shapes(self, tensors: Sequence[int], names: Sequence[str]) -> list[list[str]]:
        """Return a call's tensors by name, with their shapes, if names say more than places."""
        labels = [_telling(name) for name in names]
        if len(labels) < _MIN_NAMED or not any(labels):
            return []
        shapes = [sizes(list(self._trace.tensors[each].spec.shape)) for each in tensors]
        pairs = list(zip(labels, shapes, strict=True))[:MAX_SHAPES]
        named = [(label or str(index), shape) for index, (label, shape) in enumerate(pairs)]
        return [[truncate_text(name), shape] for name, shape in named]

    def _row(self, node: GraphNode, places: Sequence[int]) -> dict[str, Any]:
        last = node.calls[-1]
        layer, call = self._layers[last], self._trace.modules[node.calls[0]]
        field = "" if layer["rf"] is None else field_text(layer["rf"])
        row: dict[str, Any] = {
            "name": truncate_text(node.name),
            "path": truncate_text(call.path),
            "key": key_of(call.path, call.call),
            "type": truncate_text(node.type_name),
            "repeats": len(node.calls),
            "input": shapes_of(layer["input_shape"]),
            "output": shapes_of(layer["output_shape"]),
            "rf": field,
            "rfSides": list(sides_of(layer["rf"])),
            "complete": all(self._layers[place]["complete"] for place in places),
            **self._values(layer, places),
        }
        if self._fields:
            seen = seen_by(self._fields[last])
            if seen is not None:
                row["sees"] = seen
        calls = [self._trace.modules[place] for place in places]
        if len(calls) > 1:
            row["calls"] = [key_of(each.path, each.call) for each in calls]
        if any(each.call for each in calls):
            row["labels"] = [label_of(each.path, each.call) for each in calls]
        return {**row, **self._details(node, call)}

    def _values(self, layer: Layer, places: Sequence[int]) -> dict[str, Any]:
        """Return the sums over equal calls, and those estimates that the layers have."""
        totals = [self._totals[place] for place in places]
        values: dict[str, Any] = {name: sum(map(itemgetter(name), totals)) for name in _COUNTS}
        if "time_estimate" in layer:
            values["time"] = rounded(math.fsum(total["time"] for total in totals))
            values["limiter"] = _main_limiter(total["limits"] for total in totals)
        if "peak_bytes" in layer:
            layers = [self._layers[place] for place in places]
            values["activations"] = sum(each.get("activation_bytes") or 0 for each in layers)
            values["peak"] = max(each.get("peak_bytes") or 0 for each in layers)
        return values

    def _details(self, node: GraphNode, call: ModuleCall) -> dict[str, Any]:
        """Return what a row has only in some cases: named tensors, a failure, settings."""
        details: dict[str, Any] = {}
        takes = self._named_shapes(call.inputs, call.input_names)
        if takes:
            details["takes"] = takes
        gives = self._named_shapes(call.outputs, call.output_names)
        if gives:
            details["gives"] = gives
        if node.failed:
            details["failed"] = True
        settings = self._settings.get(call.path)
        if settings:
            parsed = parse_settings(settings)
            details["settings"] = [list(map(truncate_text, setting)) for setting in parsed]
        return details


def _telling(name: str) -> str:
    """Return the name of an argument or result, or "" if it only says which place it has.

    Keys of a dict and fields of a dataclass are names, positions in a tuple are not.
    """
    label = plain_end(name)
    is_position = label.startswith("[") and label[1:-1].isdigit()
    if is_position or label.startswith(_PLACES):
        return ""
    return label


def _main_limiter(times: Iterable[Mapping[str, float]]) -> str:
    """Return what limits most of the time."""
    total_times: dict[str, float] = {}
    for time_by_limiter in times:
        for limiter, time in time_by_limiter.items():
            total_times[limiter] = total_times.get(limiter, 0.0) + time
    return max(total_times, key=total_times.__getitem__, default="")


def _limits(roofline: Roofline) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for each in roofline.operators:
        times = found.setdefault((each.layer, each.call), {})
        times[each.limiter] = times.get(each.limiter, 0.0) + each.time_estimate
    return found
