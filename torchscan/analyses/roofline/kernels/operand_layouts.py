"""Layouts of operands: whether a kernel finds them in one order, and loads several at once."""

from __future__ import annotations

import torch

from torchscan.trace.events import OpSignature, TensorSpec

#: pointwise copies, which torch does not tag as pointwise
_COPIES = frozenset({"aten._to_copy", "aten.copy_", "aten.copy", "aten.clone"})


def is_reordering(signature: OpSignature) -> bool:
    """Return whether tensors of the result's shape have different layouts."""
    if not signature.outputs:
        return False
    shape = signature.outputs[0].shape
    orders = set()
    for spec in (*signature.inputs, *signature.outputs):
        if spec.shape == shape and len(spec.stride) == len(shape):
            orders.add(_order(spec))
    return len(orders) > 1


def _order(spec: TensorSpec) -> tuple[int, ...]:
    """Return the dimensions from the outermost to the innermost."""
    dims = []
    for dim, size in enumerate(spec.shape):
        if size > 1 and spec.stride[dim]:
            dims.append((-spec.stride[dim], dim))
    return tuple(dim for _, dim in sorted(dims))


def loads_elements(signature: OpSignature) -> bool:
    """Return whether torch's pointwise kernel loads one element at a time.

    It loads several in one instruction if all operands have the result's type and strides, without
    gaps. A single number may be of any type.
    """
    is_copy = signature.operator in _COPIES
    if not signature.outputs or not (is_copy or torch.Tag.pointwise in signature.op.tags):
        return False
    result = signature.outputs[0]
    source = signature.inputs[-1]  # aten.copy_ has the result first
    is_narrowed = source.dtype == torch.float32 and result.dtype in (torch.float16, torch.bfloat16)
    # torch has kernels of their own for copies that convert 32 to 16 bits
    if is_copy and is_narrowed and _steps(source) == _steps(result) and _is_dense(source):
        return False
    return any(_needs_single_loads(spec, result) for spec in (*signature.inputs, result))


def _needs_single_loads(spec: TensorSpec, result: TensorSpec) -> bool:
    """Return whether an operand differs from the result in type or strides, or has gaps."""
    if spec.numel <= 1 or not spec.dtype.is_floating_point:
        return False
    is_number = result.dtype.is_floating_point
    if is_number and spec.dtype != result.dtype:
        return True
    is_reordered = _steps(spec) != _steps(result)
    return is_reordered or not _is_dense(spec)


def _steps(spec: TensorSpec) -> tuple[tuple[int, int], ...]:
    """Return size and stride of each dimension that has more than one element."""
    pairs = zip(spec.shape, spec.stride, strict=True)
    return tuple((size, step) for size, step in pairs if size > 1)


def _is_dense(spec: TensorSpec) -> bool:
    """Return whether the elements lie next to each other, in any order of dimensions."""
    expected = 1
    for size, step in sorted(_steps(spec), key=lambda pair: pair[1]):
        if step != expected:
            return False
        expected *= size
    return True
