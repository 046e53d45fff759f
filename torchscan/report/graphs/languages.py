"""A graph in the languages of Graphviz and Mermaid, and as a table."""

from __future__ import annotations

from collections import defaultdict

from torchscan.analyses.module_graph import ModuleGraph
from torchscan.escapes import printable
from torchscan.report.graphs.words import below_name, name_of, shape_of
from torchscan.report.table import Column, Row, Table, in_words
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
    name = Column(key="name", heading="Node", is_number=False, min_width=16)
    kind = Column(key="kind", heading="Kind", is_number=False, priority=2)
    type_ = Column(key="type", heading="Type", is_number=False, min_width=8, dim=True, priority=1)
    reads = Column(key="reads", heading="Reads", is_number=False, min_width=16, truncate="tail")
    gives = Column(key="shape", heading="Gives", is_number=False, priority=3)
    numbers = range(len(graph.nodes))
    written = [
        in_words(name, [name_of(node) for node in graph.nodes]),
        in_words(kind, [node.kind for node in graph.nodes]),
        in_words(type_, [node.type_name or None for node in graph.nodes]),
        in_words(reads, [", ".join(read[at]) or None for at in numbers]),
        in_words(gives, [shape_of(graph, at) or None for at in numbers]),
    ]
    columns, cells = zip(*written, strict=True)
    return Table(
        title=printable(f"Inside {graph.path or graph.type_name}"),
        columns=columns,
        rows=[Row(cells=row) for row in zip(*cells, strict=True)],
        noun="nodes",
    )
