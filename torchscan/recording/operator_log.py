"""The operator calls of a pass, each with its module call, its tensors and what asked for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.packed_weights import (
    Fingerprint,
    fingerprint_of,
    packed_objects,
    packed_tensors,
)
from torchscan.recording.bookkeeping.shared_memory import Tracked
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.call_tree import CallTree
from torchscan.recording.execution.assumed import AssumedValues, Met
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.op_traits import RESOLVE
from torchscan.recording.execution.outcomes import OpOutcome
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import aten, current_node, keeps_for_gradients
from torchscan.trace.events import OpCall, Origin, Phase

_ADD = aten.add.Tensor
#: what torch does about a Python number or list that becomes a tensor
LIFT = aten.lift_fresh.default


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
