"""The dataflow between modules of a trace, level by level."""

from torchscan.analyses.module_graph.flow import NodeKind
from torchscan.analyses.module_graph.graph_builder import ModuleGraphs, module_graph
from torchscan.analyses.module_graph.graph_result import GraphEdge, GraphNode, ModuleGraph

__all__ = ["GraphEdge", "GraphNode", "ModuleGraph", "ModuleGraphs", "NodeKind", "module_graph"]
