"""Triton kernels of ``mamba_ssm``, and operators of ``causal_conv1d``, by names of arguments.

A sequence of Mamba 2 is divided into chunks. Inside a chunk, all pairs of positions count: dense,
like attention, so the causal mask does not halve them.
"""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

Pointer = TensorSpec | None
_SILU, _SILU_BACKWARD, _SOFTPLUS = 5, 9, 4


@cost_of("triton::_bmm_chunk_fwd_kernel")
def chunk_products(
    *,
    a_ptr: TensorSpec,
    b_ptr: TensorSpec,
    K: int,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · K: for each chunk and group, all pairs of positions in ``C · B``."""
    return Work(macs=out.numel * K)


@cost_of("triton::_chunk_cumsum_fwd_kernel")
def chunk_sums(
    *,
    dt_ptr: TensorSpec,
    dA_cumsum_ptr: TensorSpec,
    DT_SOFTPLUS: bool = False,
    HAS_DT_BIAS: bool = False,
    out: object,
) -> Work:
    """4 per step size: two comparisons, the product with A, a sum; bias 1, softplus 4."""
    per_step = 4
    if HAS_DT_BIAS:
        per_step += 1
    if DT_SOFTPLUS:
        per_step += _SOFTPLUS
    return Work(other_flops=per_step * dt_ptr.numel)


@cost_of("triton::_chunk_state_fwd_kernel")
def chunk_states(*, x_ptr: TensorSpec, hdim: int, dstate: int, out: object) -> Work:
    """MACs = numel(x) · dstate, for the state that each chunk adds.

    Each position of a head takes a difference, minimum, exponential and product with its step size
    (4), and a product with each element of B.
    """
    positions = x_ptr.numel // hdim
    return Work(macs=x_ptr.numel * dstate, other_flops=positions * (4 + dstate))


@cost_of("triton::_state_passing_fwd_kernel")
def state_passing(
    *,
    states_ptr: TensorSpec,
    dA_cs_ptr: TensorSpec,
    dim: int,
    out: object,
) -> Work:
    """2 per element of all states, for ``decay · state + added``, and an exponential per state."""
    return Work(other_flops=2 * states_ptr.numel + states_ptr.numel // dim)


@cost_of("triton::_chunk_scan_fwd_kernel")
def chunk_scan(
    *,
    cb_ptr: TensorSpec,
    x_ptr: TensorSpec,
    chunk_size: int,
    hdim: int,
    dstate: int,
    IS_CAUSAL: bool = False,
    HAS_D: bool = False,
    HAS_Z: bool = False,
    out: object,
) -> Work:
    """MACs = numel(x) · (dstate + chunk_size): C · state, and the pairs of a chunk · x.

    A pair of positions takes 5 (difference, minimum, exponential, two products) and 1 for the
    mask; a position an exponential, and a product with each element of its result. ``D · x`` takes
    2 per element, the gate 6.
    """
    positions = x_ptr.numel // hdim
    per_pair = 6 if IS_CAUSAL else 5
    per_element = 1
    if HAS_D:
        per_element += 2
    if HAS_Z:
        per_element += _SILU + 1
    flops = positions * (1 + per_pair * chunk_size) + per_element * x_ptr.numel
    return Work(macs=x_ptr.numel * (dstate + chunk_size), other_flops=flops)


@cost_of("triton::_selective_scan_update_kernel")
def selective_scan_update(
    *,
    state_ptr: TensorSpec,
    x_ptr: TensorSpec,
    dt_ptr: TensorSpec,
    dim: int,
    dstate: int,
    DT_SOFTPLUS: bool = False,
    TIE_HDIM: bool = False,
    HAS_DT_BIAS: bool = False,
    HAS_D: bool = False,
    HAS_Z: bool = False,
    out: object,
) -> Work:
    """MACs = numel(x) · dstate, for ``C · state``.

    An element of the state takes 3: two products and a sum. Its decay takes 2 and ``B · dt`` 1, for
    each element, or for each head if a head has one step size: then the decay is one number.
    """
    states = x_ptr.numel * dstate
    heads = x_ptr.numel // dim
    steps = heads if TIE_HDIM else x_ptr.numel
    decays = heads if TIE_HDIM else states
    per_step = dstate
    if HAS_DT_BIAS:
        per_step += 1
    if DT_SOFTPLUS:
        per_step += _SOFTPLUS
    per_element = 0
    if HAS_D:
        per_element += 2
    if HAS_Z:
        per_element += _SILU + 1
    flops = 3 * states + 2 * decays + per_step * steps + per_element * x_ptr.numel
    return Work(macs=states, other_flops=flops)


@cost_of("DaoAILab::_causal_conv1d_fwd_cpp", "DaoAILab::_causal_conv1d_update_cpp")
def causal_convolution(
    *,
    x: TensorSpec,
    weight: TensorSpec,
    bias: Pointer = None,
    silu_activation: bool = False,
    out: object,
) -> Work:
    """MACs = numel(x) · width; as many elements read, besides weights; SiLU takes 5 per element."""
    products = x.numel * weight.shape[-1]
    parameters = weight.numel if bias is None else weight.numel + bias.numel
    flops = _SILU * x.numel if silu_activation else 0
    return Work(macs=products, other_flops=flops, elements_read=products + parameters)


@cost_of("DaoAILab::_causal_conv1d_bwd_cpp")
def causal_convolution_gradients(
    *,
    x: TensorSpec,
    weight: TensorSpec,
    dbias: Pointer = None,
    silu_activation: bool = False,
    out: object,
) -> Work:
    """MACs = 2 · numel(x) · width, and as for the result again if its SiLU is differentiated.

    The gradient of SiLU takes 9 per element, that of the bias a sum.
    """
    num_products, flops = 2, 0
    if silu_activation:
        num_products += 1
        flops += _SILU_BACKWARD * x.numel
    if dbias is not None:
        flops += x.numel - dbias.numel
    return Work(macs=num_products * x.numel * weight.shape[-1], other_flops=flops)
