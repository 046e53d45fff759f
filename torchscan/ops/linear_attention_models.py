"""SwiGLU, losses and short convolutions of linear-attention models.

Triton kernels of ``flash-linear-attention``.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

_SILU, _SIGMOID, _TANH = 5, 4, 6


@cost_of("triton::swiglu_fwd_kernel")
def gated_activations(*, x: TensorSpec, y: TensorSpec, z: TensorSpec, out: object) -> Work:
    """Return the FLOPs of a SiLU and a product."""
    return Work(other_flops=(_SILU + 1) * x.numel)


@cost_of("triton::swiglu_fwdbwd_kernel")
def gated_activation_gradients(
    *, x: TensorSpec, y: TensorSpec, g: TensorSpec, HAS_WEIGHT: bool = False, out: object
) -> Work:
    """Return 12 FLOPs per element: a sigmoid, 6 for ``∂x`` and 2 for ``∂y``.

    The result itself takes one more; the weight of a layer that follows needs it.
    """
    per_element = _SIGMOID + 8
    if HAS_WEIGHT:
        per_element += 1
    return Work(other_flops=per_element * x.numel)


@cost_of("triton::cross_entropy_fwd_kernel")
def losses_of_logits(
    *,
    logits: TensorSpec,
    lse: TensorSpec,
    label_smoothing: float = 0.0,
    logit_softcapping: float | None = None,
    SPLIT: bool = False,
    out: object,
) -> Work:
    """Return 5 FLOPs per logit: scale, maximum, difference, exponential and sum.

    A soft cap takes quotient, tanh, product and mask, smoothing of labels a mask and a sum. A row,
    or its part, takes 4: logarithm and sum, and scale and sign of the target; 4 more to smooth its
    label; and 4 for the square of its logarithm and two sums, unless the row is split (``SPLIT``).
    """
    per_logit = 5
    if logit_softcapping is not None:
        per_logit += _TANH + 3
    per_row = 4 if SPLIT else 8
    if label_smoothing:
        per_logit += 2
        per_row += 4
    flops = per_logit * logits.numel + per_row * lse.numel
    return Work(other_flops=flops)


@cost_of("triton::cross_entropy_fwd_kernel_reduce")
def losses_of_parts(
    *,
    partial_loss: TensorSpec,
    partial_lse: TensorSpec,
    loss: TensorSpec,
    SPLIT: bool = False,
    REDUCE_LOSS: bool = False,
    out: object,
) -> Work:
    """Return 4 FLOPs per part of a row, for a maximum, difference, exponential and sum.

    The loss of a part takes 1. A row takes 2, and 6 more unless the row is split (``SPLIT``): a
    square, two sums and two masks.
    """
    per_part = 5 if REDUCE_LOSS else 4
    per_row = 2 if SPLIT else 8
    flops = per_part * partial_lse.numel + per_row * loss.numel
    return Work(other_flops=flops)


@cost_of("triton::cross_entropy_bwd_kernel")
def logit_gradients(
    *,
    logits: TensorSpec,
    dlogits: TensorSpec,
    label_smoothing: float = 0.0,
    logit_softcapping: float | None = None,
    out: object,
) -> Work:
    """Return 8 FLOPs per logit.

    Scale, difference and exponential; the square of the logarithm takes 2, the target a choice and
    a difference, the gradient of the loss a product. Smoothing of labels takes 1, a soft cap a
    quotient, tanh, product, and 3 for its gradient.
    """
    per_logit = 8
    if logit_softcapping is not None:
        per_logit += _TANH + 5
    if label_smoothing:
        per_logit += 1
    return Work(other_flops=per_logit * logits.numel)


@cost_of("triton::elementwise_mul_kernel")
def products_with_scalar(*, x: TensorSpec, g: TensorSpec, N: int, out: object) -> Work:
    """Return one FLOP per element, even if the kernel returns early because the factor is 1."""
    return Work(other_flops=N)


@cost_of("triton::causal_conv1d_update_kernel")
def short_convolution_step(
    *,
    x: TensorSpec,
    y: TensorSpec,
    W: int,
    ACTIVATION: str | None = None,
    HAS_WEIGHT: bool = True,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work | None:
    """MACs = numel(y) · W, of the last W inputs; SiLU takes 5 per element, a residual 1."""
    if ACTIVATION not in (None, "swish", "silu") or not HAS_WEIGHT:
        return None
    per_element = _SILU if ACTIVATION else 0
    if HAS_RESIDUAL:
        per_element += 1
    return Work(macs=y.numel * W, other_flops=per_element * y.numel)
