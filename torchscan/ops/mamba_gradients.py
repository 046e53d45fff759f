"""Gradients of Mamba 2: Triton kernels of ``mamba_ssm``, by the names of their parameters.

As for the results, all pairs of positions in a chunk count.
"""

from __future__ import annotations

from torchscan.ops.mamba import Pointer
from torchscan.ops.normalization import layer_norm, rms_norm
from torchscan.ops.normalization_gradients import layer_norm_backward, rms_norm_backward
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

_SILU, _SIGMOID, _SOFTPLUS = 5, 4, 4


@cost_of("triton::_chunk_scan_bwd_dstates_kernel")
def previous_state_gradients(
    *, dout_ptr: TensorSpec, c_ptr: TensorSpec, hdim: int, dstate: int, out: object
) -> Work:
    """MACs = numel(∂out) · dstate, for ∂out · C. A decay takes 1 per position and element."""
    positions = dout_ptr.numel // hdim
    return Work(macs=dout_ptr.numel * dstate, other_flops=positions + dout_ptr.numel)


@cost_of("triton::_state_passing_bwd_kernel")
def state_passing_gradients(
    *,
    dout_ptr: TensorSpec,
    dA_cs_ptr: TensorSpec,
    dim: int,
    nchunks: int,
    HAS_DINITSTATES: bool = False,
    out: object,
) -> Work:
    """Return 4 FLOPs per element of states with a predecessor: its gradient and the decay's.

    Each of these states also takes an exponential and a product.
    """
    passed = dout_ptr.numel
    if not HAS_DINITSTATES:
        passed -= passed // nchunks
    return Work(other_flops=4 * passed + 2 * (passed // dim))


@cost_of("triton::_chunk_scan_chunk_state_bwd_dx_kernel")
def input_gradients(
    *,
    x_ptr: TensorSpec,
    cb_ptr: TensorSpec,
    chunk_size: int,
    hdim: int,
    dstate: int,
    HAS_D: bool = False,
    out: object,
) -> Work:
    """MACs = numel(x) · (dstate + chunk_size): B · ∂states, and the pairs of a chunk · ∂out.

    A pair takes 5 (difference, minimum, exponential, product, mask), a position 3 for its decay, an
    element 4 (decay, step size, and the gradient of that); ``D · x`` and its gradient take 4.
    """
    positions = x_ptr.numel // hdim
    per_element = 8 if HAS_D else 4
    flops = positions * (5 * chunk_size + 3) + per_element * x_ptr.numel
    return Work(macs=x_ptr.numel * (dstate + chunk_size), other_flops=flops)


@cost_of("triton::_chunk_state_bwd_db_kernel")
def input_projection_gradients(
    *,
    x_ptr: TensorSpec,
    dstates_ptr: TensorSpec,
    dstate: int,
    hdim: int,
    HAS_DDA_CS: bool = False,
    out: object,
) -> Work:
    """MACs = numel(x) · dstate, for x · ∂states.

    A position takes 4 for its decay and step size, and 2 for each element of ∂B; the gradient of
    the decay another 2.
    """
    positions = x_ptr.numel // hdim
    per_element = 4 if HAS_DDA_CS else 2
    flops = positions * (4 + per_element * dstate)
    return Work(macs=x_ptr.numel * dstate, other_flops=flops)


@cost_of("triton::_chunk_scan_bwd_dc_kernel")
def output_projection_gradients(
    *,
    dout_ptr: TensorSpec,
    prev_states_ptr: TensorSpec,
    dstate: int,
    hdim: int,
    HAS_DDA_CS: bool = False,
    out: object,
) -> Work:
    """MACs = numel(∂out) · dstate, for ∂out · states.

    A position takes an exponential, and 2 for each element of ∂C; the gradient of the decay another
    2.
    """
    positions = dout_ptr.numel // hdim
    per_element = 4 if HAS_DDA_CS else 2
    flops = positions * (1 + per_element * dstate)
    return Work(macs=dout_ptr.numel * dstate, other_flops=flops)


@cost_of("triton::_chunk_scan_bwd_dcb_kernel")
def pair_gradients(
    *,
    x_ptr: TensorSpec,
    dout_ptr: TensorSpec,
    dcb_ptr: TensorSpec,
    chunk_size: int,
    hdim: int,
    HAS_DDA_CS: bool = False,
    out: object,
) -> Work:
    """MACs = numel(x) · chunk_size, for ∂out · x of all pairs of a chunk.

    A pair takes 6 (step size, difference, minimum, exponential, product, sum over heads), and 5 for
    the gradient of the decay; a pair of a group takes 1 for the mask.
    """
    positions = x_ptr.numel // hdim
    per_pair = 11 if HAS_DDA_CS else 6
    flops = positions * chunk_size * per_pair + dcb_ptr.numel
    return Work(macs=x_ptr.numel * chunk_size, other_flops=flops)


@cost_of("triton::_bmm_chunk_bwd_kernel")
def chunk_product_gradients(
    *,
    a_ptr: TensorSpec,
    db_ptr: TensorSpec,
    chunk_size: int,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work:
    """MACs = numel(∂b) · chunk_size; a residual takes a sum per element."""
    flops = db_ptr.numel if HAS_RESIDUAL else 0
    return Work(macs=db_ptr.numel * chunk_size, other_flops=flops)


@cost_of("triton::_chunk_scan_bwd_ddAcs_stable_kernel")
def decay_gradients(
    *,
    x_ptr: TensorSpec,
    cb_ptr: TensorSpec,
    ddA_cumsum_ptr: TensorSpec,
    chunk_size: int,
    hdim: int,
    out: object,
) -> Work:
    """MACs = numel(x) · chunk_size, for ∂out · x of all pairs of a chunk.

    A pair takes 7 (step size, C · B, difference, minimum, exponential, product, mask), and 5 for
    sums along rows and columns.
    """
    pairs = x_ptr.numel // hdim * chunk_size
    return Work(macs=x_ptr.numel * chunk_size, other_flops=12 * pairs)


@cost_of("triton::_chunk_cumsum_bwd_kernel")
def step_size_gradients(
    *,
    ddA_ptr: TensorSpec,
    dt_ptr: TensorSpec,
    DT_SOFTPLUS: bool = False,
    HAS_DT_BIAS: bool = False,
    out: object,
) -> Work:
    """Return 9 FLOPs per step size: times A, sum, limits with their gradient (5), gradient of A.

    A bias takes 2, softplus with its gradient 9.
    """
    per_step = 9
    if HAS_DT_BIAS:
        per_step += 2
    if DT_SOFTPLUS:
        per_step += _SOFTPLUS + _SIGMOID + 1
    return Work(other_flops=per_step * dt_ptr.numel)


@cost_of("triton::_layer_norm_fwd_1pass_kernel")
def norm_kernel(
    *,
    X: TensorSpec,
    Y: TensorSpec,
    W: Pointer = None,
    B: Pointer = None,
    N: int,
    IS_RMS_NORM: bool = False,
    HAS_Z: bool = False,
    HAS_RESIDUAL: bool = False,
    HAS_X1: bool = False,
    out: object,
) -> Work | None:
    """Return the FLOPs of ``layer_norm`` or ``rms_norm``, of a gate by SiLU and of a residual.

    It is None for the norm of two inputs.
    """
    if HAS_X1:
        return None
    if IS_RMS_NORM:
        flops = rms_norm(X, [N], W, out=X).other_flops
        flops += 0 if B is None else X.numel
    else:
        flops = layer_norm(X, [N], W, B, out=X).other_flops
    if HAS_Z:
        flops += (_SILU + 1) * X.numel
    if HAS_RESIDUAL:
        flops += X.numel
    return Work(other_flops=flops)


@cost_of("triton::_layer_norm_bwd_kernel")
def norm_gradients_kernel(
    *,
    X: TensorSpec,
    DX: TensorSpec,
    W: Pointer = None,
    DB: Pointer = None,
    N: int,
    IS_RMS_NORM: bool = False,
    HAS_Z: bool = False,
    NORM_BEFORE_GATE: bool = False,
    DX1: Pointer = None,
    out: object,
) -> Work | None:
    """Return the FLOPs of the gradients of a norm; a gate by SiLU takes 13 per element.

    A gate before the norm takes 5 more, for its result. It is None for the norm of two inputs.
    """
    if DX1 is not None:
        return None
    wanted = [True, W is not None]
    if IS_RMS_NORM:
        flops = rms_norm_backward(X, X, weight=W, output_mask=wanted, out=X).other_flops
    else:
        mask = [*wanted, False]
        flops = layer_norm_backward(X, X, [N], weight=W, output_mask=mask, out=X).other_flops
    if DB is not None:
        flops += X.numel
    if HAS_Z:
        flops += (13 if NORM_BEFORE_GATE else 18) * X.numel
    return Work(other_flops=flops)
