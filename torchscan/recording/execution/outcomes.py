"""The outcomes of operator calls, and the ways to run one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchscan.recording.execution.assumptions import Assumed
from torchscan.recording.execution.calls import OpRequest
from torchscan.torch_versions import aten, share_memory
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.records import TensorKind

#: with more outputs than this, shared memory is looked up in a dict
_MANY = 8


class OpOutcome(NamedTuple):
    """The result of a call, for the model, and its description, for the record."""

    result: Any
    signature: OpSignature
    #: the tensors in the result, in order
    outputs: Sequence[Tensor]
    #: for each output the position of the operand whose memory it shares, None for new memory
    alias_of: Sequence[int | None]
    #: what the values of its integer outputs rest on
    assumed: Assumed | None = None


class Execution(Protocol):
    """A way to run operators: for real, or on shapes alone."""

    def needs_proxy(self, tensor: Tensor, spec: TensorSpec, kind: TensorKind) -> bool:
        """Return whether a tensor from outside the pass needs a meta tensor as its proxy."""

    def begin_optimizer(self) -> None:
        """Prepare for an optimizer's step: the gradients are there."""

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator."""


def tensors_of_result(result: Any) -> list[Tensor]:
    """Return the tensors in a result of an operator."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in tensors_of_result(item)]
    return []


def describe_outcome(request: OpRequest, result: Any) -> OpOutcome:
    """Describe what a call returned."""
    outputs = [result] if type(result) is Tensor else tensors_of_result(result)
    alias_of = _alias_positions(outputs, request.operands())
    changes_data = request.traits.written and torch.Tag.inplace_view not in request.op.tags
    is_view = bool(outputs) and None not in alias_of and not changes_data
    specs = tuple(request.table.spec_of(output) for output in outputs)
    signature = request.describe(specs, is_view)
    return OpOutcome(result, signature, outputs, alias_of)


def _alias_positions(
    outputs: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[int | None, ...]:
    """Return for each output the position of the first operand that shares its memory."""
    if len(outputs) > _MANY:
        known = _aliases_of_many(outputs, operands)
        if known is not None:
            return known
    positions: list[int | None] = []
    for output in outputs:
        shared = None
        for position, operand in enumerate(operands):
            if output is operand or share_memory(output, operand):
                shared = position
                break
        positions.append(shared)
    return tuple(positions)


def _aliases_of_many(
    outputs: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[int | None, ...] | None:
    """Return the same positions without comparing every output with every operand.

    The result is None if some tensors have no memory of their own.
    """
    position_by_memory: dict[int, int] = {}
    try:
        for position, operand in enumerate(operands):
            position_by_memory.setdefault(operand.untyped_storage()._cdata, position)
        memories = [output.untyped_storage()._cdata for output in outputs]
    except (NotImplementedError, RuntimeError):
        return None
    return tuple(map(position_by_memory.get, memories))


def protect_foreign(request: OpRequest, is_at_risk: Callable[[Tensor], bool] | None = None) -> bool:
    """Let copies replace the memory that is not the pass's own, before a write.

    Memory that is about to be shared is copied, too, and what is not at risk is not. Return whether
    there are copies that were not there before.
    """
    written = request.written_tensors()
    if request.op is aten.set_.source_Tensor:
        written = request.tensors
    at_risk = filter(is_at_risk or (lambda _: True), written)
    # Not any(): every tensor needs its copy.
    return sum(map(request.table.protect, at_risk)) > 0
