"""Running operators on tensors that have a device and no data, as sharded models have them.

What is made of no tensor has no data either, if it has fractions. Integers and masks keep their
values, on which the flow of a model depends. The results of an operator for given specs are worked
out once: torch takes half a millisecond a call for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.containers import copy_arguments
from torchscan.recording.bookkeeping.tensor_layouts import has_strides, meta_tensor
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.outcomes import OpOutcome, describe_outcome, tensors_of_result
from torchscan.recording.execution.real import RealExecution
from torchscan.recording.execution.shape_rules import SHAPE_RULES
from torchscan.torch_versions import WithoutData, aten, is_fake_type
from torchscan.trace.events import OpSignature, TensorSpec

#: kernels that torch's shape functions do not know, or know in part
_OF_CARDS = frozenset({aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default})
#: views whose arguments say where in the memory they begin
_ABSOLUTE = frozenset({aten.as_strided.default})
_WAIT = "_c10d_functional.wait_tensor.default"


#: makes a result for a call, with what makes tensors in its pass
_Maker = Callable[[OpRequest, WithoutData], Any]


class _PretendingPlan(NamedTuple):
    """The plan for calls with a given key."""

    signature: OpSignature
    alias_of: tuple[int | None, ...]
    #: makes the result without torch
    make: _Maker


class PretendingExecution(RealExecution):
    """See the top of this file."""

    def __init__(self, without_data: WithoutData) -> None:
        super().__init__()
        self._without_data = without_data
        #: of calls that only this pass has
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
        written = request.written_tensors()
        known = [each for each in written if not is_fake_type(type(request.operand(each)))]
        for each in known:
            request.table.compute_without_data(each, self._without_data)
        if known:
            request.look_up()

    def _outcome(self, request: OpRequest) -> OpOutcome:
        if request.has_proxy:
            return super()._outcome(request)
        if request.traits.is_factory and _type_of(request).is_floating_point:
            with self._without_data.mode:
                return super()._outcome(request)
        if request.traits.is_factory:
            return super()._outcome(request)
        if not any(is_fake_type(type(each)) for each in request.tensors):
            return super()._outcome(request)
        if str(request.op) == _WAIT:  # which torch takes for new memory where there is no data
            return describe_outcome(request, request.args[0])
        plan = self._plans_for(request).get(request.key)
        if plan is None:
            return self._first_outcome(request)
        result = plan.make(request, self._without_data)
        return OpOutcome(result, plan.signature, tensors_of_result(result), plan.alias_of)

    def _plans_for(self, request: OpRequest) -> dict[tuple[Any, ...], _PretendingPlan]:
        return request.table.outcomes.plans if request.is_repeatable else self._plans

    def _first_outcome(self, request: OpRequest) -> OpOutcome:
        make = _view_one(request)
        if make is not None:
            outcome = describe_outcome(request, make(request, self._without_data))
        elif request.op in _OF_CARDS:
            outcome = self._by_rule(request)
        else:
            outcome = super()._outcome(request)
        if make is None and request.op.namespace == "aten":
            make = _again(request, outcome)
        if make is not None:
            plan = _PretendingPlan(outcome.signature, tuple(outcome.alias_of), make)
            self._plans_for(request)[request.key] = plan
        return outcome

    def _by_rule(self, request: OpRequest) -> OpOutcome:
        """Return what a kernel of cards makes, by the rule that passes on shapes alone follow."""
        device = next(each.device for each in request.tensors if is_fake_type(type(each)))

        def to_device(made: Tensor) -> Tensor:
            return _make_tensor(self._without_data, request.table.spec_of(made), device)

        operands = [meta_tensor(tracked.spec) for tracked in request.tracked]
        made = request.call(operands, op=SHAPE_RULES[request.op])
        return describe_outcome(request, copy_arguments(made, to_device))


def _again(request: OpRequest, outcome: OpOutcome) -> _Maker | None:
    """Return a function that makes what this call did.

    That is new memory, a view, or the only operand that it has written to.
    """
    if request.traits.written or request.traits.silently_written:
        return _returned(request, outcome)
    if outcome.signature.is_view:
        return _look_again(request, outcome)
    if any(position is not None for position in outcome.alias_of):
        return None
    if not all(map(_is_replaceable, outcome.outputs)):
        return None
    return _make_anew(outcome)


def _make_anew(outcome: OpOutcome) -> _Maker | None:
    """Return a function that makes new memory for results on one device."""
    specs, result = outcome.signature.outputs, outcome.result
    devices = {each.device for each in outcome.outputs}
    if len(devices) != 1:
        return None
    (device,) = devices
    if isinstance(result, Tensor):
        return lambda _, made: _make_tensor(made, specs[0], device)
    if type(result) in (list, tuple) and len(result) == len(specs):
        kind = type(result)
        return lambda _, made: kind([_make_tensor(made, spec, device) for spec in specs])
    return None


def _look_again(request: OpRequest, outcome: OpOutcome) -> _Maker | None:
    """Return a function that looks into the memory of an operand, as far from where it begins."""
    place = outcome.alias_of[0]
    if place is None or any(each != place for each in outcome.alias_of):
        return None
    if not has_strides(request.tensors[place]):
        return None
    if not all(is_fake_type(type(each)) for each in outcome.outputs):
        return None
    return _look_into(place, request.tensors[place], outcome.result, outcome.signature.outputs)


def _view_one(request: OpRequest) -> _Maker | None:
    """Return a function that makes the views of a single operand, or None for other operators.

    A meta tensor has the same views. Torch makes them in microseconds, and those of a fake tensor
    in milliseconds.
    """
    if not request.op.is_view or len(request.tensors) != 1 or request.op in _ABSOLUTE:
        return None
    (operand,) = request.tensors
    if request.op.namespace != "aten" or not has_strides(operand):
        return None
    meta = meta_tensor(request.tracked[0].spec)
    result = request.call([meta])
    views = tensors_of_result(result)
    if any(each.untyped_storage()._cdata != meta.untyped_storage()._cdata for each in views):
        return None
    return _look_into(0, meta, result, list(map(request.table.spec_of, views)))


def _look_into(
    place: int, operand: Tensor, result: Any, specs: Sequence[TensorSpec]
) -> _Maker | None:
    """Return a function that makes these views of the operand at a place, or None if it cannot."""
    views = tensors_of_result(result)
    for each in views:
        if each is operand or each.dtype is not operand.dtype or each.is_complex():
            return None
    start = int(operand.storage_offset())
    offsets = [int(each.storage_offset()) - start for each in views]
    parts = list(zip(specs, offsets, strict=True))

    def make(again: OpRequest, made: WithoutData) -> list[Tensor]:
        seen = again.tensors[place]
        begin = int(seen.storage_offset())
        return [made.view(seen, spec.shape, spec.stride, begin + more) for spec, more in parts]

    kind = type(result)
    if kind in (list, tuple) and len(result) == len(parts):
        return lambda again, made: kind(make(again, made))
    return (lambda again, made: make(again, made)[0]) if isinstance(result, Tensor) else None


def _make_tensor(made: WithoutData, spec: TensorSpec, device: torch.device) -> Tensor:
    return made.tensor(spec.shape, spec.stride, spec.dtype, device)


def _returned(request: OpRequest, outcome: OpOutcome) -> _Maker | None:
    """Return a function that returns the written operand, if its spec stays as it is.

    There is no data to write, so the work can be left out.
    """
    written = request.written_tensors()
    if len(written) != 1 or outcome.result is not written[0]:
        return None
    place = next(place for place, each in enumerate(request.tensors) if each is written[0])
    is_as_before = request.tracked[place].spec is outcome.signature.outputs[0]
    return (lambda again, _: again.tensors[place]) if is_as_before else None


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
