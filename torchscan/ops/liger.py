"""Triton kernels of Liger, by their names and the names of their parameters.

Each counts as the operators of torch that it replaces. A kernel of another library that has the
same name but different parameters has no formula here.
"""

from __future__ import annotations

from torchscan.ops.activation import gelu_backward
from torchscan.ops.normalization import layer_norm, rms_norm
from torchscan.ops.normalization_gradients import layer_norm_backward, rms_norm_backward
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

Pointer = TensorSpec | None
#: by element: SiLU or GELU approximated by tanh, and the product
_SWIGLU, _GEGLU = 5 + 1, 14 + 1
#: g · u, its gradient through SiLU, and g · x · s
_SWIGLU_BACKWARD = 1 + 9 + 2


@cost_of("triton::_rms_norm_forward_kernel", "triton::_block_rms_norm_forward_kernel")
def rms_norm_kernel(*, X_ptr: TensorSpec, W_ptr: Pointer = None, n_cols: int, out: object) -> Work:
    """Return the FLOPs of ``rms_norm``."""
    return rms_norm(X_ptr, [n_cols], W_ptr, out=X_ptr)


@cost_of("triton::_rms_norm_backward_kernel", "triton::_block_rms_norm_backward_kernel")
def rms_norm_backward_kernel(
    *,
    dY_ptr: TensorSpec,
    X_ptr: TensorSpec,
    W_ptr: Pointer = None,
    COMPUTE_DW: bool = True,
    out: object,
) -> Work:
    """Return the FLOPs of the gradients of ``rms_norm``."""
    wanted = [True, W_ptr is not None and COMPUTE_DW]
    return rms_norm_backward(dY_ptr, X_ptr, weight=W_ptr, output_mask=wanted, out=out)


@cost_of("triton::_layer_norm_forward_kernel")
def layer_norm_kernel(
    *,
    X_ptr: TensorSpec,
    W_ptr: Pointer = None,
    B_ptr: Pointer = None,
    n_cols: int,
    out: object,
) -> Work:
    """Return the FLOPs of ``layer_norm``."""
    return layer_norm(X_ptr, [n_cols], W_ptr, B_ptr, out=X_ptr)


@cost_of("triton::_layer_norm_backward_kernel")
def layer_norm_backward_kernel(
    *,
    DY_ptr: TensorSpec,
    X_ptr: TensorSpec,
    W_ptr: Pointer = None,
    n_cols: int,
    COMPUTE_DW: bool = True,
    COMPUTE_DB: bool = True,
    out: object,
) -> Work:
    """Return the FLOPs of the gradients of ``layer_norm``."""
    wanted = [True, COMPUTE_DW, COMPUTE_DB]
    return layer_norm_backward(DY_ptr, X_ptr, [n_cols], weight=W_ptr, output_mask=wanted, out=out)


@cost_of("triton::_swiglu_forward_kernel", "triton::_swiglu_forward_kernel_tiled")
def swiglu_kernel(*, a_ptr: TensorSpec, b_ptr: TensorSpec, out: object) -> Work:
    """Return the FLOPs of a SiLU and a product."""
    return Work(other_flops=_SWIGLU * a_ptr.numel)


@cost_of("triton::_swiglu_backward_kernel", "triton::_swiglu_backward_kernel_tiled")
def swiglu_backward_kernel(*, a_ptr: TensorSpec, b_ptr: TensorSpec, out: object) -> Work:
    """Return the FLOPs of the gradients of a SiLU and a product."""
    return Work(other_flops=_SWIGLU_BACKWARD * a_ptr.numel)


@cost_of("triton::_geglu_tanh_forward_kernel")
def geglu_kernel(*, a: TensorSpec, out: object) -> Work:
    """Return the FLOPs of a GELU approximated by tanh and a product."""
    return Work(other_flops=_GEGLU * a.numel)


@cost_of("triton::_geglu_tanh_backward_kernel")
def geglu_backward_kernel(*, a: TensorSpec, out: object) -> Work:
    """Return the FLOPs of the gradient of a GELU, and of ``g · u`` and ``g · gelu(x)``."""
    of_gelu = gelu_backward(a, a, approximate="tanh", out=a)
    return Work(other_flops=of_gelu.other_flops + (1 + _GEGLU) * a.numel)


@cost_of("triton::_triton_rope")
def rotary_kernel(
    *, q_ptr: TensorSpec, k_ptr: TensorSpec, hd: int, rd: int | None = None, out: object
) -> Work:
    """Return 3 FLOPs per rotated element: four products and two sums for a pair.

    The first ``rd`` of ``hd`` elements of a head are rotated.
    """
    rotated = (q_ptr.numel + k_ptr.numel) * (rd or hd) // hd
    return Work(other_flops=3 * rotated)


@cost_of("triton::liger_cross_entropy_kernel")
def cross_entropy_kernel(
    *,
    X_ptr: TensorSpec,
    HAS_GRADIENTS: bool = True,
    out: object,
) -> Work:
    """Return 4 FLOPs per logit, for maximum, difference, exponential and sum; 7 with a gradient."""
    per_logit = 7 if HAS_GRADIENTS else 4
    return Work(other_flops=per_logit * X_ptr.numel)


@cost_of("triton::element_mul_kernel")
def element_product_kernel(*, X_ptr: TensorSpec, grad_output_ptr: TensorSpec, out: object) -> Work:
    """Return one FLOP per element."""
    return Work(other_flops=X_ptr.numel)
