"""Labels in the boxes of a graph, for pictures, tables and other tools' languages."""

from __future__ import annotations

from torchscan.analyses.module_graph import GraphNode, ModuleGraph
from torchscan.escapes import printable
from torchscan.report.columns import sizes

#: characters
_LONGEST = 36


def name_of(node: GraphNode) -> str:
    """With how many it stands for, and whether the pass failed in it."""
    times = f" ×{len(node.calls)}" if len(node.calls) > 1 else ""
    return f"{_short(node.name)}{times}{' (failed)' if node.failed else ''}"


def below_name(graph: ModuleGraph, at: int) -> str:
    """The type of a module, and the shape of what leaves it."""
    return " · ".join(filter(None, (_short(graph.nodes[at].type_name), shape_of(graph, at))))


def shape_of(graph: ModuleGraph, at: int) -> str:
    """Return the shape of a node's output, or of its input if it has no output.

    Of several it is the first one, with the number of others.
    """
    leaving = [tensor for edge in graph.edges if edge.source == at for tensor in edge.tensors]
    entering = [tensor for edge in graph.edges if edge.target == at for tensor in edge.tensors]
    known = list(
        dict.fromkeys(
            _sizes(graph, tensor)
            for tensor in leaving or ([] if graph.nodes[at].failed else entering)
        )
    )
    return "" if not known else known[0] if len(known) == 1 else f"{known[0]} +{len(known) - 1}"


def _sizes(graph: ModuleGraph, tensor: int) -> str:
    """Return a shape, without the batch dimension if torchscan made the batch."""
    shape = list(graph.specs[tensor].shape)
    return sizes([-1, *shape[1:]] if shape and shape[0] == graph.batch_size else shape)


def _short(text: str) -> str:
    said = printable(text)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]}…{said[-_LONGEST // 2 :]}"
