"""Layers around linear attention: Triton kernels of ``flash-linear-attention``.

Norms count like the operators of torch.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import Pointer
from torchscan.ops.normalization import layer_norm, rms_norm
from torchscan.ops.normalization_gradients import layer_norm_backward, rms_norm_backward
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

_SILU, _SILU_BACKWARD, _SIGMOID, _SOFTPLUS = 5, 9, 4, 4
#: FLOPs of a gate by its activation: the activation and a product
_GATES = {"sigmoid": _SIGMOID + 1, "swish": _SILU + 1, "silu": _SILU + 1}
#: FLOPs of its gradients: the activation, y, products with ∂y; swish is a sum of two products
_GATES_BACKWARD = {"sigmoid": _SIGMOID + 5, "swish": _SIGMOID + 8, "silu": _SIGMOID + 8}


@cost_of("triton::layer_norm_fwd_kernel")
def norm_kernel(
    *,
    x: TensorSpec,
    y: TensorSpec,
    w: Pointer = None,
    b: Pointer = None,
    D: int,
    NB: int,
    IS_RMS_NORM: bool = False,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work:
    """Return the FLOPs of ``layer_norm`` or ``rms_norm``, and a sum with what is added before."""
    flops = _normalize(x, w, b, D, is_rms_norm=IS_RMS_NORM)
    if HAS_RESIDUAL:
        flops += x.numel
    return Work(other_flops=flops)


@cost_of("triton::layer_norm_gated_fwd_kernel")
def gated_norm_kernel(
    *,
    x: TensorSpec,
    g: TensorSpec,
    w: Pointer = None,
    b: Pointer = None,
    D: int,
    ACTIVATION: str,
    IS_RMS_NORM: bool = False,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work | None:
    """Return the FLOPs of a norm, of the activation of a gate, and of their product."""
    if ACTIVATION not in _GATES:
        return None
    flops = _normalize(x, w, b, D, is_rms_norm=IS_RMS_NORM) + _GATES[ACTIVATION] * x.numel
    if HAS_RESIDUAL:
        flops += x.numel
    return Work(other_flops=flops)


def _normalize(
    x: TensorSpec, weight: Pointer, bias: Pointer, width: int, *, is_rms_norm: bool
) -> int:
    """Return the FLOPs of a norm; a bias takes one per element."""
    if not is_rms_norm:
        return layer_norm(x, [width], weight, bias, out=x).other_flops
    flops = rms_norm(x, [width], weight, out=x).other_flops
    return flops if bias is None else flops + x.numel


@cost_of("triton::rotary_embedding_kernel")
def rotary_kernel(*, x: TensorSpec, cos: TensorSpec, D: int, R: int, out: object) -> Work:
    """Return 3 FLOPs per rotated element: 2 · ``R`` of the ``D`` elements of a head."""
    return Work(other_flops=3 * x.numel // D * 2 * R)


@cost_of("triton::layer_norm_bwd_kernel")
def norm_gradients_kernel(
    *,
    x: TensorSpec,
    dy: TensorSpec,
    dx: TensorSpec,
    w: Pointer = None,
    dw: Pointer = None,
    db: Pointer = None,
    D: int,
    NB: int,
    IS_RMS_NORM: bool = False,
    HAS_DRESIDUAL: bool = False,
    out: object,
) -> Work:
    """Return the FLOPs of the gradients of a norm, and of a sum with that of a residual."""
    wanted = [True, dw is not None, db is not None]
    flops = _normalize_backward(x, w, D, wanted, is_rms_norm=IS_RMS_NORM)
    if HAS_DRESIDUAL:
        flops += x.numel
    return Work(other_flops=flops)


@cost_of("triton::layer_norm_gated_bwd_kernel")
def gated_norm_gradients_kernel(
    *,
    x: TensorSpec,
    dg: TensorSpec,
    w: Pointer = None,
    dw: Pointer = None,
    db: Pointer = None,
    D: int,
    ACTIVATION: str,
    IS_RMS_NORM: bool = False,
    HAS_DRESIDUAL: bool = False,
    out: object,
) -> Work | None:
    """Return the FLOPs of the gradients of a norm and of its gate."""
    if ACTIVATION not in _GATES_BACKWARD:
        return None
    wanted = [True, dw is not None, db is not None]
    flops = _normalize_backward(x, w, D, wanted, is_rms_norm=IS_RMS_NORM)
    flops += _GATES_BACKWARD[ACTIVATION] * x.numel
    if HAS_DRESIDUAL:
        flops += x.numel
    return Work(other_flops=flops)


def _normalize_backward(
    x: TensorSpec, weight: Pointer, width: int, wanted: list[bool], *, is_rms_norm: bool
) -> int:
    """Return the FLOPs of the gradients of input, weight and bias, if they are computed."""
    if not is_rms_norm:
        work = layer_norm_backward(x, x, [width], weight=weight, output_mask=wanted, out=x)
        return work.other_flops
    *mask, for_bias = wanted
    work = rms_norm_backward(x, x, weight=weight, output_mask=mask, out=x)
    return work.other_flops + (x.numel if for_bias else 0)


@cost_of("triton::l2norm_fwd_kernel", "triton::l2norm_fwd_kernel1")
def l2_norm_kernel(*, x: TensorSpec, y: TensorSpec, D: int, out: object) -> Work:
    """Return 3 FLOPs per element, for its square, the sum and a product, and 2 per row."""
    return Work(other_flops=3 * x.numel + 2 * (x.numel // D))


@cost_of("triton::l2norm_bwd_kernel", "triton::l2norm_bwd_kernel1")
def l2_norm_gradients_kernel(*, y: TensorSpec, dy: TensorSpec, D: int, out: object) -> Work:
    """Return 6 FLOPs per element, for ``(∂y − y · Σ∂y·y) / |x|``: 2 for the sum, 4 for the rest."""
    return Work(other_flops=6 * y.numel)


@cost_of("triton::causal_conv1d_fwd_kernel")
def short_convolution(
    *,
    x: TensorSpec,
    y: TensorSpec,
    W: int,
    ACTIVATION: str | None = None,
    HAS_BIAS: bool = False,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work | None:
    """MACs = numel(y) · W; SiLU takes 5 per element, a residual 1."""
    if ACTIVATION not in (None, "swish", "silu"):
        return None
    per_element = _SILU if ACTIVATION else 0
    if HAS_RESIDUAL:
        per_element += 1
    return Work(macs=y.numel * W, other_flops=per_element * y.numel)


@cost_of("triton::causal_conv1d_bwd_kernel")
def short_convolution_gradients(
    *,
    dx: TensorSpec,
    dy: TensorSpec,
    dw: TensorSpec,
    W: int,
    ACTIVATION: str | None = None,
    HAS_BIAS: bool = False,
    out: object,
) -> Work | None:
    """MACs = 2 · numel(dx) · W; the gradient of SiLU takes 9 for each of W, that of the bias 1."""
    if ACTIVATION not in (None, "swish", "silu"):
        return None
    per_element = W * _SILU_BACKWARD if ACTIVATION else 0
    if HAS_BIAS:
        per_element += 1
    return Work(macs=2 * dx.numel * W, other_flops=per_element * dx.numel)


@cost_of("triton::fused_beta_sigmoid_fwd_kernel")
def scaled_sigmoid(*, x: TensorSpec, n_elements: int, out: object) -> Work:
    """Return 5 FLOPs per element, for a sigmoid and a scale."""
    return Work(other_flops=(_SIGMOID + 1) * n_elements)


@cost_of("triton::fused_beta_sigmoid_bwd_kernel")
def scaled_sigmoid_gradients(
    *, x: TensorSpec, dy: TensorSpec, n_elements: int, out: object
) -> Work:
    """Return 8 FLOPs per element, for ``∂y · scale · σ · (1 − σ)``."""
    return Work(other_flops=(_SIGMOID + 4) * n_elements)


@cost_of("triton::gdn_gate_chunk_cumsum_scalar_kernel")
def gate_sums(
    *,
    g: TensorSpec,
    A_log: TensorSpec,
    HAS_BIAS: bool = False,
    HAS_SCALE: bool = False,
    out: object,
) -> Work:
    """Return the FLOPs of sums of ``−exp(A) · softplus(g + bias) · scale``, per element."""
    per_element = _SOFTPLUS + 2
    if HAS_BIAS:
        per_element += 1
    if HAS_SCALE:
        per_element += 1
    return Work(other_flops=per_element * g.numel)


@cost_of("triton::gdn_gate_bwd_kernel")
def gate_gradients(
    *, g: TensorSpec, A_log: TensorSpec, dyg: TensorSpec, HAS_BIAS: bool = False, out: object
) -> Work:
    """Return 12 FLOPs per element, and 2 for a bias.

    Softplus and its gradient, a sigmoid, take 8, products with ``−exp(A)`` and ∂y 2, and the
    gradient of A 2.
    """
    per_element = _SOFTPLUS + _SIGMOID + 4
    if HAS_BIAS:
        per_element += 2
    return Work(other_flops=per_element * g.numel)
