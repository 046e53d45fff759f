"""Which module hands its results to which: the dataflow of a record, level by level."""

from torchscan.analyses.module_graph.flow import NodeKind
from torchscan.analyses.module_graph.graph import ModuleGraphs, module_graph
from torchscan.analyses.module_graph.result import GraphEdge, GraphNode, ModuleGraph

__all__ = ["GraphEdge", "GraphNode", "ModuleGraph", "ModuleGraphs", "NodeKind", "module_graph"]
