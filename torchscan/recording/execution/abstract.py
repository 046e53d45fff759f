"""Running operators on shapes alone.

Floating-point tensors are meta tensors: they have no data. Integers and booleans of moderate size keep
their values, because position ids, masks and routing indices decide what a model does next; so do small floating-point
tensors that were given as arguments, and those computed from nothing but known values. Parameters never do.

What an operator makes of given specs is worked out once per pass (a *plan*): torch's shape functions take 50 to 700 µs a call,
and models repeat themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.recording.bookkeeping.tensors import (
    CONCRETE_FLOATS,
    CONCRETE_INTEGERS,
    has_strides,
    kind_of,
    meta_tensor,
)
from torchscan.recording.execution.balanced_routing import (
    BALANCED_INDICES,
    balanced_indices,
    picked_by,
)
from torchscan.recording.execution.calls import (
    Assumed,
    OpOutcome,
    OpRequest,
    describe_outcome,
    protect_foreign,
    tensors_of_result,
)
from torchscan.recording.execution.layouts import Rule
from torchscan.recording.execution.norm_rules import SAVING_STATISTICS, statistics_on_cpu
from torchscan.recording.execution.operand_checks import check
from torchscan.recording.execution.reads import ONLY_SPEC_MATTERS, READ_INTEGERS, is_mask
from torchscan.recording.execution.shape_rules import SHAPE_RULES
from torchscan.torch_versions import aten, share_memory
from torchscan.trace.events import OpSignature, TensorKind, TensorSpec

_META, _CPU = torch.device("meta"), torch.device("cpu")

#: operators whose result has no values yet
_ALLOCATIONS = frozenset({aten.empty.memory_format, aten.empty_strided.default})


#: operators whose result can be larger than all their operands together
_MAY_GROW = frozenset(
    {
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
        aten.new_empty.default,
        aten.repeat.default,
    }
    | {aten.tile.default, aten.pad.default, aten.constant_pad_nd.default}
    | {aten.repeat_interleave.self_int}
)


class _Plan(NamedTuple):
    """The plan for calls with a given key."""

    signature: OpSignature
    alias_of: tuple[int | None, ...]
    make: Callable[[OpRequest], Any]
    assumed: Assumed | None = None


class AbstractExecution:
    """Runs operators on specs, and on values where they are known: see the top of this file."""

    def __init__(self, largest_floats: int, device_type: str) -> None:
        self._largest_floats = largest_floats
        self._device_type = device_type
        self._assumes_numbers = False
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def begin_optimizer(self) -> None:
        """Autograd is done, so known floats may keep their values; a number that an optimizer asks for is taken to be 1."""
        self._largest_floats = CONCRETE_FLOATS
        self._assumes_numbers = True

    def needs_proxy(self, tensor: Tensor, spec: TensorSpec, kind: TensorKind) -> bool:
        """True for all but moderately sized integers, and small constants, on the CPU."""
        if tensor.is_meta:
            return False
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise NeedsValuesError(
                f"a {kind_of(tensor)} tensor has no counterpart on the meta device"
            )
        unknown = spec.is_arithmetic and kind not in ("constant", "optimizer state")
        return tensor.device.type != "cpu" or unknown or not self._keeps_values(spec)

    def run(self, request: OpRequest) -> OpOutcome:
        """Run one operator: as planned, if a call like this one was seen before."""
        if request.traits.written:
            self._make_writable(request)
        plan = self._plans.get(request.key)
        if plan is None:
            return self._run_first_time(request)
        result = plan.make(request)
        outputs = (result,) if type(result) is Tensor else tensors_of_result(result)
        return OpOutcome(result, plan.signature, outputs, plan.alias_of, plan.assumed)

    def _run_first_time(self, request: OpRequest) -> OpOutcome:
        if all(tracked.is_concrete for tracked in request.tracked):
            return self._run_on_values(request)
        if request.op in ONLY_SPEC_MATTERS:
            outcome = self._run_on_specs(request)
            if outcome is not None:
                return outcome
        if request.op is aten.index.Tensor and any(map(is_mask, request.args[1])):
            return self._run_with_masks(request)
        if self._assumes_numbers and request.op is aten._local_scalar_dense.default:
            return describe_outcome(request, assumed_number(request.tensors[0]))
        if request.traits.needs_values and request.op is not aten.index.Tensor:
            raise NeedsValuesError(f"{request.op} needs values that depend on the data")
        return self._run_on_shapes(request)

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _run_on_shapes(self, request: OpRequest) -> OpOutcome:
        result = _on_meta(request)
        if self._device_type == "cpu" and request.op in SAVING_STATISTICS:
            result = statistics_on_cpu(
                result, *(request.args[place] for place in SAVING_STATISTICS[request.op])
            )
        outcome = describe_outcome(request, result)
        if request.traits.written:
            return self._after_write(request, outcome)
        if request.op in BALANCED_INDICES:
            return self._with_balanced_indices(request, outcome)
        if request.op in READ_INTEGERS:  # other values of the same shape give other shapes
            return outcome
        if not any(position is not None for position in outcome.alias_of) and _is_rebuildable(
            result
        ):
            make = (
                _rebuilder(result, outcome.signature.outputs)
                if all(map(_fills_its_memory, outcome.outputs))
                else _on_meta
            )
            self._remember(request, outcome, make)
        elif all(position is not None for position in outcome.alias_of):
            self._remember(request, outcome, _view_again(request, outcome) or _on_meta)
        return outcome

    def _after_write(self, request: OpRequest, outcome: OpOutcome) -> OpOutcome:
        """There is no data to write, so once it is known that the specs stay as they are, the work can be left out."""
        position = self._only_written(request, outcome)
        if position is not None:
            self._remember(request, outcome, lambda again: again.operand(again.tensors[position]))
        return outcome

    def _only_written(self, request: OpRequest, outcome: OpOutcome) -> int | None:
        """The position of the operand that is written to and returned, if there is one such, and its spec stays as it is."""
        written = request.written_tensors()
        kept = all(
            request.table.find(tensor).spec is request.table.spec_of(request.operand(tensor))
            for tensor in written
        )
        if not kept or len(written) != 1 or not isinstance(outcome.result, Tensor):
            return None
        return next(index for index, tensor in enumerate(request.tensors) if tensor is written[0])

    def _with_balanced_indices(self, request: OpRequest, outcome: OpOutcome) -> OpOutcome:
        make = balanced_indices(request, outcome.signature.outputs)
        if make is None:
            return outcome
        rebuild = _rebuilder(outcome.result, outcome.signature.outputs)
        result = make(outcome.result)
        outcome = outcome._replace(
            result=result, outputs=tensors_of_result(result), assumed=picked_by(request)
        )
        self._remember(request, outcome, lambda again: make(rebuild(again)))
        return outcome

    def _run_with_masks(self, request: OpRequest) -> OpOutcome:
        """``x[mask]`` with a known mask has a known shape; it is recorded with its mask all the same."""
        masks = request.args
        _masks_to_indices(request)
        outcome = self._run_on_shapes(request)
        request.args = masks
        request.look_up()
        signature = outcome.signature
        return outcome._replace(signature=request.describe(signature.outputs, signature.is_view))

    # -- values ------------------------------------------------------------------------------------------------------

    def _run_on_values(self, request: OpRequest) -> OpOutcome:
        """All operands have values. Keep computing with them, unless the result is large or full of fractions."""
        if request.traits.needs_values or request.traits.written:
            outcome = describe_outcome(request, _on_cpu(request))
            if not request.traits.needs_values and self._only_written(request, outcome) is not None:
                self._remember(request, outcome, _on_cpu)
            return outcome
        sizes = math.prod(max(tracked.spec.numel, 1) for tracked in request.tracked)
        if request.traits.is_factory or request.op in _MAY_GROW or sizes > CONCRETE_INTEGERS:
            shapes = describe_outcome(request, _on_meta(request))
            unset = request.op in _ALLOCATIONS and shapes.signature.outputs[0].is_arithmetic
            if unset or not (
                shapes.signature.is_view or all(map(self._keeps_values, shapes.signature.outputs))
            ):
                return self._run_on_shapes(request)
        try:
            outcome = describe_outcome(request, _on_cpu(request))
        except Exception:
            is_about_values = request.op is aten._linalg_check_errors.default
            if not (
                is_about_values or any(tracked.spec.is_arithmetic for tracked in request.tracked)
            ):
                raise
            return self._run_on_shapes(request)  # a singular matrix, say, does not matter here
        if outcome.signature.is_view or all(map(self._keeps_values, outcome.signature.outputs)):
            if request.op not in READ_INTEGERS:  # other values of the same shape give other shapes
                self._remember(request, outcome, _on_cpu)
            return outcome
        return self._run_on_shapes(request)

    def _run_on_specs(self, request: OpRequest) -> OpOutcome | None:
        """The unknown operand only says how large or of which type: put one without memory of its own in its place."""
        unknown = request.tensors[ONLY_SPEC_MATTERS[request.op]]
        others = [
            tracked
            for tensor, tracked in zip(request.tensors, request.tracked, strict=True)
            if tensor is not unknown
        ]
        specs = tuple(
            request.table.spec_of(tensor) for tensor in tensors_of_result(_on_meta(request))
        )
        if not all(tracked.is_concrete for tracked in others):
            return None
        if any(spec.is_arithmetic or not self._keeps_values(spec) for spec in specs):
            return None

        def on_spec(again: OpRequest) -> Any:
            unknown = again.tensors[ONLY_SPEC_MATTERS[again.op]]
            return again.call(
                lambda tensor: _unset(tensor) if tensor is unknown else again.operand(tensor), _CPU
            )

        outcome = describe_outcome(request, on_spec(request))
        self._remember(request, outcome, on_spec)
        return outcome

    # -- writes ------------------------------------------------------------------------------------------------------

    def _make_writable(self, request: OpRequest) -> None:
        """Before a write: nothing of the user's may change, and what meets unknown values becomes unknown itself."""
        written = request.written_tensors()
        known = (
            []
            if all(each.is_concrete for each in request.tracked)
            else [each for each in written if request.knows(each)]
        )
        for tensor in known:
            request.table.forget_values(tensor)
        if protect_foreign(request) or known:
            request.look_up()

    def _keeps_values(self, spec: TensorSpec) -> bool:
        return spec.numel <= (self._largest_floats if spec.is_arithmetic else CONCRETE_INTEGERS)

    def _remember(
        self, request: OpRequest, outcome: OpOutcome, make: Callable[[OpRequest], Any]
    ) -> None:
        self._plans[request.key] = _Plan(
            outcome.signature, tuple(outcome.alias_of), make, outcome.assumed
        )


def assumed_number(tensor: Tensor) -> float | int | bool:
    """Return 1, the value that an optimizer reads when it asks for an unknown number."""
    return torch.ones((), dtype=tensor.dtype).item()


def _unset(tensor: Tensor) -> Tensor:
    """A tensor of this shape and type on the CPU, with memory for one element."""
    return torch.empty((), dtype=tensor.dtype).expand(tensor.shape)


def _on_cpu(request: OpRequest) -> Any:
    with (
        torch.inference_mode(False),
        torch.no_grad(),
    ):  # a model may keep the result, and train with it
        return _on_cpu_itself(request)


def _on_cpu_itself(request: OpRequest) -> Any:
    if (
        request.op is aten.histc.default
    ):  # counts tokens per expert; on integers it exists for GPUs only
        return request.call(lambda tensor: request.operand(tensor).double()).to(
            request.tracked[0].spec.dtype
        )
    return request.call(device=_CPU)


def _on_meta(request: OpRequest) -> Any:
    """Let torch's own shape function work it out."""
    keep_integers = request.op in READ_INTEGERS

    #: the operands with values, each with the meta tensor in its place
    replaced: list[tuple[Tensor, Tensor]] = []

    def to_meta(tensor: Tensor) -> Tensor:
        tracked = request.table.find(tensor)
        if not tracked.is_concrete:
            return tensor if tracked.proxy is None else tracked.proxy
        if keep_integers and not tracked.spec.is_arithmetic:
            return tensor
        replaced.append((request.operand(tensor), meta_tensor(tracked.spec)))
        return replaced[-1][1]

    check(request)
    rule = SHAPE_RULES.get(request.op)
    try:
        result = None if rule is None else _ruled(rule, request, to_meta)
        if type(result) is tuple and not result:  # an operator that returns nothing
            return None
        if result is None:
            result = request.call(to_meta, _META)
        return _with_known_views(result, replaced) if replaced else result
    except NotImplementedError as error:
        raise NeedsValuesError(f"{request.op} cannot run on meta tensors: {error}") from error


def _with_known_views(result: Any, replaced: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Return what an operator returned, with views of the operands themselves where it has views of their substitutes."""
    if type(result) in (list, tuple):
        return type(result)(_with_known_views(each, replaced) for each in result)
    if not isinstance(result, Tensor):
        return result
    for operand, substitute in replaced:
        if result is substitute:
            return operand
        if share_memory(result, substitute) and result.dtype is operand.dtype:
            offset = operand.storage_offset() + result.storage_offset()
            with torch.inference_mode(False), torch.no_grad():
                return operand.as_strided(result.shape, result.stride(), offset)
    return result


def _ruled(rule: Rule, request: OpRequest, to_meta: Callable[[Tensor], Tensor]) -> Any:
    if request.has_proxy or any(tracked.is_concrete for tracked in request.tracked):
        return request.call(to_meta, op=rule)
    return rule(*request.args, **request.kwargs)


def _masks_to_indices(request: OpRequest) -> None:
    """Index with the positions where a mask is true."""
    source, indices = request.args
    expanded: list[Tensor | None] = []
    for index in indices:
        if index is None or not is_mask(index):
            expanded.append(index)
        elif request.table.find(index).is_concrete:
            expanded.extend(request.operand(index).nonzero(as_tuple=True))
        else:
            raise NeedsValuesError(
                "indexing with a mask needs its values, which depend on the data"
            )
    request.args = (source, expanded)
    request.look_up()


def _fills_its_memory(tensor: Tensor) -> bool:
    return (
        tensor.untyped_storage().nbytes() <= tensor.nbytes
        or 0 in tensor.stride()
        or not tensor.is_contiguous()
    )


def _view_again(request: OpRequest, outcome: OpOutcome) -> Callable[[OpRequest], Any] | None:
    """A function that looks into an operand once more as this call did, if its result is one such view, or the operand."""
    position, result = outcome.alias_of[0] if outcome.alias_of else None, outcome.result
    if (
        position is None or type(result) is not Tensor or request.op is aten.detach.default
    ):  # which autograd calls for itself
        return None
    operand, spec = request.operand(request.tensors[position]), outcome.signature.outputs[0]
    if result is operand:
        return lambda again: again.operand(again.tensors[position])
    if (
        result.dtype is not operand.dtype
        or result.is_complex()
        or not (has_strides(operand) and has_strides(result))
    ):
        return None
    shape, stride, further = (
        spec.shape,
        spec.stride,
        result.storage_offset() - operand.storage_offset(),
    )

    def make(again: OpRequest) -> Tensor:
        looked_into = again.operand(again.tensors[position])
        return looked_into.as_strided(shape, stride, looked_into.storage_offset() + further)

    return make


def _is_rebuildable(result: Any) -> bool:
    return isinstance(result, Tensor) or (
        type(result) in (list, tuple) and all(isinstance(x, Tensor) for x in result)
    )


def _rebuilder(result: Any, specs: Sequence[TensorSpec]) -> Callable[[OpRequest], Any]:
    """A function that makes what this call returned once more."""
    if isinstance(result, Tensor):
        spec = specs[0]
        shape, stride, dtype = spec.shape, spec.stride, spec.dtype
        return lambda _: torch.empty_strided(shape, stride, dtype=dtype, device=_META)
    container = type(result)
    return lambda _: container([meta_tensor(spec) for spec in specs])
