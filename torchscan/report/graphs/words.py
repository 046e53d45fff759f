"""Labels in the boxes of a graph, for pictures, tables and other tools' languages."""

from __future__ import annotations

from torchscan.analyses.module_graph import GraphNode, ModuleGraph
from torchscan.escapes import printable
from torchscan.report.columns import sizes

#: characters of a name
_MAX_LENGTH = 36


def name_of(node: GraphNode) -> str:
    """Return the name, with the number of calls and whether the pass failed in the node."""
    times = f" ×{len(node.calls)}" if len(node.calls) > 1 else ""
    failed = " (failed)" if node.failed else ""
    return f"{_shorten(node.name)}{times}{failed}"


def below_name(graph: ModuleGraph, at: int) -> str:
    """Return the type of a module, and the shape of its output."""
    texts = (_shorten(graph.nodes[at].type_name), shape_of(graph, at))
    return " · ".join(filter(None, texts))


def shape_of(graph: ModuleGraph, at: int) -> str:
    """Return the shape of a node's output, or of its input if it has no output.

    Of several it is the first one, with the number of others.
    """
    leaving = [tensor for edge in graph.edges if edge.source == at for tensor in edge.tensors]
    entering = [tensor for edge in graph.edges if edge.target == at for tensor in edge.tensors]
    tensors = leaving
    if not leaving and not graph.nodes[at].failed:
        tensors = entering
    shapes = list(dict.fromkeys(_sizes(graph, tensor) for tensor in tensors))
    if not shapes:
        return ""
    first, *others = shapes
    return f"{first} +{len(others)}" if others else first


def _sizes(graph: ModuleGraph, tensor: int) -> str:
    """Return a shape, without the batch dimension if torchscan made the batch."""
    shape = list(graph.specs[tensor].shape)
    if shape and shape[0] == graph.batch_size:
        shape[0] = -1
    return sizes(shape)


def _shorten(text: str) -> str:
    shown = printable(text)
    if len(shown) <= _MAX_LENGTH:
        return shown
    half = _MAX_LENGTH // 2
    return f"{shown[:half]}…{shown[-half:]}"
