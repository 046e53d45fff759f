"""Shapes of the results of normalizations, and of their statistics and gradients.

torch works them out step by step, as if it computed them, and imports its compiler on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import FLOATS, is_row_by_row, meta_empty, meta_like
from torchscan.torch_versions import OpOverload, aten


def _batch_norm(source: Tensor, *arguments: Any) -> Tensor | None:
    vectors = [each for each in arguments if isinstance(each, Tensor)]
    if source.dim() < 2 or any(each.shape != source.shape[1:2] for each in vectors):
        return None
    is_training = arguments[4]
    if is_training and source.numel() <= source.shape[1]:
        return None  # statistics need more than one value per channel
    return in_layout_of_images(source) if source.dtype in FLOATS else None


def _native_batch_norm(source: Tensor, *arguments: Any) -> tuple[Tensor, ...] | None:
    """Return the result and its statistics, which are saved in training only.

    torch's own shape function knows nothing of that.
    """
    normalized = _batch_norm(source, *arguments)
    if normalized is None:
        return None
    num_saved, dtype = 0, source.dtype
    if arguments[4]:
        num_saved, dtype = source.shape[1], dtype_of_sums(source)
    return normalized, *(torch.empty(num_saved, dtype=dtype, device="meta") for _ in range(2))


def dtype_of_sums(source: Tensor) -> torch.dtype:
    """Return the type of sums, which have 32 bits at least."""
    return torch.float32 if source.dtype.itemsize == 2 else source.dtype


def in_layout_of_images(source: Tensor) -> Tensor:
    """Return a result with channels last where they are in the source, or row by row."""
    is_last = (
        source.dim() == 4
        and not source.is_contiguous()
        and source.is_contiguous(memory_format=torch.channels_last)
    )
    layout = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty(source.shape, dtype=source.dtype, memory_format=layout, device="meta")


def statistics_on_cpu(
    made: Sequence[Tensor], source: Tensor, weight: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    """Return the statistics that a CPU saves, in the type of the parameters.

    GPUs save 32 bits beside 16.
    """
    normalized, *statistics = made
    dtype = source.dtype if weight is None else weight.dtype
    return normalized, *(meta_like(each, dtype=dtype) for each in statistics)


def group_norm(source: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return results on all devices as on a CPU.

    torch's own shape function knows nothing of that.
    """
    results = aten.native_group_norm(source, *rest)
    return statistics_on_cpu(results, source, *rest)


def group_norm_backward(grad: Tensor, source: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients; that of the source has its type."""
    of_source, *of_affine = aten.native_group_norm_backward(grad, source, *rest)
    if of_source is not None:
        of_source = meta_like(of_source, dtype=source.dtype)
    return of_source, *of_affine


#: normalizations that save statistics in other types on other devices, with the positions of source
#: and weight
SAVING_STATISTICS: Mapping[OpOverload, tuple[int, int]] = {
    aten.native_layer_norm.default: (0, 2),
    aten.native_batch_norm.default: (0, 1),
}


def _layer_norm(source: Tensor, normalized_shape: list[int], *arguments: Any) -> Tensor | None:
    vectors = [each for each in arguments if isinstance(each, Tensor)]
    inner = torch.Size(normalized_shape)
    if not inner or source.shape[source.dim() - len(inner) :] != inner:
        return None
    if any(each.shape != inner for each in vectors) or source.dtype not in FLOATS:
        return None
    return meta_empty(source.shape, source)


def _native_layer_norm(
    source: Tensor, normalized_shape: list[int], *arguments: Any
) -> tuple[Tensor, ...] | None:
    """Return the result, and a mean and a deviation for each row."""
    if not is_row_by_row(source):
        return None
    normalized = _layer_norm(source, normalized_shape, *arguments)
    if normalized is None:
        return None
    num_outer = source.dim() - len(normalized_shape)
    rows = (*source.shape[:num_outer], *[1] * len(normalized_shape))
    dtype = dtype_of_sums(source)
    return normalized, *(torch.empty(rows, dtype=dtype, device="meta") for _ in range(2))


def _layer_norm_backward(
    grad: Tensor,
    source: Tensor,
    _shape: Any,
    _mean: Any,
    _deviation: Any,
    weight: Any,
    bias: Any,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:
    """Return the gradients that are wanted, and None for the others."""
    if not is_row_by_row(grad) or not is_row_by_row(source):
        return None
    if source.dtype not in FLOATS or grad.shape != source.shape:
        return None
    gradients: list[Tensor | None] = []
    for operand, is_wanted in zip((source, weight, bias), wanted, strict=True):
        has_gradient = is_wanted and operand is not None
        gradients.append(meta_empty(operand.shape, operand) if has_gradient else None)
    return tuple(gradients)


def batch_norm_backward(
    _grad: Tensor, source: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients that are wanted, and None for the others."""
    of_source, *of_affine = rest[-1]
    gradient = in_layout_of_images(source) if of_source else None
    if weight is None:
        return gradient, None, None
    gradients = [gradient]
    for is_wanted in of_affine:
        of_parameter = None
        if is_wanted:
            of_parameter = meta_like(weight)
        gradients.append(of_parameter)
    return tuple(gradients)


def _weight_norm(direction: Tensor, magnitude: Tensor, *_dim: int) -> tuple[Tensor, ...] | None:
    """Return the weight, and the norms, which kernels keep in 32 bits beside float16."""
    if magnitude.dtype is not torch.float16 or not direction.is_contiguous():
        return None
    norms = torch.empty_strided(
        magnitude.shape, magnitude.stride(), dtype=torch.float32, device="meta"
    )
    return meta_empty(direction.shape, direction), norms


NORM_RULES: Mapping[OpOverload, Callable[..., Any]] = {
    aten.batch_norm.default: _batch_norm,
    aten.native_batch_norm.default: _native_batch_norm,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.layer_norm.default: _layer_norm,
    aten.native_layer_norm.default: _native_layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._weight_norm_interface.default: _weight_norm,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
}
