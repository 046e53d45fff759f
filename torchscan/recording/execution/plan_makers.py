"""Functions that make the result of a call once more, without torch's shape functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.tensor_layouts import has_strides, meta_tensor
from torchscan.recording.execution.calls import OpRequest
from torchscan.recording.execution.meta_calls import META, call_on_meta
from torchscan.recording.execution.outcomes import OpOutcome
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Maker = Callable[[OpRequest], Any]


def make_again(request: OpRequest, outcome: OpOutcome) -> Maker | None:
    """Return a function for calls like this one, or None if some results only are views."""
    result = outcome.result
    parts = result if type(result) in (list, tuple) else (result,)
    is_new = all(position is None for position in outcome.alias_of)
    if is_new and all(isinstance(each, Tensor) for each in parts):
        if all(map(_fills_its_memory, outcome.outputs)):
            return make_results(result, outcome.signature.outputs)
        return call_on_meta
    if None in outcome.alias_of:
        return None
    return _view_again(request, outcome) or call_on_meta


def make_results(result: Any, specs: Sequence[TensorSpec]) -> Maker:
    """Return a function that makes new tensors like those of a result."""
    if isinstance(result, Tensor):
        spec = specs[0]
        shape, stride, dtype = spec.shape, spec.stride, spec.dtype
        return lambda _: torch.empty_strided(shape, stride, dtype=dtype, device=META)
    container = type(result)
    return lambda _: container([meta_tensor(spec) for spec in specs])


def _fills_its_memory(tensor: Tensor) -> bool:
    if tensor.untyped_storage().nbytes() <= tensor.nbytes:
        return True
    return 0 in tensor.stride() or not tensor.is_contiguous()


def _view_again(request: OpRequest, outcome: OpOutcome) -> Maker | None:
    """Return a function that returns the operand, or views it as this call did.

    It is None if the result is neither.
    """
    if not outcome.alias_of or type(outcome.result) is not Tensor:
        return None
    if request.op is aten.detach.default:  # which autograd calls for itself
        return None
    position, result = outcome.alias_of[0], outcome.result
    if position is None:
        return None
    operand = request.operands()[position]
    if result is operand:
        return lambda again: again.operand(again.tensors[position])
    if result.dtype is not operand.dtype or result.is_complex():
        return None
    if not has_strides(operand) or not has_strides(result):
        return None

    spec = outcome.signature.outputs[0]
    shape, stride = spec.shape, spec.stride
    further = result.storage_offset() - operand.storage_offset()

    def make(again: OpRequest) -> Tensor:
        viewed = again.operand(again.tensors[position])
        return viewed.as_strided(shape, stride, viewed.storage_offset() + further)

    return make
