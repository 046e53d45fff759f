"""Recurrent forms of linear attention: Triton kernels of ``flash-linear-attention``.

A position adds an outer product to a state of K · V elements and multiplies it by a vector. Each is
K · V MACs, like ``addr`` and ``mv`` of torch. A kernel goes through all positions of all heads.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import Decays, Pointer, count_sequences
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

_SOFTPLUS, _SIGMOID = 4, 4


@cost_of("triton::fused_recurrent_fwd_kernel")
def linear_recurrence(
    *,
    k: TensorSpec,
    v: TensorSpec,
    K: int,
    V: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_GK: bool = False,
    USE_GV: bool = False,
    ha: Pointer = None,
    out: object,
) -> Work | None:
    """MACs = 2 · positions · K · V; the scale of q takes K. Decays multiply the state.

    Return None with ``ha``: that kernel has the same name and computes another layer.
    """
    if ha is not None:
        return None
    positions = k.numel // K
    by_head = USE_G or USE_G_GAMMA
    decays = Decays(keys=K, values=V, by_head=by_head, by_key=USE_GK, by_value=USE_GV)
    flops = K + decays.flops_per_state()
    macs = 2 * positions * K * V
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_bwd_kernel")
def linear_recurrence_gradients(
    *,
    k: TensorSpec,
    do: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    V: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_GK: bool = False,
    USE_GV: bool = False,
    ha: Pointer = None,
    out: object,
) -> Work | None:
    """MACs = 5 · positions · K · V: the states again, ∂q, ∂states, ∂k and ∂v.

    Two scales take 2 · K. Decays multiply the states and their gradients; their own gradients take
    4 per key, or per value, and 2 · K · V for the last state of a sequence. With ``ha``, the cost
    is unknown, as in :func:`linear_recurrence`.
    """
    if ha is not None:
        return None
    positions = k.numel // K
    by_head = USE_G or USE_G_GAMMA
    decays = Decays(keys=K, values=V, by_head=by_head, by_key=USE_GK, by_value=USE_GV)
    flops = 2 * K + 2 * decays.flops_per_state()
    per_sequence = 0
    for is_used, width in ((USE_G, K), (USE_GK, K), (USE_GV, V)):
        if is_used:
            flops += 4 * width
            per_sequence += 2 * K * V
    macs = 5 * positions * K * V
    flops *= positions
    flops += per_sequence * count_sequences(positions, T, cu_seqlens)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_delta_rule_fwd_kernel")
def delta_recurrence(
    *, k: TensorSpec, u: TensorSpec, beta: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 3 · positions · K · V: k · state, the update and q · state.

    The scale takes K, the difference and beta 2 · V.
    """
    positions = k.numel // K
    macs = 3 * positions * K * V
    flops = positions * (K + 2 * V)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_delta_rule_bwd_kernel")
def delta_recurrence_gradients(
    *, k: TensorSpec, db: TensorSpec, dv: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 7 · positions · K · V: ∂state twice, ∂k twice, ∂v, the states again and ∂q.

    Two scales take 2 · K; beta and its gradient 5 · V.
    """
    positions = k.numel // K
    macs = 7 * positions * K * V
    flops = positions * (2 * K + 5 * V)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_gated_delta_rule_fwd_kernel")
def gated_delta_recurrence(
    *,
    v: TensorSpec,
    beta: TensorSpec,
    K: int,
    V: int,
    USE_G: bool = False,
    USE_GK: bool = False,
    USE_GV: bool = False,
    USE_QK_L2NORM_IN_KERNEL: bool = False,
    USE_GATE_IN_KERNEL: bool = False,
    HAS_DT_BIAS: bool = True,
    APPLY_BETA_SIGMOID: bool = False,
    ALLOW_NEG_EIGVAL: bool = False,
    out: object,
) -> Work:
    """MACs = 3 · positions · K · V, as without a gate; norms of q and k take 6 · K + 4.

    A gate ``−exp(A) · softplus(g)`` takes 6, a bias 1. The sigmoid of each beta takes 4, and 1 to
    double it; there is one for a head, or for a value.
    """
    positions = v.numel // V
    decays = Decays(keys=K, values=V, by_head=USE_G, by_key=USE_GK, by_value=USE_GV)
    flops = K + 2 * V + decays.flops_per_state()
    if USE_QK_L2NORM_IN_KERNEL:
        flops += 6 * K + 4
    if USE_GATE_IN_KERNEL:
        flops += _SOFTPLUS + 2
        if HAS_DT_BIAS:
            flops += 1
    macs = 3 * positions * K * V
    flops *= positions
    if APPLY_BETA_SIGMOID:
        flops += _flops_of_betas(beta, are_doubled=ALLOW_NEG_EIGVAL)
    return Work(macs=macs, other_flops=flops)


def _flops_of_betas(beta: TensorSpec, *, are_doubled: bool) -> int:
    """Return the FLOPs of the sigmoid of each beta, and of a product with 2."""
    per_beta = _SIGMOID
    if are_doubled:
        per_beta += 1
    return per_beta * beta.numel


@cost_of("triton::fused_recurrent_kda_fwd_kernel")
def kimi_delta_recurrence(
    *,
    v: TensorSpec,
    g: TensorSpec,
    beta: TensorSpec,
    K: int,
    V: int,
    USE_QK_L2NORM_IN_KERNEL: bool = False,
    USE_GATE_IN_KERNEL: bool = False,
    HAS_A: bool = True,
    HAS_BIAS: bool = False,
    USE_LOWER_BOUND: bool = False,
    APPLY_BETA_SIGMOID: bool = False,
    ALLOW_NEG_EIGVAL: bool = False,
    out: object,
) -> Work:
    """MACs = 3 · positions · K · V, as for a delta rule with a decay for each key.

    Norms take 6 · K + 4. A gate takes 5 · K and an exponential for ``−exp(A) · softplus(g)``, or
    6 · K and the exponential with a lower bound, and K for a bias. Betas count as above.
    """
    positions = v.numel // V
    decays = Decays(keys=K, values=V, by_key=True)
    flops = K + 2 * V + decays.flops_per_state()
    if USE_QK_L2NORM_IN_KERNEL:
        flops += 6 * K + 4
    if USE_GATE_IN_KERNEL:
        per_key = _SIGMOID + 2 if USE_LOWER_BOUND else _SOFTPLUS + 1
        if HAS_BIAS:
            per_key += 1
        flops += per_key * K
        if HAS_A:
            flops += 1
    macs = 3 * positions * K * V
    flops *= positions
    if APPLY_BETA_SIGMOID:
        flops += _flops_of_betas(beta, are_doubled=ALLOW_NEG_EIGVAL)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_dplr_delta_rule_fwd_kernel")
def low_rank_recurrence(
    *, k: TensorSpec, v: TensorSpec, a: TensorSpec, b: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 4 · positions · K · V: a · state, its product with b, the update and q · state.

    A decay for each key multiplies the state; the scale of q takes K.
    """
    positions = k.numel // K
    decays = Decays(keys=K, values=V, by_key=True)
    flops = K + decays.flops_per_state()
    macs = 4 * positions * K * V
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_rwkv7_fwd_kernel")
def rwkv7_recurrence(
    *, k: TensorSpec, v: TensorSpec, kk: TensorSpec, a: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 4 · positions · K · V, as above with the vectors −kk and kk · a, which take 2 · K."""
    work = low_rank_recurrence(k=k, v=v, a=kk, b=a, K=K, V=V, out=out)
    flops = work.other_flops + 2 * k.numel
    return Work(macs=work.macs, other_flops=flops)
