"""The tensors that flow between the calls of a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.trace import Trace

#: a tensor that is handed in or out; a call of a module; operators that belong to no module in it;
#: a parameter or buffer
NodeKind = Literal["input", "output", "module", "operator", "tensor"]
#: kinds of tensors that are not arguments of modules, as a rule
_HELD = ("parameter", "buffer", "constant", "optimizer state")
#: a node of a level: its kind, and the index of its tensor, call or operator
Place = tuple[NodeKind, int]


@dataclass(slots=True)
class Level:
    """The dataflow inside one module call."""

    #: nodes, in the order in which they are met
    places: dict[Place, None] = field(default_factory=dict)
    #: the tensors that go from one node to another
    edges: dict[tuple[Place, Place], list[int]] = field(default_factory=lambda: defaultdict(list))
    #: by tensor that modules in it have returned as they got it, the last of them
    carriers: dict[int, Place] = field(default_factory=dict)
    #: tensors that leave it
    leaving: set[int] = field(default_factory=set)

    def connect(self, source: Place, target: Place, tensor: int) -> None:
        """Add an edge from one node to another."""
        for place in (source, target):
            self.places.setdefault(place)
        self.edges[source, target].append(tensor)


class Flow:
    """Follows the forward pass of a trace, operator by operator."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.levels = [Level() for _ in trace.modules]
        #: inputs and outputs that are no argument and no result: where they are from, or used
        self.elsewhere: dict[tuple[int, str, int], str] = {}
        #: by memory, the operator that wrote to it last
        self._writers: dict[int, int] = {}
        num_ops = sum(op.phase == "forward" for op in trace.ops)  # they come first
        ended = self._calls_by_end(num_ops)
        for index, op in enumerate(trace.ops[:num_ops]):
            for call in ended[index]:
                self._leave(call)
            self._follow(index, op)
        for call in ended[num_ops]:
            self._leave(call)
        for call in trace.modules:
            if call.end is None and call.parent is not None:
                self.levels[call.parent].places.setdefault(("module", call.index))

    def _calls_by_end(self, num_ops: int) -> list[list[ModuleCall]]:
        """Return the calls that end before each operator, inner ones first."""
        ended: list[list[ModuleCall]] = [[] for _ in range(num_ops + 1)]
        inner_first = sorted(self._trace.modules, key=lambda call: -call.depth)
        for call in inner_first:
            if call.end is not None and call.end <= num_ops:
                ended[call.end].append(call)
        return ended

    # -- events ----------------------------------------------------------------------------------

    def _follow(self, index: int, op: OpCall) -> None:
        """Connect an operator with the producers of what it reads, and note what it writes to."""
        for tensor in dict.fromkeys(op.inputs):
            self._read(tensor, op.module_call, ("operator", index))
        self.levels[op.module_call].places.setdefault(("operator", index))
        for storage in self._written(op):
            self._writers[storage] = index

    def _written(self, op: OpCall) -> set[int]:
        """Return the memory that an operator wrote to and that already existed."""
        if op.signature.is_view:
            return set()
        tensors, written = self._trace.tensors, op.signature.written
        read = {tensors[tensor].storage for tensor in op.inputs}
        returned = {tensors[tensor].storage for tensor in op.outputs}
        of_schema = {tensors[each].storage for each in op.inputs if tensors[each].spec in written}
        return (read & returned) | of_schema

    def _leave(self, call: ModuleCall) -> None:
        """Connect the outputs and inputs of a call that has ended."""
        for tensor in dict.fromkeys(call.outputs):
            self._hand_out(call, tensor)
        given: list[int] = []
        for tensor in dict.fromkeys(call.inputs):
            if self._is_produced_inside(tensor, call.index):
                continue
            given.append(tensor)
            if self._trace.tensors[tensor].kind not in _HELD:
                self.levels[call.index].places.setdefault(("input", tensor))
        if call.parent is not None:
            self._pass_by(call, given, call.parent)

    def _pass_by(self, call: ModuleCall, given: Sequence[int], parent: int) -> None:
        """Connect the inputs of a call with their sources, even if no operator reads them.

        An input may also be an output of the call.
        """
        inside: Place = ("module", call.index)
        self.levels[parent].places.setdefault(inside)
        for tensor in given:
            self._read(tensor, parent, inside)
        for tensor in set(given) & set(call.outputs):
            self.levels[parent].carriers[tensor] = inside

    def _hand_out(self, call: ModuleCall, tensor: int) -> None:
        level = self.levels[call.index]
        level.leaving.add(tensor)
        source = self._source(tensor, call.index)
        if source is None:
            kind: NodeKind = "tensor" if self._trace.tensors[tensor].kind in _HELD else "input"
            source = (kind, tensor)
        level.connect(source, ("output", tensor), tensor)

    # -- readers ---------------------------------------------------------------------------------

    def _read(self, tensor: int, level: int, reader: Place) -> None:
        """Connect a tensor with its reader, level by level.

        The edges begin in the outermost call that the producer is not in.
        """
        producer, record = self._producer(tensor), self._trace.tensors[tensor]
        if producer is None and record.kind in _HELD:
            self.levels[level].connect(("tensor", tensor), reader, tensor)
            return
        at, source = level, self._source(tensor, level)
        while source is None:
            self.levels[at].connect(("input", tensor), reader, tensor)
            if producer is not None:
                path = self._trace.path_of(self._trace.ops[producer])
                self.elsewhere.setdefault((at, "input", tensor), path)
            parent = self._trace.modules[at].parent
            if parent is None:
                return
            at, reader = parent, ("module", at)
            source = self._source(tensor, at)
        self.levels[at].connect(source, reader, tensor)
        if producer is not None:
            self._take_out(tensor, producer, at, level)

    def _take_out(self, tensor: int, producer: int, meeting: int, level: int) -> None:
        """Connect a tensor with the ends of calls around its producer that do not return it."""
        at = self._trace.ops[producer].module_call
        while at != meeting:
            inside, call = self.levels[at], self._trace.modules[at]
            source = self._source(tensor, at)
            if source is not None and tensor not in inside.leaving:
                storages = [self._trace.tensors[each].storage for each in call.outputs]
                if self._trace.tensors[tensor].storage not in storages:
                    inside.leaving.add(tensor)
                    inside.connect(source, ("output", tensor), tensor)
                    self.elsewhere[at, "output", tensor] = self._trace.modules[level].path
            if call.parent is None:
                return
            at = call.parent

    def _source(self, tensor: int, level: int) -> Place | None:
        """Return the node of a level that a tensor comes from, or None if it is from outside."""
        carrier = self.levels[level].carriers.get(tensor)
        if carrier is not None:
            return carrier
        producer = self._producer(tensor)
        if producer is None:
            return None
        at = self._trace.ops[producer].module_call
        if at == level:
            return "operator", producer
        parent = self._trace.modules[at].parent
        while parent is not None and parent != level:
            at, parent = parent, self._trace.modules[parent].parent
        return None if parent is None else ("module", at)

    def _is_produced_inside(self, tensor: int, call: int) -> bool:
        producer = self._producer(tensor)
        at = None if producer is None else self._trace.ops[producer].module_call
        while at is not None and at != call:
            at = self._trace.modules[at].parent
        return at is not None

    def _producer(self, tensor: int) -> int | None:
        """Return the operator that produced this version of a tensor, or wrote to it since."""
        record = self._trace.tensors[tensor]
        writer = self._writers.get(record.storage)
        if record.producer is None:
            return writer
        if writer is None:
            return record.producer
        return max(record.producer, writer)
