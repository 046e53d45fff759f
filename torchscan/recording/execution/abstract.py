"""Running operators on shapes alone.

Floating-point tensors are meta tensors: they have no data. Integers and booleans of moderate size
keep their values, because position ids, masks and routing indices decide what a model does next; so
do small floating-point tensors that were given as arguments, and those computed from nothing but
known values. Parameters never do.

The results of an operator for given specs are worked out once per pass (a *plan*): torch's shape
functions take 50 to 700 µs a call, and models repeat themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.recording.bookkeeping.tensor_layouts import (
    CONCRETE_FLOATS,
    CONCRETE_INTEGERS,
    kind_of,
)
from torchscan.recording.execution.assumptions import Assumed
from torchscan.recording.execution.balanced_routing import (
    BALANCED_INDICES,
    balanced_indices,
    picked_by,
)
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.meta_calls import (
    assumed_number,
    call_on_cpu,
    call_on_meta,
    call_on_spec,
    can_run_on_values,
    masks_to_indices,
    may_require_gpu,
)
from torchscan.recording.execution.norm_rules import SAVING_STATISTICS, statistics_on_cpu
from torchscan.recording.execution.op_traits import ALLOCATIONS, MAY_GROW
from torchscan.recording.execution.outcomes import (
    OpOutcome,
    describe_outcome,
    protect_foreign,
    tensors_of_result,
)
from torchscan.recording.execution.plan_makers import Maker, make_again, make_results
from torchscan.recording.execution.reads import ONLY_SPEC_MATTERS, READ_INTEGERS, is_mask
from torchscan.torch_versions import aten
from torchscan.trace.events import OpSignature, TensorSpec
from torchscan.trace.records import TensorKind


class _Plan(NamedTuple):
    """The plan for calls with a given key."""

    signature: OpSignature
    alias_of: tuple[int | None, ...]
    make: Maker
    assumed: Assumed | None = None


@dataclass(slots=True, eq=False)
class AbstractExecution:
    """Runs operators on specs, and on values where they are known: see the top of this file."""

    #: floating-point tensors up to this many elements keep their values
    largest_floats: int
    device_type: str
    _assumes_numbers: bool = False
    _plans: dict[tuple[Any, ...], _Plan] = field(default_factory=dict)

    def begin_optimizer(self) -> None:
        """Let known floats keep their values, as autograd is done.

        A number that an optimizer asks for is taken to be 1.
        """
        self.largest_floats = CONCRETE_FLOATS
        self._assumes_numbers = True

    def needs_proxy(self, tensor: Tensor, spec: TensorSpec, kind: TensorKind) -> bool:
        """Return True for all but moderately sized integers, and small constants, on the CPU."""
        if tensor.is_meta:
            return False
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise NeedsValuesError(
                f"a {kind_of(tensor)} tensor has no counterpart on the meta device"
            )
        is_unknown = spec.is_arithmetic and kind not in ("constant", "optimizer state")
        return is_unknown or not self._keeps_values(spec) or tensor.device.type != "cpu"

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator: as planned, if a call like this one was seen before."""
        if request.traits.written:
            self._make_writable(request)
        plan = self._plans.get(request.key)
        if plan is None:
            run = self._way_to_run(request)
            return run(request)
        result = plan.make(request)
        outputs = (result,) if type(result) is Tensor else tensors_of_result(result)
        return OpOutcome(result, plan.signature, outputs, plan.alias_of, plan.assumed)

    def _way_to_run(self, request: OpRequest) -> Callable[[OpRequest], OpOutcome]:
        """Return the method that runs a call which is unlike all before."""
        if can_run_on_values(request):
            return self._run_on_values
        if request.op in ONLY_SPEC_MATTERS:
            return self._run_on_specs
        if request.op is aten.index.Tensor and any(map(is_mask, request.args[1])):
            return self._run_with_masks
        if self._assumes_numbers and request.op is aten._local_scalar_dense.default:
            number = assumed_number(request.tensors[0])
            return lambda request: describe_outcome(request, number)
        if request.traits.needs_values and request.op is not aten.index.Tensor:
            raise NeedsValuesError(f"{request.op} needs values that depend on the data")
        return self._run_on_shapes

    # -- shapes ----------------------------------------------------------------------------------

    def _run_on_shapes(self, request: OpRequest) -> OpOutcome:
        result = call_on_meta(request)
        if self.device_type == "cpu" and request.op in SAVING_STATISTICS:
            operands = (request.args[position] for position in SAVING_STATISTICS[request.op])
            result = statistics_on_cpu(result, *operands)
        outcome = describe_outcome(request, result)
        if request.traits.written:
            position = self._only_written(request, outcome)
            if position is not None:
                # There is no data to write, so later calls can be left out.
                self._remember(
                    request, outcome, lambda again: again.operand(again.tensors[position])
                )
            return outcome
        if request.op in BALANCED_INDICES:
            return self._with_balanced_indices(request, outcome)
        if request.op in READ_INTEGERS:  # other values of the same shape give other shapes
            return outcome
        make = make_again(request, outcome)
        if make is not None:
            self._remember(request, outcome, make)
        return outcome

    def _only_written(self, request: OpRequest, outcome: OpOutcome) -> int | None:
        """Return the position of the operand that is written to and returned.

        It is None unless there is one such operand, and its spec stays as it is.
        """
        table, written = request.table, request.written_tensors()
        for tensor in written:
            if table.find(tensor).spec is not table.spec_of(request.operand(tensor)):
                return None
        if len(written) != 1 or not isinstance(outcome.result, Tensor):
            return None
        return next(index for index, tensor in enumerate(request.tensors) if tensor is written[0])

    def _with_balanced_indices(self, request: OpRequest, outcome: OpOutcome) -> OpOutcome:
        make = balanced_indices(request, outcome.signature.outputs)
        if make is None:
            return outcome
        rebuild = make_results(outcome.result, outcome.signature.outputs)
        result = make(outcome.result)
        outputs = tensors_of_result(result)
        outcome = outcome._replace(result=result, outputs=outputs, assumed=picked_by(request))
        self._remember(request, outcome, lambda again: make(rebuild(again)))
        return outcome

    def _run_with_masks(self, request: OpRequest) -> OpOutcome:
        """Run ``x[mask]``, which has a known shape if the mask is known.

        The call is recorded with its mask all the same.
        """
        masks = request.args
        masks_to_indices(request)
        outcome = self._run_on_shapes(request)
        request.args = masks
        request.look_up()
        signature = outcome.signature
        return outcome._replace(signature=request.describe(signature.outputs, signature.is_view))

    # -- values ----------------------------------------------------------------------------------

    def _run_on_values(self, request: OpRequest) -> OpOutcome:
        """Run an operator whose operands all have values.

        Keep computing with them, unless the result is large or full of fractions.
        """
        if request.traits.needs_values or request.traits.written:
            return self._change_values(request)
        if self._loses_values(request):
            return self._run_on_shapes(request)
        try:
            outcome = describe_outcome(request, call_on_cpu(request))
        except Exception:
            is_about_values = request.op is aten._linalg_check_errors.default
            has_fractions = any(tracked.spec.is_arithmetic for tracked in request.tracked)
            if not is_about_values and not has_fractions and not may_require_gpu(request):
                raise
            # A singular matrix, for example, does not matter here.
            return self._run_on_shapes(request)
        if not self._has_values(outcome.signature):
            return self._run_on_shapes(request)
        if request.op not in READ_INTEGERS:  # other values of the same shape give other shapes
            self._remember(request, outcome, call_on_cpu)
        return outcome

    def _change_values(self, request: OpRequest) -> OpOutcome:
        """Run an operator that writes to values, or reads them to know its result."""
        needs_values = request.traits.needs_values
        try:
            outcome = describe_outcome(request, call_on_cpu(request))
        except Exception:
            if needs_values or not may_require_gpu(request):
                raise
            for tensor in request.written_tensors():
                request.table.forget_values(tensor)
            request.look_up()
            return self._run_on_shapes(request)
        if not needs_values and self._only_written(request, outcome) is not None:
            self._remember(request, outcome, call_on_cpu)
        return outcome

    def _loses_values(self, request: OpRequest) -> bool:
        """Return whether the shapes of a call say that its result keeps no values."""
        may_grow = request.traits.is_factory or request.op in MAY_GROW
        num_elements = math.prod(max(tracked.spec.numel, 1) for tracked in request.tracked)
        if not may_grow and num_elements <= CONCRETE_INTEGERS:
            return False
        signature = describe_outcome(request, call_on_meta(request)).signature
        if request.op in ALLOCATIONS and signature.outputs[0].is_arithmetic:
            return True
        return not self._has_values(signature)

    def _has_values(self, signature: OpSignature) -> bool:
        return signature.is_view or all(map(self._keeps_values, signature.outputs))

    def _run_on_specs(self, request: OpRequest) -> OpOutcome:
        """Run an operator that needs only the shape or the type of an operand without values.

        If all others have values, a tensor without memory of its own takes its place.
        """
        unknown = request.tensors[ONLY_SPEC_MATTERS[request.op]]
        results = tensors_of_result(call_on_meta(request))
        specs = tuple(map(request.table.spec_of, results))
        for tensor, tracked in zip(request.tensors, request.tracked, strict=True):
            if tensor is not unknown and not tracked.is_concrete:
                return self._run_on_shapes(request)
        if any(spec.is_arithmetic or not self._keeps_values(spec) for spec in specs):
            return self._run_on_shapes(request)
        outcome = describe_outcome(request, call_on_spec(request))
        self._remember(request, outcome, call_on_spec)
        return outcome

    # -- writes ----------------------------------------------------------------------------------

    def _make_writable(self, request: OpRequest) -> None:
        """Prepare a write.

        Nothing of the user's may change, and what meets unknown values becomes unknown itself.
        """
        written = request.written_tensors()
        known: list[Tensor] = []
        if not can_run_on_values(request):
            known = [each for each in written if request.knows(each)]
        for tensor in known:
            request.table.forget_values(tensor)
        if protect_foreign(request) or known:
            request.look_up()

    def _keeps_values(self, spec: TensorSpec) -> bool:
        return spec.numel <= (self.largest_floats if spec.is_arithmetic else CONCRETE_INTEGERS)

    def _remember(self, request: OpRequest, outcome: OpOutcome, make: Maker) -> None:
        alias_of = tuple(outcome.alias_of)
        self._plans[request.key] = _Plan(outcome.signature, alias_of, make, outcome.assumed)
