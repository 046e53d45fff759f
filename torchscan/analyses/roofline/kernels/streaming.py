"""Everything that goes through memory: pointwise operators, normalisations, resizing, sorting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torchscan.analyses.roofline.constants import (
    BATCH_NORM,
    BATCH_NORM_BACKWARD,
    CYCLES_OF_AVERAGE,
    CYCLES_OF_INTERPOLATION,
    CYCLES_OF_JOINING,
    CYCLES_OF_ROW,
    HOST_LOOP,
    LIST_LENGTH,
    REORDERING,
    SCATTERING,
    SERIAL_THREADS,
    SERIAL_TURN,
    STREAMING,
)
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature, TensorSpec


def any_streaming(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Operators without a rule: each element is read and written once; lists are processed several tensors at a time."""
    takes_lists = signature.operator.startswith(("aten._foreach", "aten._fused"))
    lists = sum(1 for _ in _specs(signature.args[:1])) if takes_lists else 1
    rate = REORDERING if _is_reordering(signature) else STREAMING
    return Kernel(traffic=rate, launches=max(1, math.ceil(lists / LIST_LENGTH)))


def _specs(values: Any) -> Iterator[TensorSpec]:
    for value in values:
        if isinstance(value, TensorSpec):
            yield value
        elif isinstance(value, tuple):
            yield from _specs(value)


def _is_reordering(signature: OpSignature) -> bool:
    """Return whether tensors of the result's shape have different layouts."""
    if not signature.outputs:
        return False
    shape = signature.outputs[0].shape
    tensors = (*signature.inputs, *signature.outputs)
    alike = [spec for spec in tensors if spec.shape == shape and len(spec.stride) == len(shape)]
    return len(set(map(_order, alike))) > 1


def _order(spec: TensorSpec) -> tuple[int, ...]:
    """The dimensions from the outermost to the innermost."""
    dims = [
        (-step, dim)
        for dim, (size, step) in enumerate(zip(spec.shape, spec.stride, strict=True))
        if size > 1 and step
    ]
    return tuple(dim for _, dim in sorted(dims))


@rule(
    "native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"
)
def _row_norm(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Operands that do not lie row by row are copied first."""
    source = signature.inputs[0]
    length = math.prod(next(each for each in signature.args if isinstance(each, tuple)))
    rows = source.numel / max(length, 1)
    passes = 2 if signature.operator.endswith("backward") else 1
    copied = 2 * source.stored_bytes * STREAMING / REORDERING if _is_reordering(signature) else 0.0
    return Kernel(cycles=passes * rows * CYCLES_OF_ROW, more_bytes=copied, launches=passes)


@rule(
    "native_group_norm",
    "native_group_norm_backward",
    "native_batch_norm_backward",
    "cudnn_batch_norm_backward",
)
def _statistics(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """The input is read once for the statistics, and once more; batch norms go through it channel by channel."""
    again = sum(spec.stored_bytes for spec in signature.distinct_inputs if len(spec.shape) > 1)
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


@rule(
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "scatter_add",
    "scatter_add_",
    "index_add",
    "index_add_",
)
def _scattering(_signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(traffic=SCATTERING)


@rule("embedding_dense_backward")
def _sorted_scattering(_signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Positions are sorted first."""
    return Kernel(traffic=SCATTERING, launches=4)


@rule("sort", "topk", "argsort")
def _sorting(signature: OpSignature, cost: OpCost, _machine: Machine) -> Kernel:
    """Digit by digit; each digit reads and writes everything again."""
    passes = signature.inputs[0].dtype.itemsize * 2
    return Kernel(more_bytes=(passes - 1) * (cost.bytes_read + cost.bytes_written), launches=passes)
