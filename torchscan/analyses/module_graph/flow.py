"""The tensors that flow between the calls of a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchscan.trace.events import ModuleCall, OpCall
from torchscan.trace.trace import Trace

#: a tensor that is handed in or out; a call of a module; operators that belong to no module in it; a parameter or buffer
NodeKind = Literal["input", "output", "module", "operator", "tensor"]
#: kinds of tensors that no module is handed, as a rule
_HELD = ("parameter", "buffer", "constant", "optimizer state")
#: a node of a level: its kind, and the index of its tensor, call or operator
Place = tuple[NodeKind, int]


@dataclass(slots=True)
class Level:
    """The dataflow inside one module call."""

    #: in the order in which they are met
    places: dict[Place, None] = field(default_factory=dict)
    #: with the tensors that go there
    edges: dict[tuple[Place, Place], list[int]] = field(default_factory=lambda: defaultdict(list))
    #: tensors that a module in it has returned as it was given them: the last that did
    carriers: dict[int, Place] = field(default_factory=dict)
    #: tensors that leave it
    leaving: set[int] = field(default_factory=set)

    def connect(self, source: Place, target: Place, tensor: int) -> None:
        """From one node to another."""
        for place in (source, target):
            self.places.setdefault(place)
        self.edges[source, target].append(tensor)


class Flow:
    """Follows the forward pass of a record, operator by operator."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.levels = [Level() for _ in trace.modules]
        #: inputs and outputs that are no argument and no result: where they are from, or used
        self.elsewhere: dict[tuple[int, str, int], str] = {}
        #: by memory, the operator that wrote to it last
        self._writers: dict[int, int] = {}
        number = sum(op.phase == "forward" for op in trace.ops)  # they come first
        ended: list[list[ModuleCall]] = [[] for _ in range(number + 1)]
        for call in sorted(trace.modules, key=lambda call: -call.depth):  # inner ones first
            if call.end is not None and call.end <= number:
                ended[call.end].append(call)
        for at, calls in enumerate(ended):
            for call in calls:
                self._leave(call)
            if at < number:
                self._follow(at, trace.ops[at])
        for call in trace.modules:
            if call.end is None and call.parent is not None:
                self.levels[call.parent].places.setdefault(("module", call.index))

    # -- events --------------------------------------------------------------------------------------------------------

    def _follow(self, at: int, op: OpCall) -> None:
        """An operator reads what others have made."""
        for tensor in dict.fromkeys(op.inputs):
            self._read(tensor, op.module_call, ("operator", at))
        self.levels[op.module_call].places.setdefault(("operator", at))
        for storage in self._written(op):
            self._writers[storage] = at

    def _written(self, op: OpCall) -> set[int]:
        """The memory that an operator wrote to and that was there before."""
        if op.signature.is_view:
            return set()
        tensors, written = self._trace.tensors, op.signature.written
        read = {tensors[tensor].storage for tensor in op.inputs}
        made = {tensors[tensor].storage for tensor in op.outputs}
        return (read & made) | {
            tensors[tensor].storage for tensor in op.inputs if tensors[tensor].spec in written
        }

    def _leave(self, call: ModuleCall) -> None:
        """A call has ended: it has read what it was given, and what it returns is there."""
        for tensor in dict.fromkeys(call.outputs):
            self._hand_out(call, tensor)
        given = [
            tensor
            for tensor in dict.fromkeys(call.inputs)
            if not self._is_inside(self._producer(tensor), call.index)
        ]
        for tensor in given:
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
        untouched: Place = (
            "tensor" if self._trace.tensors[tensor].kind in _HELD else "input",
            tensor,
        )
        level.leaving.add(tensor)
        level.connect(self._source(tensor, call.index) or untouched, ("output", tensor), tensor)

    # -- who reads what ------------------------------------------------------------------------------------------------

    def _read(self, tensor: int, level: int, reader: Place) -> None:
        """Draw the way of a tensor to its reader, from the outermost call that its producer is not in."""
        producer, record = self._producer(tensor), self._trace.tensors[tensor]
        if producer is None and record.kind in _HELD:
            self.levels[level].connect(("tensor", tensor), reader, tensor)
            return
        at, source = level, self._source(tensor, level)
        while source is None:
            self.levels[at].connect(("input", tensor), reader, tensor)
            if producer is not None:
                self.elsewhere.setdefault(
                    (at, "input", tensor), self._trace.path_of(self._trace.ops[producer])
                )
            parent = self._trace.modules[at].parent
            if parent is None:
                return
            at, reader = parent, ("module", at)
            source = self._source(tensor, at)
        self.levels[at].connect(source, reader, tensor)
        if producer is not None:
            self._take_out(tensor, producer, at, level)

    def _take_out(self, tensor: int, producer: int, meeting: int, level: int) -> None:
        """In calls around the producer that have not returned the tensor, it leaves all the same."""
        at = self._trace.ops[producer].module_call
        while at != meeting:
            source = self._source(tensor, at)
            if (
                source is not None
                and tensor not in self.levels[at].leaving
                and not self._returns(at, tensor)
            ):
                self.levels[at].leaving.add(tensor)
                self.levels[at].connect(source, ("output", tensor), tensor)
                self.elsewhere[at, "output", tensor] = self._trace.modules[level].path
            parent = self._trace.modules[at].parent
            if parent is None:
                return
            at = parent

    def _returns(self, call: int, tensor: int) -> bool:
        """Return whether a tensor is a result of this call, or shares memory with one."""
        storage = self._trace.tensors[tensor].storage
        return any(
            self._trace.tensors[each].storage == storage
            for each in self._trace.modules[call].outputs
        )

    def _source(self, tensor: int, level: int) -> Place | None:
        """The node of a level that a tensor comes from; None: from outside."""
        carrier = self.levels[level].carriers.get(tensor)
        if carrier is not None:
            return carrier
        producer = self._producer(tensor)
        if producer is None:
            return None
        at = self._trace.ops[producer].module_call
        if at == level:
            return "operator", producer
        while (parent := self._trace.modules[at].parent) is not None:
            if parent == level:
                return "module", at
            at = parent
        return None

    def _is_inside(self, producer: int | None, call: int) -> bool:
        at = None if producer is None else self._trace.ops[producer].module_call
        while at is not None and at != call:
            at = self._trace.modules[at].parent
        return at is not None

    def _producer(self, tensor: int) -> int | None:
        """The operator that made this version of a tensor, or that wrote to its memory since."""
        record = self._trace.tensors[tensor]
        writer = self._writers.get(record.storage)
        return (
            writer
            if record.producer is None
            else max(record.producer, -1 if writer is None else writer)
        )
