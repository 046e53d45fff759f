"""Kernels in which a block of threads takes a row: softmax, layer norm and the loss of rows.

torch's blocks read a row, reduce it, and read it again. What they read again comes from the
first-level cache of the multiprocessor, from the second-level cache or from memory: whichever
holds all rows that blocks work on at a time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchscan.analyses.roofline.constants import (
    CYCLES_OF_ROW,
    FIRST_CACHE,
    LAST_ROW_IN_REGISTERS,
    LOSS_TURN,
    REORDERING,
    RESIDENT_THREADS,
    ROWS_KEPT,
    SHARED_MEMORY,
    STREAMING,
)
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.analyses.roofline.kernels.operand_layouts import is_reordering
from torchscan.ops import OpCost
from torchscan.torch_versions import threads_of_loss
from torchscan.trace.events import OpSignature, TensorSpec

#: threads of a block
_NORM_THREADS, _SOFTMAX_THREADS = 128, 1024


def _with_rows_again(
    kernel: Kernel, machine: Machine, tensors: tuple[TensorSpec, ...], length: int, threads: int
) -> Kernel:
    """Return the kernel with one more pass over tensors, of whose rows each block takes one."""
    size = sum(spec.stored_bytes for spec in tensors)
    rows = tensors[0].numel / max(length, 1)
    resident = min(RESIDENT_THREADS / threads, rows / machine.multiprocessors)
    near = resident * size / max(rows, 1)
    if near <= FIRST_CACHE:
        return kernel
    return _with_bytes_again(kernel, machine, size, held=near * machine.multiprocessors)


def _with_bytes_again(kernel: Kernel, machine: Machine, size: float, *, held: float) -> Kernel:
    """Return the kernel with bytes that it reads again.

    They come from the second-level cache if that holds as many as are used in between.
    """
    if machine.l2_bytes is not None and held <= ROWS_KEPT * machine.l2_bytes:
        return replace(kernel, cached_bytes=kernel.cached_bytes + size)
    return replace(kernel, more_bytes=kernel.more_bytes + size)


# -- softmax -------------------------------------------------------------------------------------


def _is_read_once(rows: TensorSpec, length: int) -> bool:
    """Return whether registers or the shared memory of a block hold a row."""
    return length <= LAST_ROW_IN_REGISTERS or length * rows.dtype.itemsize <= SHARED_MEMORY


def _row_length(signature: OpSignature) -> int | None:
    """Return the length of the rows of a softmax, or None if they are not innermost."""
    source = signature.inputs[0]
    dim = signature.arguments.get("dim")
    if not isinstance(dim, int) or not source.shape:
        return None
    rank = len(source.shape)
    if dim % rank != rank - 1:
        return None
    return source.shape[-1]


@rule("_softmax", "_log_softmax")
def _softmax(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that reads long rows for the maximum, for the sum and for the result."""
    kernel = Kernel()
    length = _row_length(signature)
    source = signature.inputs[0]
    if length is None or _is_read_once(source, length):
        return kernel
    for _ in range(2):
        kernel = _with_rows_again(kernel, machine, (source,), length, _SOFTMAX_THREADS)
    return kernel


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that reads long rows of the gradient for their sum and for the result.

    The gradient of a softmax without a logarithm sums its product with the result.
    """
    kernel = Kernel()
    length = _row_length(signature)
    gradient, result = signature.inputs[:2]
    if length is None or _is_read_once(gradient, length):
        return kernel
    both = _with_rows_again(kernel, machine, (gradient, result), length, _SOFTMAX_THREADS)
    if "log" not in signature.operator:
        return both
    share = gradient.stored_bytes / (gradient.stored_bytes + result.stored_bytes)
    return replace(both, more_bytes=share * both.more_bytes, cached_bytes=share * both.cached_bytes)


# -- layer norm ----------------------------------------------------------------------------------


def _norm_length(signature: OpSignature) -> int:
    return math.prod(next(each for each in signature.args if isinstance(each, tuple)))


def _copied_bytes(signature: OpSignature) -> float:
    """Return the bytes of a copy if operands do not lie row by row."""
    if not is_reordering(signature):
        return 0.0
    return 2 * signature.inputs[0].stored_bytes * STREAMING / REORDERING


@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that reads rows for their statistics and for the result."""
    length = _norm_length(signature)
    source = signature.inputs[0]
    kernel = Kernel(
        cycles=source.numel / max(length, 1) * CYCLES_OF_ROW,
        more_bytes=_copied_bytes(signature),
    )
    return _with_rows_again(kernel, machine, (source,), length, _NORM_THREADS)


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that reads rows twice, for two sums and for the gradient of the input.

    Another goes through columns, for the gradients of the weights.
    """
    length = _norm_length(signature)
    source = signature.inputs[1]
    kernel = Kernel(
        cycles=2 * source.numel / max(length, 1) * CYCLES_OF_ROW,
        more_bytes=_copied_bytes(signature),
        launches=2,
    )
    both = signature.inputs[:2]
    kernel = _with_rows_again(kernel, machine, both, length, _NORM_THREADS)
    if len(signature.outputs) < 2:
        return kernel
    size = sum(spec.stored_bytes for spec in both)
    return _with_bytes_again(kernel, machine, size, held=size)


# -- losses --------------------------------------------------------------------------------------


@rule("nll_loss_forward")
def _loss_of_rows(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Return the kernel of a single block that adds up all rows.

    Each turn waits for an index and for its score.
    """
    is_reduced = signature.arguments.get("reduction") != 0
    if not is_reduced:
        return Kernel()
    rows = signature.inputs[1].numel
    turns = math.ceil(rows / threads_of_loss(rows))
    return Kernel(alone=turns * LOSS_TURN)
