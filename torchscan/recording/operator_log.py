"""The operator calls and module calls of a pass, with their tensors and what asked for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.containers import arguments_named, named_tensors
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.bookkeeping.packed_weights import (
    Fingerprint,
    fingerprint_of,
    packed_objects,
    packed_tensors,
)
from torchscan.recording.bookkeeping.shared_memory import Tracked
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.call_tree import CallTree
from torchscan.recording.execution.assumed import AssumedValues, Met
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.op_traits import LIFT, RESOLVE
from torchscan.recording.execution.outcomes import OpOutcome
from torchscan.recording.module_calls import Call, Given
from torchscan.torch_versions import aten, current_node, keeps_for_gradients, local_part
from torchscan.trace.events import ModuleCall, OpCall, Origin, Phase

_ADD = aten.add.Tensor


class OperatorLog:
    """The operator calls of a pass. It enters their results in the table of tensors."""

    def __init__(self, tree: CallTree, table: TensorTable, values: AssumedValues) -> None:
        self._tree = tree
        self._table = table
        self._storages = table.storages
        self._values = values
        self.calls: list[OpCall] = []
        self.phase: Phase = "forward"
        #: the packed weights that operators took, with the path of the first module that gave them
        self.took_packed: dict[Fingerprint | None, str] = {}
        #: True from the first operator on that a checkpoint recomputes
        self.is_recomputing = False
        #: by operator call of the backward pass the number of the graph's node that made it
        self._nodes: dict[int, int | None] = {}

    def write_down(self, request: OpRequest, outcome: OpOutcome, met: Met) -> Any:
        """Write down a call that ran, and return its result for the model."""
        index = len(self.calls)
        inputs = tuple([tracked.index for tracked in request.tracked])
        result = self._with_originals(request, outcome) if request.has_proxy else outcome.result
        made = self._enter_outputs(request, outcome, index)
        outputs = tuple([tracked.index for tracked in made])
        phase = self.phase
        call = self._tree.current or self._owner()
        if request.traits.takes_packed:
            operands = [("", list(request.args)), ("", dict(request.kwargs))]
            for _, packed in packed_objects(operands):
                self.took_packed.setdefault(fingerprint_of(packed_tensors(packed)), call.path)
        origin = self._origin(request, index) if phase == "backward" else "function"
        self.calls.append(OpCall(outcome.signature, inputs, outputs, call.index, phase, origin))
        self._storages.advance(index + 1)
        if met or request.traits.may_draw or outcome.assumed is not None:
            self._values.follow(request, outcome.assumed, met, made)
        return result

    def leave_out(self, request: OpRequest, outcome: OpOutcome) -> Any:
        """Return the result, for the model, of a call that is not part of it."""
        if request.op is LIFT:
            self._storages.find_or_add(request.args[0], "constant", "")
        if request.has_proxy:
            return self._with_originals(request, outcome)
        return outcome.result

    def _with_originals(self, request: OpRequest, outcome: OpOutcome) -> Any:
        """Return the model's own tensor if an operator returns one of its operands, not its proxy.

        C++ code that is about to read it, such as ``tolist``, gets the proxy, which has the values
        written since.
        """
        if not isinstance(outcome.result, Tensor) or request.op in RESOLVE:
            return outcome.result
        alias = outcome.alias_of[0]
        if alias is not None and request.operand(request.tensors[alias]) is outcome.result:
            return request.tensors[alias]
        return outcome.result

    def _enter_outputs(
        self, request: OpRequest, outcome: OpOutcome, producer: int
    ) -> list[Tracked]:
        specs = outcome.signature.outputs
        entered = []
        for tensor, spec, alias in zip(outcome.outputs, specs, outcome.alias_of, strict=True):
            if alias is None:
                entered.append(self._table.add(tensor, spec, producer, None))
                continue
            operand, tracked = request.tensors[alias], request.tracked[alias]
            computed_with = operand if tracked.proxy is None else tracked.proxy
            if computed_with is tensor:  # an operand is returned
                entered.append(self._table.rewrite(operand, spec, producer))
            else:
                entered.append(self._table.add(tensor, spec, producer, tracked))
        return entered

    def _origin(self, request: OpRequest, index: int) -> Origin:
        if is_inside_checkpoint():
            self.is_recomputing = True
            return "checkpoint"
        node = current_node()
        self._nodes[index] = None if node is None else node._sequence_nr()
        if request.op is _ADD and self._sums_up_gradients(request, index):
            return "engine"
        return "function"

    def _sums_up_gradients(self, request: OpRequest, index: int) -> bool:
        """Return whether the engine adds two gradients.

        It adds what a node has just made to what another one made, which this node never sees.
        """
        producers = [self._table.records[tracked.index].producer for tracked in request.tracked]
        if len(producers) != 2 or any(producer not in self._nodes for producer in producers):
            return False
        return any(
            producer is not None and self._nodes[producer] != self._nodes[index]
            for producer in producers
        )

    def _owner(self) -> Call:
        """Return the call whose gradient is computed, else the model's, for example for a loss."""
        node = None
        if self.phase == "backward":
            node = current_node()
        owner = self._tree.owner_of(node)
        if owner is None:
            owner = self._tree.root
        return owner


def is_inside_checkpoint() -> bool:
    """Return whether a checkpoint recomputes its part, asked during the backward pass.

    Gradients are enabled then, or were just before a result was saved for them.
    """
    return torch.is_grad_enabled() or keeps_for_gradients()


# -- module calls ----------------------------------------------------------------------------------


class _Ends(NamedTuple):
    """Inputs and outputs of a module call with their names, and the number of operators so far."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    end: int | None = None


_NO_ENDS = _Ends()


@dataclass(slots=True, eq=False)
class ModuleEnds:
    """The inputs and outputs of module calls. It holds no tensors."""

    table: TensorTable
    #: the operator calls so far
    ops: Sequence[OpCall]
    #: by the index of a module call
    _ends: dict[int, _Ends] = field(default_factory=dict)

    def note(self, call: Call, given: Given, result: object) -> None:
        """Note the tensors of a call that ends."""
        input_names, inputs = self._indices(arguments_named(type(call.module), *given))
        is_one = type(result) in PLAIN_TYPES
        output_names, outputs = self._indices([("", result)] if is_one else named_tensors(result))
        ends = _Ends(inputs, outputs, input_names, output_names, len(self.ops))
        self._ends[call.index] = ends

    def describe(self, calls: Sequence[Call]) -> tuple[ModuleCall, ...]:
        """Return the module calls for the trace, each with the indices of its operator calls."""
        indices: list[list[int]] = [[] for _ in calls]
        for index, op in enumerate(self.ops):
            indices[op.module_call].append(index)
        described = []
        for call, own_ops in zip(calls, indices, strict=True):
            ends = self._ends.get(call.index, _NO_ENDS)
            parent = None if call.parent is None else call.parent.index
            module_call = ModuleCall(
                call.index,
                call.path,
                type_name_of(call.module),
                call.invocation,
                call.depth,
                parent,
                tuple(call.children),
                ends.inputs,
                ends.outputs,
                tuple(own_ops),
                type(call.module).__module__,
                ends.input_names,
                ends.output_names,
                ends.end,
            )
            described.append(module_call)
        return tuple(described)

    def _indices(self, named: Iterable[tuple[str, Any]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        names = []
        indices = []
        for name, tensor in named:
            names.append(name)
            own = tensor if type(tensor) in PLAIN_TYPES else local_part(tensor)
            indices.append(self.table.find(own).index)
        return tuple(names), tuple(indices)
