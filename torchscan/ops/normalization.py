"""Normalization layers.

Per element: subtract the mean and multiply by the inverse deviation; statistics cost extra.

The single division of a mean or a variance by its count is neglected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import Output, first_output, per_input
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of(aten.batch_norm)
def batch_norm(
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    training: bool,
    *_: object,
    out: TensorSpec,
) -> Work:
    """Eval: 2 per element, 2 per channel (add eps, inverse root), 2 more per element if affine.

    Training: 4 more per element for the statistics, 6 per channel to update the running statistics.
    """
    channels = input.shape[1] if len(input.shape) > 1 else 0  # there may be no channels
    flops = 2 * input.numel + 2 * channels
    flops += _affine(input, weight, bias)
    if training:
        flops += 4 * input.numel
        flops += 6 * channels if running_mean is not None else 0
    return Work(other_flops=flops)


@cost_of(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    training: bool,
    *,
    out: Output,
) -> Work:
    """Return the FLOPs of ``batch_norm`` if there are no running statistics to update."""
    return batch_norm(input, weight, bias, None, None, training, out=first_output(out))


@cost_of("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def batch_norm_without_training(
    input: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, *_: object, out: Output
) -> Work:
    """Return the FLOPs of ``batch_norm`` in evaluation."""
    return batch_norm(input, weight, bias, None, None, False, out=first_output(out))


@cost_of("aten::_batch_norm_with_update")
def batch_norm_with_update(
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    running_mean: TensorSpec,
    running_var: TensorSpec,
    *_: object,
    out: Output,
) -> Work:
    """Return the FLOPs of ``batch_norm`` in training."""
    return batch_norm(input, weight, bias, running_mean, running_var, True, out=first_output(out))


@cost_of(
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten.cudnn_batch_norm,
    aten.miopen_batch_norm,
)
def native_batch_norm(
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    training: bool,
    *_: object,
    out: Output,
) -> Work:
    """Return the FLOPs of ``batch_norm``, for the kernels below it."""
    return batch_norm(
        input, weight, bias, running_mean, running_var, training, out=first_output(out)
    )


@cost_of(aten.layer_norm)
def layer_norm(
    input: TensorSpec,
    normalized_shape: Sequence[int],
    weight: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    *_: object,
    out: TensorSpec,
) -> Work:
    """6 per element, 2 per row, and the affine map.

    Per element, 2 are for the mean and centering, 2 for the variance, 2 for the rest.
    """
    flops = 6 * input.numel + 2 * _count_rows(input, normalized_shape)
    flops += _affine(input, weight, bias)
    return Work(other_flops=flops)


@cost_of(aten.native_layer_norm)
def native_layer_norm(
    input: TensorSpec,
    normalized_shape: Sequence[int],
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    *_: object,
    out: Output,
) -> Work:
    """Return the FLOPs of ``layer_norm``, for the kernel below it."""
    return layer_norm(input, normalized_shape, weight, bias, out=first_output(out))


@cost_of(aten.group_norm)
def group_norm(
    input: TensorSpec,
    num_groups: int,
    weight: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    *_: object,
    out: TensorSpec,
) -> Work:
    """6 per element, 2 per group (of each sample), the affine map."""
    groups = input.shape[0] * num_groups
    flops = 6 * input.numel + 2 * groups
    flops += _affine(input, weight, bias)
    return Work(other_flops=flops)


@cost_of(aten.native_group_norm)
def native_group_norm(
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    samples: int,
    channels: int,
    positions: int,
    num_groups: int,
    *_: object,
    out: Output,
) -> Work:
    """Return the FLOPs of ``group_norm``, for the kernel below it."""
    return group_norm(input, num_groups, weight, bias, out=first_output(out))


@cost_of(aten.instance_norm)
def instance_norm(
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    use_input_stats: bool,
    *_: object,
    out: TensorSpec,
) -> Work:
    """A group norm with one group per channel, and 6 per channel to update running statistics.

    With stored statistics, a batch norm in evaluation.
    """
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, False, out=out)
    work = group_norm(input, input.shape[1], weight, bias, out=out)
    updates = 6 * input.shape[1] if running_mean is not None else 0
    return replace(work, other_flops=work.other_flops + updates)


@cost_of(aten.rms_norm)
def rms_norm(
    input: TensorSpec,
    normalized_shape: Sequence[int],
    weight: TensorSpec | None = None,
    *_: object,
    out: TensorSpec,
) -> Work:
    """3 per element (square, sum, scale), 2 per row, 1 per element with a weight."""
    flops = 3 * input.numel + 2 * _count_rows(input, normalized_shape)
    flops += _affine(input, weight, None)
    return Work(other_flops=flops)


@cost_of(aten._fused_rms_norm)
def fused_rms_norm(
    input: TensorSpec,
    normalized_shape: Sequence[int],
    weight: TensorSpec | None = None,
    *_: object,
    out: Output,
) -> Work:
    """Return the FLOPs of ``rms_norm``, for the kernel below it."""
    return rms_norm(input, normalized_shape, weight, out=first_output(out))


def _affine(input: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None) -> int:
    """Return one operation per element for the weight, one for the bias."""
    num_operations = [weight is None, bias is None].count(False)
    return input.numel * num_operations


def _count_rows(input: TensorSpec, normalized_shape: Sequence[int]) -> int:
    row_size = math.prod(normalized_shape)
    return input.numel // max(row_size, 1)


# v · g / |v|: a square and a sum for the norm, a product
per_input(3, "aten::_weight_norm_interface", "aten::norm_except_dim")
