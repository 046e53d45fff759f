"""Calls of an operator on the values of its operands, or on meta tensors in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.recording.bookkeeping.tensor_layouts import meta_tensor
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.layouts import Rule
from torchscan.recording.execution.operand_checks import check
from torchscan.recording.execution.reads import ONLY_SPEC_MATTERS, READ_INTEGERS, is_mask
from torchscan.recording.execution.shape_rules import SHAPE_RULES
from torchscan.torch_versions import aten, share_memory
from torchscan.trace.kernel_operators import KERNELS

META, CPU = torch.device("meta"), torch.device("cpu")
#: namespaces of torch's own operators
_OF_TORCH = frozenset({"aten", "prims"})


def can_run_on_values(request: OpRequest) -> bool:
    """Return whether all operands have values, and the operator has a kernel for them."""
    if not all(tracked.is_concrete for tracked in request.tracked):
        return False
    return request.traits.has_cpu_kernel and request.op.namespace != KERNELS


def may_require_gpu(request: OpRequest) -> bool:
    """Return whether an operator's kernel may refuse tensors on the CPU.

    That of a package is often registered for all devices and launches a kernel of GPUs.
    """
    return request.op.namespace not in _OF_TORCH


def call_on_cpu(request: OpRequest) -> Any:
    """Return the result on the values of the operands."""
    # A model may keep the result, and train with it.
    with torch.inference_mode(False), torch.no_grad():
        if request.op is not aten.histc.default:
            return request.call(device=CPU)
        # Counts tokens per expert; on integers it exists for GPUs only.
        counts = request.call(lambda tensor: request.operand(tensor).double())
        return counts.to(request.tracked[0].spec.dtype)


def call_on_spec(request: OpRequest) -> Any:
    """Run a call with a tensor of one element in memory in place of the unknown operand."""
    unknown = request.tensors[ONLY_SPEC_MATTERS[request.op]]

    def to_known(tensor: Tensor) -> Tensor:
        if tensor is unknown:
            return torch.empty((), dtype=tensor.dtype).expand(tensor.shape)
        return request.operand(tensor)

    return request.call(to_known, CPU)


def call_on_meta(request: OpRequest) -> Any:
    """Return the result on meta tensors: by a rule, or by torch's own shape function."""
    keep_integers = request.op in READ_INTEGERS
    #: the operands with values, each with the meta tensor in its place
    replaced: list[tuple[Tensor, Tensor]] = []

    def to_meta(tensor: Tensor) -> Tensor:
        tracked = request.table.find(tensor)
        if not tracked.is_concrete:
            return tensor if tracked.proxy is None else tracked.proxy
        if keep_integers and not tracked.spec.is_arithmetic:
            return tensor
        substitute = meta_tensor(tracked.spec)
        replaced.append((request.operand(tensor), substitute))
        return substitute

    check(request)
    rule = SHAPE_RULES.get(request.op)
    try:
        result = None if rule is None else _apply_rule(rule, request, to_meta)
        if type(result) is tuple and not result:  # an operator that returns nothing
            return None
        if result is None:
            result = request.call(to_meta, META)
        return _with_known_views(result, replaced) if replaced else result
    except NotImplementedError as error:
        raise NeedsValuesError(f"{request.op} cannot run on meta tensors: {error}") from error


def _apply_rule(rule: Rule, request: OpRequest, to_meta: Callable[[Tensor], Tensor]) -> Any:
    if request.has_proxy or any(tracked.is_concrete for tracked in request.tracked):
        return request.call(to_meta, op=rule)
    return rule(*request.args, **request.kwargs)


def _with_known_views(result: Any, replaced: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Return a result with views of the operands instead of views of their substitutes."""
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


def masks_to_indices(request: OpRequest) -> None:
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


def assumed_number(tensor: Tensor) -> float | int | bool:
    """Return 1, the value that an optimizer reads when it asks for an unknown number."""
    return torch.ones((), dtype=tensor.dtype).item()
