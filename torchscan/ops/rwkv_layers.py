"""Layers around the delta rule of RWKV 7: Triton kernels of ``flash-linear-attention``.

:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import Pointer
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("triton::token_shift_fwd_kernel_short", "triton::token_shift_fwd_kernel_long")
def token_shift(*, x: TensorSpec, y: TensorSpec, D: int, out: object) -> Work:
    """Return 1 FLOP per element: the difference to the position before."""
    return Work(other_flops=x.numel)


@cost_of("triton::token_shift_bwd_kernel_short", "triton::token_shift_bwd_kernel_long")
def token_shift_gradients(
    *,
    dx: TensorSpec,
    dy: TensorSpec,
    cu_seqlens: Pointer = None,
    D: int,
    HAS_DCACHE: bool = False,
    out: object,
) -> Work:
    """Return 2 FLOPs per element: a sign and a sum.

    Without a cache, the last position of a sequence has no sum.
    """
    flops = 2 * dy.numel
    if not HAS_DCACHE:
        sequences = dy.shape[0]
        if cu_seqlens is not None:
            sequences = cu_seqlens.numel - 1
        flops -= sequences * D
    return Work(other_flops=flops)


@cost_of("triton::fused_addcmul_fwd_kernel")
def mixes_with_shift(
    *, hidden: TensorSpec, delta: TensorSpec, use_xg: bool = True, T: int, D: int, out: object
) -> Work:
    """Return 2 FLOPs per element of ``x + ∂ · weight``, for 5 weights, and for a gate."""
    weights = 6 if use_xg else 5
    elements = hidden.shape[0] * T * D
    return Work(other_flops=2 * weights * elements)


@cost_of("triton::addcmul_bwd_kernel1")
def mixes_with_shift_gradients(
    *, ghidden: TensorSpec, gx: TensorSpec, use_xg: bool = True, T: int, D: int, out: object
) -> Work:
    """Return 3 FLOPs per element and weight: a product and two sums.

    The first weight has no sums.
    """
    weights = 6 if use_xg else 5
    elements = gx.shape[0] * T * D
    per_element = 3 * weights - 2
    return Work(other_flops=per_element * elements)


@cost_of("triton::k_update_fwd_kernel_short", "triton::k_update_fwd_kernel_long")
def key_updates(*, k: TensorSpec, a: TensorSpec, ka: TensorSpec, out: object) -> Work:
    """Return 4 FLOPs per element, for ``k · (1 + (a − 1) · weight)``."""
    return Work(other_flops=4 * k.numel)


@cost_of("triton::k_update_bwd_kernel_short", "triton::k_update_bwd_kernel_long")
def key_update_gradients(*, k: TensorSpec, a: TensorSpec, ka: TensorSpec, out: object) -> Work:
    """Return 9 FLOPs per element: 4 for ∂k, 2 for ∂a, 3 for the gradient of the weight."""
    return Work(other_flops=9 * k.numel)


@cost_of("triton::gate_output_correction_fwd_kernel")
def gated_corrections(
    *,
    r_ptr: TensorSpec,
    r_k_ptr: TensorSpec,
    T: int,
    num_heads: int,
    head_dim: int,
    out: object,
) -> Work:
    """Return 6 FLOPs per element, for ``(o + Σ(r · k · weight) · v) · g``."""
    rows = r_ptr.shape[0] * T
    width = num_heads * head_dim
    return Work(other_flops=6 * rows * width)


@cost_of("triton::gate_output_correction_bwd_kernel")
def gated_correction_gradients(
    *,
    r_ptr: TensorSpec,
    r_k_ptr: TensorSpec,
    T: int,
    num_heads: int,
    head_dim: int,
    out: object,
) -> Work:
    """Return 16 FLOPs per element: 5 for the result before the gate, 1 for ∂g, 1 for ∂o, 1 for ∂v.

    The gradient of the sum takes 2, those of r, k and the weight 2 each.
    """
    rows = r_ptr.shape[0] * T
    width = num_heads * head_dim
    return Work(other_flops=16 * rows * width)


@cost_of("triton::rwkv_seq_mix_kernel")
def mixes_with_previous(
    *,
    x_ptr: TensorSpec,
    x_prev_ptr: TensorSpec,
    mix_k_ptr: TensorSpec,
    hidden_dim: int,
    out: object,
) -> Work:
    """Return 4 FLOPs per element: a choice, a difference, a product and a sum."""
    return Work(other_flops=4 * x_ptr.numel)


@cost_of("triton::rwkv_mix_bwd_kenel")
def mixes_with_previous_gradients(
    *, dk1_ptr0: TensorSpec, xk_ptr: TensorSpec, hidden_dim: int, out: object
) -> Work:
    """Return 5 FLOPs per element: two products, a choice, a difference and a sum."""
    return Work(other_flops=5 * dk1_ptr0.numel)


@cost_of("triton::rwkv_channel_mixing_pow_and_relu")
def squared_relu(*, in_ptr: TensorSpec, n_elements: int, out: object) -> Work:
    """Return 2 FLOPs per element."""
    return Work(other_flops=2 * n_elements)


@cost_of("triton::relu_square_bwd_kernel")
def squared_relu_gradients(
    *, out_ptr: TensorSpec, forward_input_ptr: TensorSpec, n_elements: int, out: object
) -> Work:
    """Return 3 FLOPs per element, for ``∂y · 2 · relu(x)``."""
    return Work(other_flops=3 * n_elements)
