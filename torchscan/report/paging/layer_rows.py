"""The layers of a page and the graphs inside them, equal ones folded: what is the same is there once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchscan.analyses.module_graph import GraphEdge, GraphNode, ModuleGraph, ModuleGraphs
from torchscan.analyses.module_graph.graph_builder import name_among, plain_end
from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.analyses.roofline import Roofline
from torchscan.escapes import printable
from torchscan.report.columns import field_text, sizes
from torchscan.report.graphs.words import shape_of
from torchscan.report.info import tree_order
from torchscan.report.info_data import InfoData
from torchscan.trace.trace import Trace

#: characters that a page shows of a name or a setting
_LONGEST = 300
#: of windows that do not repeat, starts that a page has for an axis
_PHASES = 64
#: inputs or outputs of a call, at least, of which names tell which is which
_MIN_NAMED = 2
#: shapes that a page has of one call's inputs or outputs
_MAX_SHAPES = 8
#: names of arguments that have only a position
_PLACES = ("args[",)
#: that add up
_FIGURES = ("params", "macs", "flops", "bytes", "time")
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
    ) -> None:
        """``settings`` are what modules say of themselves (``extra_repr``), by their paths."""
        self._fields = [] if fields is None else list(fields)
        self._trace = trace
        self._graphs = ModuleGraphs(trace, failed)
        self._layers = dict(zip(tree_order(trace), info["layers"], strict=True))
        self._settings = settings
        self._limits = {} if roofline is None else _limits(roofline)
        self._totals = self._summed_up()

    def rows(self) -> LayerRows:
        """From the model down, each row after the one that it is in."""
        root = self._trace.root
        found, node = (
            LayerRows(),
            GraphNode(kind="module", name=root.type_name, type_name=root.type_name, calls=(0,)),
        )
        waiting = [_PendingRow(node, [0], None, 0, {})]
        while waiting:
            each = waiting.pop()
            number, call = len(found.rows), self._trace.modules[each.node.calls[0]]
            each.box["row"] = number
            found.rows.append(
                {**self._row(each.node, each.places), "in": each.above, "depth": each.depth}
            )
            if call.children or call.ops or number == 0:
                found.rows[number]["level"] = len(found.levels)
                level, inside = self._level(each, number)
                found.levels.append(level)
                waiting += reversed(inside)
        return found

    def _summed_up(self) -> list[dict[str, Any]]:
        """Return the values of each call with everything inside it."""
        found = [self._own(call.index) for call in self._trace.modules]
        for call in reversed(self._trace.modules):  # children come after their parents
            if call.parent is not None:
                above = found[call.parent]
                for name in _FIGURES:
                    above[name] += found[call.index][name]
                for limiter, time in found[call.index]["limits"].items():
                    above["limits"][limiter] = above["limits"].get(limiter, 0.0) + time
        return found

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
        call = row.node.calls[0]
        graph = self._graphs.folded(self._graphs.in_call(call))
        boxes: list[dict[str, Any]] = []
        for at, node in enumerate(graph.nodes):
            name = truncate_text(node.name)
            boxes.append({"kind": node.kind, "name": name, "shape": shape_of(graph, at)})
        inside = [
            _PendingRow(node, self._places_of(node, call, row.places), number, row.depth + 1, box)
            for node, box in zip(graph.nodes, boxes, strict=True)
            if node.kind == "module"
        ]
        edges = [self._edge(graph, edge) for edge in graph.edges]
        return {"nodes": boxes, "edges": edges}, inside

    def _edge(self, graph: ModuleGraph, edge: GraphEdge) -> list[Any]:
        """Return an edge, its shapes and, where they say which tensor it is, its names."""
        names: dict[str, None] = {}
        for tensor in edge.tensors:
            if name := self._port(graph, edge, tensor):
                names[name] = None
        found = [edge.source, edge.target, _carried(graph, edge.tensors)]
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
        pairs = list(zip(labels, shapes, strict=True))[:_MAX_SHAPES]
        return [[truncate_text(label or str(at)), shape] for at, (label, shape) in enumerate(pairs)]

    def _places_of(self, node: GraphNode, call: int, places: Sequence[int]) -> list[int]:
        """Return the same children of all equal calls."""
        children = self._trace.modules[call].children
        positions = [children.index(each) for each in node.calls]
        return [
            self._trace.modules[place].children[position]
            for place in places
            for position in positions
        ]

    def _row(self, node: GraphNode, places: Sequence[int]) -> dict[str, Any]:
        run = node.calls
        layer, call = self._layers[run[-1]], self._trace.modules[run[0]]
        totals = [self._totals[place] for place in places]
        found: dict[str, Any] = {
            "name": truncate_text(node.name),
            "path": truncate_text(call.path),
            "key": key_of(call.path, call.call),
            "type": truncate_text(node.type_name),
            "repeats": len(run),
            "input": _shape(layer["input_shape"]),
            "output": _shape(layer["output_shape"]),
            "rf": "" if layer["rf"] is None else field_text(layer["rf"]),
            "rfSides": list(_sides_of(layer["rf"])),
            "complete": all(self._layers[place]["complete"] for place in places),
            **{name: sum(each[name] for each in totals) for name in _FIGURES if name != "time"},
        }
        if "time_estimate" in layer:
            found["time"] = rounded(math.fsum(each["time"] for each in totals))
            found["limiter"] = _most([each["limits"] for each in totals])
        if "peak_bytes" in layer:
            found["activations"] = sum(
                self._layers[place].get("activation_bytes") or 0 for place in places
            )
            found["peak"] = max(self._layers[place].get("peak_bytes") or 0 for place in places)
        if self._fields and (seen := seen_by(self._fields[run[-1]])) is not None:
            found["sees"] = seen
        calls = [self._trace.modules[place] for place in places]
        if len(calls) > 1:
            found["calls"] = [key_of(each.path, each.call) for each in calls]
        if any(each.call for each in calls):
            found["labels"] = [label_of(each.path, each.call) for each in calls]
        if takes := self._named_shapes(call.inputs, call.input_names):
            found["takes"] = takes
        if gives := self._named_shapes(call.outputs, call.output_names):
            found["gives"] = gives
        if node.failed:
            found["failed"] = True
        if settings := self._settings.get(call.path):
            found["settings"] = [
                [truncate_text(name), truncate_text(value)] for name, value in parsed(settings)
            ]
        return found


def _telling(name: str) -> str:
    """Return the name of an argument or result, or "" if it only says which place it has.

    Keys of a dict and fields of a dataclass are names, positions in a tuple are not.
    """
    label = plain_end(name)
    is_position = label.startswith("[") and label[1:-1].isdigit()
    if is_position or label.startswith(_PLACES):
        return ""
    return label


def key_of(path: str, call: int) -> str:
    """Return the key of a call, which the page's address contains: ``"relu@2"`` is the second."""
    return printable(path) + (f"@{call + 1}" if call else "")


def label_of(path: str, call: int) -> str:
    """Return the label of a call: ``"relu (2)"`` is the second."""
    return printable(path) + (f" ({call + 1})" if call else "")


def _limits(roofline: Roofline) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for each in roofline.operators:
        times = found.setdefault((each.layer, each.call), {})
        times[each.limiter] = times.get(each.limiter, 0.0) + each.time_estimate
    return found


def seen_by(layer: LayerField) -> dict[str, dict[str, Any]] | None:
    """Return the fields that units see of an image, by axis, or None if they cannot be drawn."""
    local = [axis for axis in layer.axes if axis.status == "local"]
    if len(local) != 2 or len({axis.input for axis in local}) > 1:
        return None
    if local[0].dim is None or local[1].dim is None or local[0].dim >= local[1].dim:
        return None  # flattened, or turned
    if any(axis.units is None or not 0 < len(axis.starts) <= _PHASES for axis in local):
        return None
    return {name: _axis(axis) for name, axis in zip("yx", local, strict=True)}


def _axis(axis: AxisField) -> dict[str, Any]:
    return {
        "units": axis.units,
        "length": axis.length,
        "starts": axis.starts,
        "rise": axis.rise,
        "sizes": axis.sizes,
        "inside": axis.inside,
    }


def _most(times: Sequence[Mapping[str, float]]) -> str:
    """The limit of most of the time."""
    found: dict[str, float] = {}
    for each in times:
        for limiter, time in each.items():
            found[limiter] = found.get(limiter, 0.0) + time
    return max(found, key=found.__getitem__, default="")


def _carried(graph: ModuleGraph, tensors: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(sizes(list(graph.specs[each].shape)) for each in tensors))


def _sides_of(field: Any) -> Iterator[float | str]:
    """Yield the sides of a receptive field, of all inputs: numbers, or "global"."""
    if isinstance(field, dict):
        field = list(field.values())
    if isinstance(field, list):
        for each in field:
            yield from _sides_of(each)
    elif field is not None:
        yield field


def _shape(shapes: Any) -> list[str]:
    if shapes is None:
        return []
    several = shapes if shapes and isinstance(shapes[0], list) else [shapes]
    return [sizes(each) for each in several[:_MAX_SHAPES]]


def parsed(settings: str) -> list[tuple[str, str]]:
    """Split ``"3, 64, kernel_size=(7, 7)"`` into settings by name. Unnamed ones come first."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(settings):
        depth = max(0, depth + (sign in "([{") - (sign in ")]}"))
        if sign == "," and depth == 0:
            parts.append(settings[start:at])
            start = at + 1
    parts.append(settings[start:])
    named = [part.strip().partition("=") for part in parts if part.strip()]
    plain = ", ".join(name for name, sign, _ in named if not sign)
    return [
        *([("", plain)] if plain else []),
        *((name, value) for name, sign, value in named if sign),
    ]


def truncate_text(text: str) -> str:
    """Shorten a text to the length that a page shows."""
    said = printable(text)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def rounded(value: float) -> float:
    """To as many digits as a picture shows."""
    return float(f"{value:.4g}")
