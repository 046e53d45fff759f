"""The dataflow inside each module call as a graph: inputs, calls, operators and outputs.

An edge is a tensor that one node produced or got, and another one reads. The producer follows from
the trace alone, so it makes no difference whether gradients are computed, how tensors are passed,
or whether they are written to in place:

    producer(tensor, reader) = the last operator before the reader that produced this version of
                               it, or wrote to its memory.

The edge belongs to the innermost call that contains both. The tensor is an input of the calls
around the reader that do not contain the producer, and an output of those around the producer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from functools import cached_property

from torchscan.analyses.module_graph.flow import Flow, Place
from torchscan.analyses.module_graph.fold import with_operators_folded, with_repeats_folded
from torchscan.analyses.module_graph.graph_result import GraphEdge, GraphNode, ModuleGraph
from torchscan.analyses.repeats import kinds_of
from torchscan.errors import Argument, InputError, RecordError
from torchscan.trace.events import ModuleCall, TensorSpec
from torchscan.trace.trace import Trace

_KEY = re.compile(r"""\[(['"])(.*?)\1\]""")


def module_graph(
    trace: Trace | RecordError, path: str = "", call: int = 0, *, fold: bool = False
) -> ModuleGraph:
    """Return the dataflow graph of a module call.

    An edge is a tensor. It makes no difference how it is passed, whether gradients are computed, or
    whether it is written to in place.

    Args:
        trace: the trace that :func:`torchscan.record` returned, or the error of a pass that failed:
            then the graph ends there.
        path: path of the module; "" is the model.
        call: 0 for the first call of this module, 1 for the second, …
        fold: merge chains of operators, and equal modules of a list, into one node each.
    """
    recorded = trace.so_far if isinstance(trace, RecordError) else trace
    if not isinstance(recorded, Trace) or not recorded.modules:
        raise InputError("there is no graph: no module was recorded")
    graphs = ModuleGraphs(recorded, trace.failed if isinstance(trace, RecordError) else None)
    return graphs.of(path, call, fold=fold)


class ModuleGraphs:
    """The graphs of all calls of a trace."""

    def __init__(self, trace: Trace, failed: int | None = None) -> None:
        """Follow the pass; ``failed`` is the call of a module that it failed in."""
        self._trace = trace
        self._flow = Flow(trace)
        #: by call, the number of its kind, if it is known
        self._kinds: list[int] | None = None
        #: the calls that a failed pass was in
        self._failed: set[int] = set()
        while failed is not None:
            self._failed.add(failed)
            failed = trace.modules[failed].parent

    def of(self, path: str = "", call: int = 0, *, fold: bool = False) -> ModuleGraph:
        """Return the graph of a call of the module with this path."""
        graph = self.in_call(self._find_node(path, call))
        return self.folded(graph) if fold else graph

    def folded(self, graph: ModuleGraph, starts: Collection[int] = ()) -> ModuleGraph:
        """Return the graph with chains of operators and equal modules in one node each.

        Each of the calls ``starts`` is the first one of its node.
        """

        def is_view(op: int) -> bool:
            return self._trace.ops[op].signature.is_view

        if self._kinds is None:
            self._kinds = kinds_of(self._trace)
        return with_repeats_folded(with_operators_folded(graph, is_view), self._kinds, starts)

    def _find_node(self, path: str, call: int) -> int:
        index = self._by_name.get((path, call))
        if index is not None:
            return index
        calls = [number for known, number in self._by_name if known == path]
        if not calls:
            names = [name for name, _ in self._by_name if name]
            near = difflib.get_close_matches(path, names, 1)
            advice = f": did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no module {path!r} was called{advice}")
        times = "once" if len(calls) == 1 else f"{len(calls)} times"
        raise InputError(
            Argument("call"), f" is out of range: {path or 'the model'} was called {times}"
        )

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], int]:
        return {(each.path, each.call): each.index for each in self._trace.modules}

    def in_call(self, index: int) -> ModuleGraph:
        """Return the graph of a call by its index in ``trace.modules``."""
        call = self._trace.modules[index]
        level = self._flow.levels[index]
        numbers = {place: number for number, place in enumerate(level.places)}
        edges: list[GraphEdge] = []
        specs: dict[int, TensorSpec] = {}
        for (source, target), carried in level.edges.items():
            tensors = tuple(dict.fromkeys(carried))
            edges.append(GraphEdge(numbers[source], numbers[target], tensors))
            for tensor in tensors:
                specs[tensor] = self._trace.tensors[tensor].spec
        return ModuleGraph(
            path=call.path,
            type_name=call.type_name,
            call=call.call,
            nodes=tuple(self._node(call, place) for place in level.places),
            edges=tuple(edges),
            specs=specs,
            batch_size=self._trace.provenance.batch_size,
        )

    def _node(self, level: ModuleCall, place: Place) -> GraphNode:
        kind, at = place
        if kind == "module":
            call = self._trace.modules[at]
            again = f" ({call.call + 1})" if call.call else ""
            return GraphNode(
                kind=kind,
                name=f"{name_in(level, call)}{again}",
                type_name=call.type_name,
                path=call.path,
                calls=(at,),
                tensors=call.outputs,
                failed=at in self._failed,
            )
        if kind == "operator":
            op = self._trace.ops[at]
            return GraphNode(
                kind=kind,
                name=plain_name(op.signature.operator),
                operators=(at,),
                tensors=op.outputs,
            )
        record = self._trace.tensors[at]
        if kind == "tensor":
            name = record.name.removeprefix(f"{level.path}.") or record.kind
            return GraphNode(kind=kind, name=name, path=record.name, tensors=(at,))
        return GraphNode(kind=kind, name=self._end_name(level, place), tensors=(at,))

    def _end_name(self, level: ModuleCall, place: Place) -> str:
        kind, tensor = place
        if kind == "input":
            tensors, names, relation = level.inputs, level.input_names, "from"
        else:
            tensors, names, relation = level.outputs, level.output_names, "for"
        name = name_among(self._trace, tensor, tensors, names)
        if name is not None:
            return plain_end(name) or kind
        elsewhere = self._flow.elsewhere.get((level.index, kind, tensor))
        if elsewhere is None:
            return kind
        return f"{relation} {elsewhere or 'the model itself'}"


def name_among(
    trace: Trace, tensor: int, tensors: Sequence[int], names: Sequence[str]
) -> str | None:
    """Return the name of a tensor, or of a later version of it, or None if it is not among these.

    There are later versions because the arguments of a call are noted when it has ended.
    """
    storage = trace.tensors[tensor].storage
    named = list(zip(tensors, names, strict=False))
    exact = (name for known, name in named if known == tensor)
    alike = (name for known, name in named if trace.tensors[known].storage == storage)
    return next(exact, next(alike, None))


def name_in(level: ModuleCall, call: ModuleCall) -> str:
    """Return the path of a call from the module that it is in, if that is around it.

    It may have several names, as lists of modules are never called.
    """
    prefix = f"{level.path}." if level.path else ""
    return call.path.removeprefix(prefix) or call.type_name


def plain_name(operator: str) -> str:
    """Return the name of an operator without its namespace: ``aten.add_`` -> ``add``."""
    return operator.rpartition(".")[2].removesuffix("_").removeprefix("_")


def plain_end(name: str) -> str:
    """Return the plain name of an end: ``['logits'][0]`` and ``.logits[0]`` -> ``logits[0]``."""
    return _KEY.sub(r".\2", name).removeprefix(".")
