"""Calls of an operator on the values of its operands, or on meta tensors in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.errors import NeedsValuesError
from torchscan.recording.bookkeeping.tensor_layouts import meta_tensor
from torchscan.recording.execution.calls import OpRequest
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

    A kernel of a package is often registered for all devices but launches a GPU kernel.
    """
    return request.op.namespace not in _OF_TORCH


def call_on_cpu(request: OpRequest) -> Any:
    """Return the result on the values of the operands."""
    # A model may keep the result, and train with it.
    with torch.inference_mode(False), torch.no_grad():
        if request.op is not aten.histc.default:
            return request.call(device=CPU)
        # Counts tokens per expert; on integers it exists for GPUs only.
        counts = request.call([each.double() for each in request.operands()])
        return counts.to(request.tracked[0].spec.dtype)


def call_on_spec(request: OpRequest) -> Any:
    """Run a call with a tensor of one element in memory in place of the unknown operand."""
    unknown = request.tensors[ONLY_SPEC_MATTERS[request.op]]
    known = torch.empty((), dtype=unknown.dtype).expand(unknown.shape)
    operands = []
    for tensor, operand in zip(request.tensors, request.operands(), strict=True):
        operands.append(known if tensor is unknown else operand)
    return request.call(operands, CPU)


def call_on_meta(request: OpRequest) -> Any:
    """Return the result on meta tensors: by a rule, or by torch's own shape function."""
    operands, replaced = _operands_on_meta(request)
    check(request)
    rule = SHAPE_RULES.get(request.op)
    try:
        if rule is None:
            result = None
        elif replaced or request.has_proxy:
            result = request.call(operands, op=rule)
        else:
            result = rule(*request.args, **request.kwargs)
        if type(result) is tuple and not result:  # an operator that returns nothing
            return None
        if result is None:
            result = request.call(operands, META)
        return _with_known_views(result, replaced) if replaced else result
    except NotImplementedError as error:
        # pad raises NotImplementedError for a wrong number of dimensions, too
        if request.op is aten.pad.default:
            raise
        raise NeedsValuesError(f"{request.op} cannot run on meta tensors: {error}") from error


def _operands_on_meta(request: OpRequest) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Return the operands without values, and those that had some, each with what replaces it.

    Integers that a shape function reads keep their values.
    """
    keeps_integers = request.op in READ_INTEGERS
    operands: list[Tensor] = []
    replaced: list[tuple[Tensor, Tensor]] = []
    for tensor, tracked in zip(request.tensors, request.tracked, strict=True):
        proxy = tracked.proxy
        operand = tensor if proxy is None else proxy
        if tracked.is_concrete and (tracked.spec.is_arithmetic or not keeps_integers):
            substitute = meta_tensor(tracked.spec)
            replaced.append((operand, substitute))
            operands.append(substitute)
        else:
            operands.append(operand)
    return operands, replaced


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
