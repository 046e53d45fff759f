"""Kernels that stream through memory: pointwise operators, normalization, resizing, sorting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from torchscan.analyses.roofline.constants import (
    BATCH_NORM,
    BATCH_NORM_BACKWARD,
    BYTES_OF_LIST,
    BYTES_OF_LISTS,
    CYCLES_OF_AVERAGE,
    CYCLES_OF_GATHERING,
    CYCLES_OF_INTERPOLATION,
    CYCLES_OF_JOINING,
    CYCLES_OF_MOMENTS,
    CYCLES_OF_SCATTERING,
    CYCLES_OF_STATE_IN_8_BITS,
    CYCLES_OF_SUMMING,
    HOST_LOOP,
    LAUNCHES_OF_SORTED_SCATTERING,
    LIST_LENGTH,
    REORDERING,
    SCATTERING,
    SERIAL_THREADS,
    SERIAL_TURN,
    STREAMING,
    UNSORTED_POSITIONS,
)
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.analyses.roofline.kernels.operand_layouts import is_reordering, loads_elements
from torchscan.ops import OpCost
from torchscan.torch_versions import GATHERS_VECTORS
from torchscan.trace.events import OpSignature, TensorSpec


def any_streaming(signature: OpSignature, cost: OpCost, machine: Machine) -> Kernel:
    """Return the kernel of operators without a rule, which read and write each element once.

    Lists are processed several tensors at a time.
    """
    num_tensors = 1
    cycles = 0.0
    if signature.operator.startswith(("aten._foreach", "aten._fused")):
        num_tensors = sum(1 for _ in _specs(signature.args[:1]))
        cycles = _cycles_of_lists(signature, cost)
    if loads_elements(signature):
        cycles = signature.outputs[0].numel * machine.cycles_of_element
    rate = REORDERING if is_reordering(signature) else STREAMING
    launches = max(1, math.ceil(num_tensors / LIST_LENGTH))
    return Kernel(traffic=rate, cycles=cycles, launches=launches)


@rule("torchscan::optimizer_update_8bit_blockwise")
def update_in_8_bits(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Return a kernel that looks each state up in a table, and searches it there to store it.

    The table has 256 values.
    """
    _name, gradient, _parameter, state1, state2, *_scales = signature.args
    num_states = sum(isinstance(state, TensorSpec) for state in (state1, state2))
    return Kernel(cycles=CYCLES_OF_STATE_IN_8_BITS * num_states * gradient.numel)


def _cycles_of_lists(signature: OpSignature, cost: OpCost) -> float:
    """Return the cycles of a kernel for lists of tensors in 16 bits.

    A thread loads four elements of each list at a time, and few bytes are on their way.
    """
    given = [each for each in signature.args if isinstance(each, tuple)]
    firsts = [spec for each in given for spec in itertools.islice(_specs(each), 1)]
    if not firsts or any(first.dtype.itemsize != 2 for first in firsts):
        return 0.0
    per_cycle = BYTES_OF_LISTS if len(firsts) > 1 else BYTES_OF_LIST
    return (cost.min_bytes_read + cost.bytes_written) / per_cycle


def _specs(values: Any) -> Iterator[TensorSpec]:
    for value in values:
        if isinstance(value, TensorSpec):
            yield value
        elif isinstance(value, tuple):
            yield from _specs(value)


@rule(
    "native_group_norm",
    "native_group_norm_backward",
    "native_batch_norm_backward",
    "cudnn_batch_norm_backward",
)
def _statistics(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that reads the input for the statistics, and once more.

    Batch norms go through it channel by channel.
    """
    again = sum(spec.stored_bytes for spec in signature.distinct_inputs if len(spec.shape) > 1)
    if signature.operator == "aten.native_group_norm":
        count = signature.inputs[0].numel
        return Kernel(
            cycles=count * machine.cycles_of_element,
            more_bytes=again,
            more_cycles=count * CYCLES_OF_MOMENTS,
            launches=2,
        )
    slower = 1.0
    if "batch_norm" in signature.operator and 1 not in signature.inputs[0].stride[1:2]:
        slower = BATCH_NORM_BACKWARD if signature.operator.endswith("backward") else BATCH_NORM
    return Kernel(traffic=STREAMING / slower, more_bytes=slower * again, launches=2)


@rule(
    "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"
)
def _batch_norm(signature: OpSignature, cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that makes another pass over the data for statistics of the batch."""
    if not signature.arguments.get("training", True):
        return Kernel()
    return _statistics(signature, cost, machine)


@rule("cat", "stack")
def _joining(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(cycles=signature.outputs[0].numel * CYCLES_OF_JOINING)


@rule("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d")
@rule("avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward")
def _average(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    places = max(spec.numel for spec in (*signature.inputs, *signature.outputs))
    return Kernel(cycles=places * CYCLES_OF_AVERAGE)


_INTERPOLATED = (
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
#: of these, the ones whose kernels loop over samples and channels
_LOOPING = ("aten.upsample_bilinear2d", "aten.upsample_bicubic2d", "aten.upsample_trilinear3d")


@rule(*_INTERPOLATED, "grid_sampler_2d", "grid_sampler_3d")
@rule(*(f"{name}_backward" for name in _INTERPOLATED))
def _interpolation(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel with one thread for each place of the result.

    It goes through samples and channels, unless channels are innermost.
    """
    out = signature.outputs[0]
    cycles = out.numel * CYCLES_OF_INTERPOLATION
    if signature.operator not in _LOOPING or 1 in signature.inputs[0].stride[1:2]:
        return Kernel(cycles=cycles)
    num_places = math.prod(out.shape[2:])
    turns = math.prod(out.shape[:2])
    rounds = max(1, math.ceil(num_places / (machine.multiprocessors * SERIAL_THREADS)))
    return Kernel(cycles=cycles, alone=turns * rounds * SERIAL_TURN)


@rule("im2col")
def _im2col(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(alone=signature.inputs[0].shape[0] * HOST_LOOP)


@rule("index_put_", "_index_put_impl_", "scatter_add_", "index_add_")
def _scattering(_signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(traffic=SCATTERING)


@rule("index_put", "scatter_add", "index_add")
def _copying_and_scattering(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Return a kernel that copies, and reads and writes some of the elements again."""
    target, source = signature.inputs[0], signature.inputs[-1]
    scattered = 2 * source.numel * target.dtype.itemsize
    return Kernel(more_bytes=scattered * STREAMING / SCATTERING, launches=2)


@rule("slice_backward", "select_backward")
def _padding(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that fills with zeros, and copies the gradient into them."""
    gradient = signature.inputs[0]
    cycles = gradient.numel * machine.cycles_of_element
    return Kernel(cycles=cycles, more_bytes=gradient.stored_bytes, launches=2)


@rule("embedding", "index_select")
def _gathering(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Return a kernel that picks rows. Older versions of torch divide to find an element's row."""
    if GATHERS_VECTORS:
        return Kernel()
    return Kernel(cycles=signature.outputs[0].numel * CYCLES_OF_GATHERING)


@rule("embedding_dense_backward")
def _sorted_scattering(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel that adds gradients to zeros.

    If there are many positions, they are sorted, and gradients at equal ones are added first.
    Positions are assumed to be random.
    """
    gradients, positions = signature.inputs[:2]
    count = positions.numel
    if count <= UNSORTED_POSITIONS:
        return Kernel(launches=2)
    rows, *columns = signature.outputs[0].shape
    width = math.prod(columns)
    distinct = rows * -math.expm1(-count / rows)
    cycles = distinct * width * CYCLES_OF_SCATTERING + gradients.numel * CYCLES_OF_SUMMING
    seconds = machine.seconds(cycles) / machine.multiprocessors
    return Kernel(alone=seconds, launches=LAUNCHES_OF_SORTED_SCATTERING)


@rule("sort", "topk", "argsort")
def _sorting(signature: OpSignature, cost: OpCost, _machine: Machine) -> Kernel:
    """Return a kernel that sorts digit by digit; each digit reads and writes everything again."""
    passes = signature.inputs[0].dtype.itemsize * 2
    bytes_of_pass = cost.bytes_read + cost.bytes_written
    return Kernel(more_bytes=(passes - 1) * bytes_of_pass, launches=passes)
