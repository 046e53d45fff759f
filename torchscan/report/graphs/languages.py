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
    """Return the graph for Graphviz: ``dot -Tpdf``."""
    lines = [
        "digraph {",
        '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=10];',
        "  edge [arrowsize=0.6];",
    ]
    for index, node in enumerate(graph.nodes):
        texts = _texts(graph, index)
        label = "\\n".join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
        lines.append(f'  n{index} [label="{label}"{_DOT_SHAPES.get(node.kind, "")}];')
    lines += [f"  n{source} -> n{target};" for source, target, _ in graph.edges]
    return "\n".join([*lines, "}", ""])


@explain_wrong_types
def to_mermaid(graph: ModuleGraph) -> str:
    """Return the graph for Markdown, in a block called ``mermaid``."""
    lines = ["flowchart TD"]
    for index, node in enumerate(graph.nodes):
        begin, end = _MERMAID_SHAPES.get(node.kind, ("[", "]"))
        label = "<br>".join(map(_escape_mermaid, _texts(graph, index)))
        lines.append(f'  n{index}{begin}"{label}"{end}')
    lines += [f"  n{source} --> n{target}" for source, target, _ in graph.edges]
    return "\n".join([*lines, ""])


def _texts(graph: ModuleGraph, index: int) -> list[str]:
    """Return the lines of a box."""
    texts = (name_of(graph.nodes[index]), below_name(graph, index))
    return list(filter(None, texts))


def _escape_mermaid(text: str) -> str:
    """Return a text in which signs with a meaning are written by their number, after a hash."""
    signs = []
    for sign in text:
        is_plain = sign.isalnum() or sign in " ._-×…·,()"
        signs.append(sign if is_plain else f"#{ord(sign)};")
    return "".join(signs)


@explain_wrong_types
def graph_table(graph: ModuleGraph) -> Table:
    """Return a row for each node, with what it reads."""
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
