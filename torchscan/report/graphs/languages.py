"""A graph in the languages of Graphviz and Mermaid, and as a table."""

from __future__ import annotations

from collections import defaultdict

from torchscan.analyses.module_graph import ModuleGraph
from torchscan.escapes import printable
from torchscan.report.graphs.words import below_name, name_of, shape_of
from torchscan.report.make_table import make_table, words
from torchscan.report.table import Table
from torchscan.wrong_arguments import explain_wrong_types

_DOT_SHAPES = {"input": ", shape=ellipse", "output": ", shape=ellipse", "operator": ', style=""'}
_MERMAID_SHAPES = {"input": ("([", "])"), "output": ("([", "])"), "operator": ("[/", "/]")}


@explain_wrong_types
def to_dot(graph: ModuleGraph) -> str:
    """The graph for Graphviz: ``dot -Tpdf``."""
    nodes = [
        f'  n{at} [label="{_in_dot(graph, at)}"{_DOT_SHAPES.get(node.kind, "")}];'
        for at, node in enumerate(graph.nodes)
    ]
    edges = [f"  n{source} -> n{target};" for source, target, _ in graph.edges]
    style = [
        '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=10];',
        "  edge [arrowsize=0.6];",
    ]
    return "\n".join(["digraph {", *style, *nodes, *edges, "}", ""])


@explain_wrong_types
def to_mermaid(graph: ModuleGraph) -> str:
    """The graph for Markdown, in a block called ``mermaid``."""
    lines = ["flowchart TD"]
    for at, node in enumerate(graph.nodes):
        begin, end = _MERMAID_SHAPES.get(node.kind, ("[", "]"))
        lines.append(f'  n{at}{begin}"{_in_mermaid(graph, at)}"{end}')
    return "\n".join(
        [*lines, *(f"  n{source} --> n{target}" for source, target, _ in graph.edges), ""]
    )


def _in_dot(graph: ModuleGraph, at: int) -> str:
    texts = filter(None, (name_of(graph.nodes[at]), below_name(graph, at)))
    return "\\n".join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)


def _in_mermaid(graph: ModuleGraph, at: int) -> str:
    """Signs that mean something there are written by their number, after a hash."""
    texts = filter(None, (name_of(graph.nodes[at]), below_name(graph, at)))
    signs = [
        "".join(
            sign if sign.isalnum() or sign in " ._-×…·,()" else f"#{ord(sign)};" for sign in text
        )
        for text in texts
    ]
    return "<br>".join(signs)


@explain_wrong_types
def graph_table(graph: ModuleGraph) -> Table:
    """Each node, with what it reads."""
    read = defaultdict(list)
    for source, target, _ in graph.edges:
        read[target].append(name_of(graph.nodes[source]))
    nodes = graph.nodes
    types = [node.type_name or None for node in nodes]
    reads = [", ".join(read[index]) or None for index in range(len(nodes))]
    columns = (
        words("name", "Node", lambda index: name_of(nodes[index]), min_width=16),
        words("kind", "Kind", lambda index: nodes[index].kind, priority=2),
        words("type", "Type", types.__getitem__, min_width=8, dim=True, priority=1),
        words("reads", "Reads", reads.__getitem__, min_width=16, truncate="tail"),
        words("shape", "Output", lambda index: shape_of(graph, index) or None, priority=3),
    )
    title = printable(f"Inside {graph.path or graph.type_name}")
    return make_table(title, columns, range(len(nodes)), noun="nodes")
