"""A graph of modules: results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from torchscan.analyses.module_graph.flow import NodeKind
from torchscan.escapes import printable
from torchscan.results import FilePath, Result, write_in
from torchscan.trace.events import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A box of the picture."""

    kind: NodeKind
    #: for example ``"conv1"``; of an input its argument, of an output its place in the result, of
    #: operators their names
    name: str
    #: class of the module
    type_name: str = ""
    #: path of the module or parameter
    path: str = ""
    #: calls of the module, or of equal modules in a row, as indices into ``trace.modules``
    calls: tuple[int, ...] = ()
    #: indices into ``trace.ops``
    operators: tuple[int, ...] = ()
    #: outputs of the node, as indices into ``trace.tensors``
    tensors: tuple[int, ...] = ()
    #: True if the pass failed in this node
    failed: bool = False


class GraphEdge(NamedTuple):
    """An edge from a node to another, by their positions."""

    source: int
    target: int
    #: indices into ``trace.tensors``
    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGraph(Result):
    """The dataflow graph of one module call. Nodes are in the order in which they ran."""

    path: str
    type_name: str
    #: 0 for the first call of this module, 1 for the second, …
    call: int
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    #: specs of the tensors on the edges, by their indices
    specs: Mapping[int, TensorSpec]
    #: batch size of inputs made from ``input_shape``, or None if complete arguments were given
    batch_size: int | None

    @overload
    def to_dot(self, path: None = None) -> str: ...
    @overload
    def to_dot(self, path: FilePath) -> None: ...
    def to_dot(self, path: FilePath | None = None) -> str | None:
        """Write the graph in the language of Graphviz."""
        return write_in(self, "dot", path)

    @overload
    def to_mermaid(self, path: None = None) -> str: ...
    @overload
    def to_mermaid(self, path: FilePath) -> None: ...
    def to_mermaid(self, path: FilePath | None = None) -> str | None:
        """Write the graph in Mermaid, which GitHub draws."""
        return write_in(self, "mermaid", path)

    @overload
    def to_svg(self, path: None = None) -> str: ...
    @overload
    def to_svg(self, path: FilePath) -> None: ...
    def to_svg(self, path: FilePath | None = None) -> str | None:
        """Write the graph as a picture."""
        return write_in(self, "svg", path)

    def __repr__(self) -> str:
        """Return a short text: there may be thousands of nodes."""
        name = printable(self.path or self.type_name)
        return f"<ModuleGraph of {name}: {len(self.nodes)} nodes, {len(self.edges)} edges>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        names = ("kind", "name", "type_name", "path", "failed")
        nodes = []
        for node in self.nodes:
            plain = {name: getattr(node, name) for name in names}
            nodes.append({**plain, "repeats": max(len(node.calls), 1)})
        edges = []
        for source, target, tensors in self.edges:
            shapes = [list(self.specs[tensor].shape) for tensor in tensors]
            edges.append({"source": source, "target": target, "shapes": shapes})
        return {
            "path": self.path,
            "type": self.type_name,
            "call": self.call,
            "nodes": nodes,
            "edges": edges,
        }
