"""Running operators on tensors that have a device and no data, as models have them that are spread over processes.

What is made of no tensor has no data either, if it has fractions. Integers and masks keep their values, on which the flow of a
model depends. What an operator makes of given specs is worked out once: torch takes half a millisecond a call for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.containers import copy_arguments
from torchscan.recording.bookkeeping.tensors import has_strides, meta_tensor
from torchscan.recording.execution.calls import (
    OpOutcome,
    OpRequest,
    describe_outcome,
    tensors_of_result,
)
from torchscan.recording.execution.real import RealExecution
from torchscan.recording.execution.shape_rules import SHAPE_RULES
from torchscan.torch_versions import WithoutData, aten, is_fake_type
from torchscan.trace.events import OpSignature, TensorSpec

#: kernels that torch's shape functions do not know, or know in part
_OF_CARDS = frozenset({aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default})
_WAIT = "_c10d_functional.wait_tensor.default"


class _PretendingPlan(NamedTuple):
    """The plan for calls with a given key."""

    signature: OpSignature
    alias_of: tuple[int | None, ...]
    make: Callable[[OpRequest], Any]


class PretendingExecution(RealExecution):
    """See the top of this file."""

    def __init__(self, without_data: WithoutData) -> None:
        super().__init__()
        self._without_data = without_data
        self._plans: dict[tuple[Any, ...], _PretendingPlan] = {}

    def _is_at_risk(self, tensor: Tensor) -> bool:
        return not is_fake_type(type(tensor))

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator. What is written to by something without data has none from then on."""
        if request.traits.written or request.traits.silently_written:
            self._forget_values(request)
        return super().run(request)

    def _forget_values(self, request: OpRequest) -> None:
        operands = [request.operand(each) for each in request.tensors]
        if not any(is_fake_type(type(each)) for each in operands):
            return
        known = [
            each
            for each in request.written_tensors()
            if not is_fake_type(type(request.operand(each)))
        ]
        for each in known:
            request.table.compute_without_data(each, self._without_data)
        if known:
            request.look_up()

    def _outcome(self, request: OpRequest) -> OpOutcome:
        if request.has_proxy:
            return super()._outcome(request)
        if request.traits.is_factory:
            return self._made_of_nothing(request)
        if not any(is_fake_type(type(each)) for each in request.tensors):
            return super()._outcome(request)
        if str(request.op) == _WAIT:  # which torch takes for new memory where there is no data
            return describe_outcome(request, request.args[0])
        plan = self._plans.get(request.key)
        if plan is None:
            return self._first_outcome(request)
        result = plan.make(request)
        return OpOutcome(result, plan.signature, tensors_of_result(result), plan.alias_of)

    def _made_of_nothing(self, request: OpRequest) -> OpOutcome:
        if not _type_of(request).is_floating_point:
            return super()._outcome(request)
        with self._without_data.mode:
            return super()._outcome(request)

    def _first_outcome(self, request: OpRequest) -> OpOutcome:
        is_of_cards = request.op in _OF_CARDS
        outcome = self._by_rule(request) if is_of_cards else super()._outcome(request)
        make = self._again(request, outcome) if request.op.namespace == "aten" else None
        if make is not None:
            self._plans[request.key] = _PretendingPlan(
                outcome.signature, tuple(outcome.alias_of), make
            )
        return outcome

    def _again(self, request: OpRequest, outcome: OpOutcome) -> Callable[[OpRequest], Any] | None:
        """A function that returns what this call did, if that is new memory, or the only operand that it has written to."""
        specs = outcome.signature.outputs
        if request.traits.written or request.traits.silently_written:
            return _returned(request, outcome)
        if outcome.signature.is_view:
            return self._looked_into(request, outcome)
        if any(each is not None for each in outcome.alias_of) or not all(
            map(_is_replaceable, outcome.outputs)
        ):
            return None
        device = outcome.outputs[0].device if outcome.outputs else None
        if device is None or any(each.device != device for each in outcome.outputs):
            return None
        if isinstance(outcome.result, Tensor):
            return lambda _: self._make_tensor(specs[0], device)
        if type(outcome.result) in (list, tuple) and len(outcome.result) == len(specs):
            kind = type(outcome.result)
            return lambda _: kind([self._make_tensor(spec, device) for spec in specs])
        return None

    def _by_rule(self, request: OpRequest) -> OpOutcome:
        """Return what a kernel of cards makes, by the rule that passes on shapes alone follow."""
        device = next(each.device for each in request.tensors if is_fake_type(type(each)))

        def to_meta(tensor: Tensor) -> Tensor:
            return meta_tensor(request.table.find(tensor).spec)

        def to_device(made: Tensor) -> Tensor:
            return self._make_tensor(request.table.spec_of(made), device)

        made = request.call(to_meta, op=SHAPE_RULES[request.op])
        return describe_outcome(request, copy_arguments(made, to_device))

    def _looked_into(
        self, request: OpRequest, outcome: OpOutcome
    ) -> Callable[[OpRequest], Any] | None:
        """Another look into the memory of an operand, as far from where that one looks."""
        result, place = outcome.result, outcome.alias_of[0]
        if not isinstance(result, Tensor) or not is_fake_type(type(result)) or place is None:
            return None
        operand, spec = request.tensors[place], outcome.signature.outputs[0]
        if (
            result is operand
            or result.dtype is not operand.dtype
            or result.is_complex()
            or not has_strides(operand)
        ):
            return None
        further = int(result.storage_offset()) - int(operand.storage_offset())

        def make(again: OpRequest) -> Tensor:
            seen = again.tensors[place]
            return self._without_data.view(
                seen, spec.shape, spec.stride, int(seen.storage_offset()) + further
            )

        return make

    def _make_tensor(self, spec: TensorSpec, device: torch.device) -> Tensor:
        return self._without_data.tensor(spec.shape, spec.stride, spec.dtype, device)


def _returned(request: OpRequest, outcome: OpOutcome) -> Callable[[OpRequest], Any] | None:
    """There is no data to write, so once it is known that the spec stays as it is, the work can be left out."""
    written = request.written_tensors()
    if len(written) != 1 or outcome.result is not written[0]:
        return None
    place = next(place for place, each in enumerate(request.tensors) if each is written[0])
    is_as_before = request.tracked[place].spec is outcome.signature.outputs[0]
    return (lambda again: again.tensors[place]) if is_as_before else None


def _is_replaceable(tensor: Tensor) -> bool:
    """Return whether a new tensor can replace it: it has no data and is not part of another."""
    if not is_fake_type(type(tensor)) or tensor.layout is not torch.strided:
        return False
    return (
        tensor.storage_offset() == 0
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


def _type_of(request: OpRequest) -> torch.dtype:
    """Return the type of the tensor that a factory creates."""
    given = request.kwargs.get("dtype")
    if isinstance(given, torch.dtype):
        return given
    name = request.op._schema.name.removeprefix("aten::")
    if name in _INTEGERS:
        return torch.int64
    if name in _LIKE_NUMBERS:
        return torch.result_type(_widest(request.args), _widest(request.args))
    return torch.get_default_dtype()


def _widest(arguments: Sequence[Any]) -> Any:
    """Return one of the numbers among the arguments, with a fraction if there is any."""
    numbers = [each for each in arguments if isinstance(each, bool | int | float | complex)]
    return max(numbers, key=lambda each: isinstance(each, float | complex), default=0.0)


#: factories of integers, and those whose arguments say what they make
_INTEGERS = frozenset({"randint", "randperm", "tril_indices", "triu_indices"})
_LIKE_NUMBERS = frozenset({"full", "arange", "scalar_tensor"})
