"""Shapes of what normalisations make, and of their statistics and gradients.

torch works them out step by step, as if it computed them, and imports its compiler on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import has_floats, is_row_by_row, meta_empty, meta_like
from torchscan.torch_versions import OpOverload, aten


def _batch_norm(source: Tensor, *arguments: Any) -> Tensor | None:
    vectors = [each for each in arguments if isinstance(each, Tensor)]
    fits = source.dim() > 1 and all(each.shape == source.shape[1:2] for each in vectors)
    fits = fits and (
        not arguments[4] or source.numel() > source.shape[1]
    )  # statistics need more than one value per channel
    return in_layout_of_images(source) if fits and has_floats(source) else None


def _native_batch_norm(source: Tensor, *arguments: Any) -> tuple[Tensor, ...] | None:
    """Without training no statistics are saved, of which torch's own shape function knows nothing."""
    normalised, saved = (
        _batch_norm(source, *arguments),
        source.shape[1] if source.dim() > 1 and arguments[4] else 0,
    )
    if normalised is None:
        return None
    dtype = dtype_of_sums(source) if arguments[4] else source.dtype
    return normalised, *(torch.empty(saved, dtype=dtype, device="meta") for _ in range(2))


def dtype_of_sums(source: Tensor) -> torch.dtype:
    """Sums have 32 bits at least."""
    return torch.float32 if source.dtype.itemsize == 2 else source.dtype


def in_layout_of_images(source: Tensor) -> Tensor:
    """With channels last where they are in the source, or row by row."""
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
    normalised, *statistics = made
    dtype = source.dtype if weight is None else weight.dtype
    return normalised, *(meta_like(each, dtype=dtype) for each in statistics)


def _group_norm(source: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """On all devices as on a CPU, of which torch's own shape function knows nothing."""
    return statistics_on_cpu(aten.native_group_norm(source, *rest), source, *rest)


def _group_norm_backward(grad: Tensor, source: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    """The gradient of the source has its type."""
    of_source, *of_affine = aten.native_group_norm_backward(grad, source, *rest)
    return None if of_source is None else meta_like(of_source, dtype=source.dtype), *of_affine


#: normalisations that save statistics in other types on other devices: where the source is, and where the weight
SAVING_STATISTICS: Mapping[OpOverload, tuple[int, int]] = {
    aten.native_layer_norm.default: (0, 2),
    aten.native_batch_norm.default: (0, 1),
}


def _layer_norm(source: Tensor, normalized_shape: list[int], *arguments: Any) -> Tensor | None:
    vectors = [each for each in arguments if isinstance(each, Tensor)]
    inner = torch.Size(normalized_shape)
    fits = (
        inner
        and source.shape[source.dim() - len(inner) :] == inner
        and all(each.shape == inner for each in vectors)
    )
    return meta_empty(source.shape, source) if fits and has_floats(source) else None


def _native_layer_norm(
    source: Tensor, normalized_shape: list[int], *arguments: Any
) -> tuple[Tensor, ...] | None:
    """And a mean and a deviation for each row."""
    normalised = (
        _layer_norm(source, normalized_shape, *arguments) if is_row_by_row(source) else None
    )
    if normalised is None:
        return None
    kept = source.dim() - len(normalized_shape)
    rows = (*source.shape[:kept], *[1] * len(normalized_shape))
    return normalised, *(
        torch.empty(rows, dtype=dtype_of_sums(source), device="meta") for _ in range(2)
    )


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
    if not (
        is_row_by_row(grad)
        and is_row_by_row(source)
        and has_floats(source)
        and grad.shape == source.shape
    ):
        return None
    made = zip((source, weight, bias), wanted, strict=True)
    return tuple(
        meta_empty(each.shape, each) if asked and each is not None else None for each, asked in made
    )


def _batch_norm_backward(
    _grad: Tensor, source: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients that are wanted, and None for the others."""
    of_source, *of_affine = rest[-1]
    gradient = in_layout_of_images(source) if of_source else None
    if weight is None:
        return gradient, None, None
    return gradient, *(meta_like(weight) if asked else None for asked in of_affine)


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
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.layer_norm.default: _layer_norm,
    aten.native_layer_norm.default: _native_layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._weight_norm_interface.default: _weight_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
