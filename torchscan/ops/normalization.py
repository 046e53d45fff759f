"""Normalisation layers.

Per element: subtract the mean and multiply by the inverse deviation; statistics cost extra.

The single division of a mean or a variance by its count is neglected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchscan.ops.elementwise import Output, first_output, per_input
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.taps import groups
from torchscan.ops.windows import (
    HERE,
    NOT_READ,
    WHOLE,
    Along,
    Dim,
    Look,
    Looks,
    Taps,
    Way,
    Ways,
    here,
)
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


def _normalised(input: TensorSpec, *statistics: Dim) -> Ways:
    """Each element by itself, and the statistics of the elements normalised together."""
    return (_by_itself(input), Way((Look(statistics, input.shape),), note="norm-stats"))


def _by_itself(input: TensorSpec) -> Way:
    return Way((Look(tuple(map(here, range(len(input.shape)))), input.shape),))


@window_of(
    aten.batch_norm, aten.native_batch_norm, aten._native_batch_norm_legit, aten.cudnn_batch_norm
)
@window_of(aten.miopen_batch_norm)
def batch_norm_window(
    input: TensorSpec,
    *_: object,
    training: bool,
    weight: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    out: Output,
) -> Looks:
    """Return the window: the element itself, in training with the statistics of its channel.

    Running statistics are not read in training.
    """
    if not training:
        return ((_by_itself(input),),)
    affine: list[Ways] = [None] * ((weight is not None) + (bias is not None))
    return (_normalised(input, *_per_channel(input, HERE)), *affine, NOT_READ, NOT_READ)


@window_of("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def batch_norm_without_training_window(input: TensorSpec, *_: object, out: Output) -> Looks:
    """Return the window: the element itself."""
    return ((_by_itself(input),),)


@window_of(aten._native_batch_norm_legit.no_stats, "aten::_batch_norm_with_update")
def batch_norm_with_statistics_window(input: TensorSpec, *_: object, out: Output) -> Looks:
    """Return the window: the element itself with the statistics of its channel."""
    return (_normalised(input, *_per_channel(input, HERE)),)


@window_of(aten.instance_norm)
def instance_norm_window(
    input: TensorSpec, *_: object, use_input_stats: bool, out: TensorSpec
) -> Looks:
    """With the statistics of its channel in its sample, unless running statistics are used."""
    if not use_input_stats:
        return ((_by_itself(input),),)
    return (_normalised(input, here(0), *_per_channel(input, HERE)[1:]),)


@window_of(aten.group_norm, aten.native_group_norm)
def group_norm_window(
    input: TensorSpec, *_: object, num_groups: int = 0, group: int = 0, out: Output
) -> Looks:
    """With the statistics of its group of channels in its sample."""
    channels = input.shape[1]
    return (
        _normalised(
            input,
            here(0),
            *_per_channel(input, groups(channels, channels, num_groups or group))[1:],
        ),
    )


@window_of(aten.layer_norm, aten.native_layer_norm, aten.rms_norm, aten._fused_rms_norm)
def layer_norm_window(
    input: TensorSpec, normalized_shape: Sequence[int], *_: object, out: Output
) -> Looks:
    """With the statistics of the last dimensions."""
    kept = len(input.shape) - len(normalized_shape)
    return (_normalised(input, *map(here, range(kept)), *[WHOLE] * len(normalized_shape)),)


def _per_channel(input: TensorSpec, channels: Taps) -> list[Dim]:
    """A sample as a whole along every dimension except the channels."""
    return [Along(1, channels) if dim == 1 else WHOLE for dim in range(len(input.shape))]


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
    flops = 2 * input.numel + 2 * channels + _affine(input, weight, bias)
    if training:
        flops += 4 * input.numel + (6 * channels if running_mean is not None else 0)
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
    """The kernel below batch_norm if there are no running statistics to update."""
    return batch_norm(input, weight, bias, None, None, training, out=first_output(out))


@cost_of("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def batch_norm_without_training(
    input: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, *_: object, out: Output
) -> Work:
    """The kernel below batch_norm in evaluation."""
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
    """The kernel below batch_norm in training."""
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
    """The kernel below batch_norm: the same."""
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
    rows = input.numel // max(math.prod(normalized_shape), 1)
    flops = 6 * input.numel + 2 * rows + _affine(input, weight, bias)
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
    """The kernel below layer_norm: the same."""
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
    flops = 6 * input.numel + 2 * groups + _affine(input, weight, bias)
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
    """The kernel below group_norm: the same."""
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
    rows = input.numel // max(math.prod(normalized_shape), 1)
    flops = 3 * input.numel + 2 * rows + _affine(input, weight, None)
    return Work(other_flops=flops)


@cost_of(aten._fused_rms_norm)
def fused_rms_norm(
    input: TensorSpec,
    normalized_shape: Sequence[int],
    weight: TensorSpec | None = None,
    *_: object,
    out: Output,
) -> Work:
    """The kernel below rms_norm: the same."""
    return rms_norm(input, normalized_shape, weight, out=first_output(out))


# -- gradients -------------------------------------------------------------------------------------
# With x̂ the normalised input and ĝ = g · weight, over the n elements that share statistics: ∂x =
# (ĝ − (Σĝ + x̂·Σĝ·x̂) / n) / σ. That is 2 per element for x̂, 3 for the two sums, 5 to combine;
# ∂weight = Σ g·x̂ takes 2, ∂bias = Σ g takes 1, ĝ takes 1.


@cost_of(aten.native_layer_norm_backward)
def layer_norm_backward(
    grad_out: TensorSpec,
    input: TensorSpec,
    normalized_shape: Sequence[int],
    *_: object,
    weight: TensorSpec | None,
    output_mask: Sequence[bool],
    out: object,
) -> Work:
    """10 per element for the input (11 with a weight), 2 for the weight, 1 for the bias."""
    return _backward(input, weight, output_mask, centred=True)


@cost_of(aten.native_group_norm_backward)
def group_norm_backward(
    grad_out: TensorSpec,
    input: TensorSpec,
    *_: object,
    weight: TensorSpec | None,
    output_mask: Sequence[bool],
    out: object,
) -> Work:
    """Return the FLOPs of ``layer_norm_backward``."""
    return _backward(input, weight, output_mask, centred=True)


@cost_of(aten.native_batch_norm_backward)
def batch_norm_backward(
    grad_out: TensorSpec,
    input: TensorSpec,
    *_: object,
    weight: TensorSpec | None,
    train: bool,
    output_mask: Sequence[bool],
    out: object,
) -> Work:
    """Return the FLOPs of ``layer_norm_backward`` in training.

    With stored statistics: 1 per element for the input (2 with a weight), 4 for the weight.
    """
    if train:
        return _backward(input, weight, output_mask, centred=True)
    for_input, for_weight, for_bias = (bool(each) for each in output_mask)
    per_element = for_input * (1 + (weight is not None)) + for_weight * 4 + for_bias
    return Work(other_flops=per_element * input.numel)


@cost_of(aten.cudnn_batch_norm_backward, aten.miopen_batch_norm_backward)
def cudnn_batch_norm_backward(
    input: TensorSpec, grad_output: TensorSpec, weight: TensorSpec, *_: object, out: object
) -> Work:
    """All three gradients, in training."""
    return _backward(input, weight, (True, True, True), centred=True)


@cost_of("aten::batch_norm_backward")
def unified_batch_norm_backward(
    grad_out: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    *_: object,
    update: bool,
    output_mask: Sequence[bool],
    out: object,
) -> Work:
    """The kernel for all devices."""
    return batch_norm_backward(
        grad_out, input, weight=weight, train=update, output_mask=output_mask, out=out
    )


@cost_of("aten::_fused_rms_norm_backward")
def rms_norm_backward(
    grad_out: TensorSpec,
    input: TensorSpec,
    *_: object,
    weight: TensorSpec | None,
    output_mask: Sequence[bool],
    out: object,
) -> Work:
    """``∂x = (ĝ − x̂·Σĝ·x̂ / n) / σ``: 6 per element, 7 with a weight; 2 for the weight.

    x̂ takes 1, the sum 2, the rest 3.
    """
    return _backward(input, weight, (*output_mask, False), centred=False)


def _backward(
    input: TensorSpec, weight: TensorSpec | None, wanted: Sequence[bool], *, centred: bool
) -> Work:
    for_input, for_weight, for_bias = (bool(each) for each in wanted)
    normalised = 2 if centred else 1
    to_combine = (8 if centred else 5) + (weight is not None)
    per_element = (
        (normalised if for_input or for_weight else 0)
        + for_input * to_combine
        + for_weight * 2
        + for_bias
    )
    return Work(other_flops=per_element * input.numel)


# -- weights ---------------------------------------------------------------------------------------

per_input(
    3, "aten::_weight_norm_interface"
)  # v · g / |v|: a square and a sum for the norm, a product
per_input(3, "aten::norm_except_dim")


@cost_of("aten::_weight_norm_interface_backward")
def weight_norm_backward(grad_w: TensorSpec, *_: object, out: object) -> Work:
    """``∂v = (g/|v|)·(∂w − v·Σ(∂w·v)/|v|²)``: 2 for the sum, 3 for the rest, per element."""
    return Work(other_flops=5 * grad_w.numel)


def _affine(input: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None) -> int:
    """One operation per element for the weight, one for the bias."""
    return input.numel * ((weight is not None) + (bias is not None))
