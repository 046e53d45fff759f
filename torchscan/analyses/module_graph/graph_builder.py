"""The dataflow inside each module call as a graph: inputs, calls, operators and outputs.

An edge is a tensor that one node produced or got, and another one reads. The producer follows from
the trace alone, so it makes no difference whether gradients are computed, how tensors are passed,
or whether they are written to in place:

    producer(tensor, reader) = the last operator before the reader that produced this version of it, or wrote to its memory.

The edge belongs to the innermost call that contains both. The tensor is an input of the calls
around the reader that do not contain the producer, and an output of those around the producer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cached_property

from torchscan.analyses.module_graph.flow import Flow, Place
from torchscan.analyses.module_graph.fold import with_operators_folded, with_repeats_folded
from torchscan.analyses.module_graph.graph_result import GraphEdge, GraphNode, ModuleGraph
from torchscan.analyses.repeats import kinds_of
from torchscan.errors import Argument, InputError, RecordError
from torchscan.trace.events import ModuleCall
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
    """The graphs of all calls of a record."""

    def __init__(self, trace: Trace, failed: int | None = None) -> None:
        """``failed`` is the call of a module that the pass failed in."""
        self._trace = trace
        self._flow = Flow(trace)
        self._failed = set(_enclosing_calls(trace, failed))

    def of(self, path: str = "", call: int = 0, *, fold: bool = False) -> ModuleGraph:
        """The graph of a call of the module with this path."""
        graph = self.in_call(self._find_node(path, call))
        return self.folded(graph) if fold else graph

    def folded(self, graph: ModuleGraph) -> ModuleGraph:
        """With operators that follow each other, and equal modules of a list, in one node each."""
        return with_repeats_folded(with_operators_folded(graph, self._is_view), self._kinds)

    def _is_view(self, op: int) -> bool:
        return self._trace.ops[op].signature.is_view

    @cached_property
    def _kinds(self) -> list[int]:
        return kinds_of(self._trace)

    def _find_node(self, path: str, call: int) -> int:
        index = self._by_name.get((path, call))
        if index is None:
            known = [number for known, number in self._by_name if known == path]
            if not known:
                near = difflib.get_close_matches(
                    path, [name for name, _ in self._by_name if name], 1
                )
                raise InputError(
                    f"no module {path!r} was called{f': did you mean {near[0]!r}?' if near else ''}"
                )
            times = "once" if len(known) == 1 else f"{len(known)} times"
            raise InputError(
                Argument("call"), f" is out of range: {path or 'the model'} was called {times}"
            )
        return index

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], int]:
        return {(each.path, each.call): each.index for each in self._trace.modules}

    def in_call(self, index: int) -> ModuleGraph:
        """That of a call by its index in ``trace.modules``."""
        call = self._trace.modules[index]
        level = self._flow.levels[index]
        numbers = {place: number for number, place in enumerate(level.places)}
        edges = [
            GraphEdge(numbers[source], numbers[target], tuple(dict.fromkeys(tensors)))
            for (source, target), tensors in level.edges.items()
        ]
        specs = {
            tensor: self._trace.tensors[tensor].spec for edge in edges for tensor in edge.tensors
        }
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
        found = name_among(self._trace, tensor, *_ends_of(level, kind))
        if found is not None:
            return plain_end(found) or kind
        elsewhere = self._flow.elsewhere.get((level.index, kind, tensor))
        return (
            kind
            if elsewhere is None
            else f"{'from' if kind == 'input' else 'for'} {elsewhere or 'the model itself'}"
        )


def _enclosing_calls(trace: Trace, call: int | None) -> list[int]:
    found = []
    while call is not None:
        found.append(call)
        call = trace.modules[call].parent
    return found


def _ends_of(level: ModuleCall, kind: str) -> tuple[Sequence[int], Sequence[str]]:
    return (
        (level.inputs, level.input_names)
        if kind == "input"
        else (level.outputs, level.output_names)
    )


def name_among(
    trace: Trace, tensor: int, tensors: Sequence[int], names: Sequence[str]
) -> str | None:
    """The name of a tensor, or of a later version of it: what a call was given is noted when it has ended."""
    storage = trace.tensors[tensor].storage
    named = list(zip(tensors, names, strict=False))
    exact = (name for known, name in named if known == tensor)
    alike = (name for known, name in named if trace.tensors[known].storage == storage)
    return next(exact, next(alike, None))


def name_in(level: ModuleCall, call: ModuleCall) -> str:
    """The path of a call from the module that it is in, if that is around it; lists of modules are never called."""
    prefix = f"{level.path}." if level.path else ""
    return (
        call.path.removeprefix(prefix) if call.path.startswith(prefix) else call.path
    ) or call.type_name


def plain_name(operator: str) -> str:
    """``aten.add_`` -> ``add``: what it does, without where it is from."""
    return operator.rpartition(".")[2].removesuffix("_").removeprefix("_")


def plain_end(name: str) -> str:
    """``['logits'][0]`` and ``.logits[0]`` -> ``logits[0]``."""
    return _KEY.sub(r".\2", name).removeprefix(".")
