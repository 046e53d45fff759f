"""Gradients of normalization layers.

With x̂ the normalized input and ĝ = g · weight, over the n elements that share statistics: ∂x =
(ĝ − (Σĝ + x̂·Σĝ·x̂) / n) / σ. That is 2 per element for x̂, 3 for the two sums, 5 to combine;
∂weight = Σ g·x̂ takes 2, ∂bias = Σ g takes 1, ĝ takes 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


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
    return _backward(input, weight, output_mask, centered=True)


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
    return _backward(input, weight, output_mask, centered=True)


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
        return _backward(input, weight, output_mask, centered=True)
    for_input, for_weight, for_bias = output_mask
    per_element = 0
    if for_input:
        per_element += 1 if weight is None else 2
    if for_weight:
        per_element += 4
    if for_bias:
        per_element += 1
    return Work(other_flops=per_element * input.numel)


@cost_of(aten.cudnn_batch_norm_backward, aten.miopen_batch_norm_backward)
def cudnn_batch_norm_backward(
    input: TensorSpec, grad_output: TensorSpec, weight: TensorSpec, *_: object, out: object
) -> Work:
    """Return the FLOPs of all three gradients, in training."""
    return _backward(input, weight, (True, True, True), centered=True)


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
    """Return the FLOPs of ``batch_norm_backward``, for the kernel of all devices."""
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
    return _backward(input, weight, (*output_mask, False), centered=False)


def _backward(
    input: TensorSpec, weight: TensorSpec | None, wanted: Sequence[bool], *, centered: bool
) -> Work:
    for_input, for_weight, for_bias = wanted
    per_element = 0
    if for_input or for_weight:
        per_element += 2 if centered else 1  # x̂
    if for_input:
        per_element += 8 if centered else 5
        per_element += 0 if weight is None else 1
    if for_weight:
        per_element += 2
    if for_bias:
        per_element += 1
    return Work(other_flops=per_element * input.numel)


@cost_of("aten::_weight_norm_interface_backward")
def weight_norm_backward(grad_w: TensorSpec, *_: object, out: object) -> Work:
    """``∂v = (g/|v|)·(∂w − v·Σ(∂w·v)/|v|²)``: 2 for the sum, 3 for the rest, per element."""
    return Work(other_flops=5 * grad_w.numel)
