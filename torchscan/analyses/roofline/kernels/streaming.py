"""Everything that goes through memory: pointwise operators, normalisations, resizing, sorting."""

from __future__ import annotations

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
    """Operators without a rule: each element is read and written once; lists are processed several tensors at a time."""
    takes_lists = signature.operator.startswith(("aten._foreach", "aten._fused"))
    lists = sum(1 for _ in _specs(signature.args[:1])) if takes_lists else 1
    rate = REORDERING if is_reordering(signature) else STREAMING
    cycles = _cycles_of_lists(signature, cost) if takes_lists else 0.0
    if loads_elements(signature):
        cycles = signature.outputs[0].numel * machine.cycles_of_element
    launches = max(1, math.ceil(lists / LIST_LENGTH))
    return Kernel(traffic=rate, cycles=cycles, launches=launches)


@rule("torchscan::optimizer_update_8bit_blockwise")
def update_in_8_bits(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Each state is looked up in a table of 256 values, and searched in it to be stored."""
    _name, gradient, _parameter, state1, state2, *_scales = signature.args
    num_states = sum(isinstance(state, TensorSpec) for state in (state1, state2))
    return Kernel(cycles=CYCLES_OF_STATE_IN_8_BITS * num_states * gradient.numel)


def _cycles_of_lists(signature: OpSignature, cost: OpCost) -> float:
    """Return the cycles of a kernel for lists of tensors in 16 bits.

    A thread loads four elements of each list at a time, and few bytes are on their way.
    """
    given = [each for each in signature.args if isinstance(each, tuple)]
    lists = [first for first in (next(_specs(each), None) for each in given) if first is not None]
    if not lists or any(first.dtype.itemsize != 2 for first in lists):
        return 0.0
    per_cycle = BYTES_OF_LISTS if len(lists) > 1 else BYTES_OF_LIST
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
    """The input is read once for the statistics, and once more; batch norms go through it channel by channel."""
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
def _batch_norm(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Statistics of the batch take another pass over the data."""
    of_batch = signature.arguments.get("training", True)
    return _statistics(signature, _cost, _machine) if of_batch else Kernel()


@rule("cat", "stack")
def _joining(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(cycles=signature.outputs[0].numel * CYCLES_OF_JOINING)


@rule(
    *(
        f"{name}{back}"
        for name in ("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d")
        for back in ("", "_backward")
    ),
)
def _average(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    places = max(spec.numel for spec in (*signature.inputs, *signature.outputs))
    return Kernel(cycles=places * CYCLES_OF_AVERAGE)


_INTERPOLATED = [
    f"upsample_{way}"
    for way in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d", "nearest1d", "nearest2d")
]
_INTERPOLATED += [
    "upsample_nearest3d",
    "_upsample_nearest_exact2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
]


@rule(
    *(f"{way}{back}" for way in _INTERPOLATED for back in ("", "_backward")),
    "grid_sampler_2d",
    "grid_sampler_3d",
)
def _interpolation(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """One thread for each place of the result goes through samples and channels, unless these are innermost."""
    out = signature.outputs[0]
    loops = signature.operator.removeprefix("aten.") in {
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "upsample_trilinear3d",
    }
    if not loops or 1 in signature.inputs[0].stride[1:2]:
        return Kernel(cycles=out.numel * CYCLES_OF_INTERPOLATION)
    places, turns = math.prod(out.shape[2:]), math.prod(out.shape[:2])
    rounds = max(1, math.ceil(places / (machine.multiprocessors * SERIAL_THREADS)))
    return Kernel(cycles=out.numel * CYCLES_OF_INTERPOLATION, alone=turns * rounds * SERIAL_TURN)


@rule("im2col")
def _unfolded(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(alone=signature.inputs[0].shape[0] * HOST_LOOP)


@rule("index_put_", "_index_put_impl_", "scatter_add_", "index_add_")
def _scattering(_signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(traffic=SCATTERING)


@rule("index_put", "scatter_add", "index_add")
def _copying_and_scattering(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """A copy, some of whose elements are read and written again."""
    target, source = signature.inputs[0], signature.inputs[-1]
    scattered = 2 * source.numel * target.dtype.itemsize
    return Kernel(more_bytes=scattered * STREAMING / SCATTERING, launches=2)


@rule("slice_backward", "select_backward")
def _padding(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Zeros, into which the gradient is copied."""
    gradient = signature.inputs[0]
    cycles = gradient.numel * machine.cycles_of_element
    return Kernel(cycles=cycles, more_bytes=gradient.stored_bytes, launches=2)


@rule("embedding", "index_select")
def _gathering(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Older versions of torch divide the place of each element to find its row."""
    if GATHERS_VECTORS:
        return Kernel()
    return Kernel(cycles=signature.outputs[0].numel * CYCLES_OF_GATHERING)


@rule("embedding_dense_backward")
def _sorted_scattering(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Zeros, to which gradients are added: many positions are sorted, and equal ones added first.

    Positions are taken to be drawn at random.
    """
    gradients, positions = signature.inputs[:2]
    count, result = positions.numel, signature.outputs[0]
    if count <= UNSORTED_POSITIONS:
        return Kernel(launches=2)
    rows, width = result.shape[0], math.prod(result.shape[1:])
    distinct = rows * -math.expm1(-count / rows)
    cycles = distinct * width * CYCLES_OF_SCATTERING + gradients.numel * CYCLES_OF_SUMMING
    seconds = machine.seconds(cycles) / machine.multiprocessors
    return Kernel(alone=seconds, launches=LAUNCHES_OF_SORTED_SCATTERING)


@rule("sort", "topk", "argsort")
def _sorting(signature: OpSignature, cost: OpCost, _machine: Machine) -> Kernel:
    """Digit by digit; each digit reads and writes everything again."""
    passes = signature.inputs[0].dtype.itemsize * 2
    return Kernel(more_bytes=(passes - 1) * (cost.bytes_read + cost.bytes_written), launches=passes)
