"""Recurrent forms of linear attention: Triton kernels of ``flash-linear-attention``.

A position adds an outer product to a state of K · V elements and multiplies it by a vector. Each is
K · V MACs, like ``addr`` and ``mv`` of torch. A kernel goes through all positions of all heads.
"""

from __future__ import annotations

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
    out: object,
) -> Work:
    """MACs = 2 · positions · K · V; the scale of q takes K.

    A decay multiplies the state (K · V); it takes an exponential, or K or V of them.
    """
    positions = k.numel // K
    flops = K + _flops_of_decays(K, V, USE_G or USE_G_GAMMA, by_key=USE_GK, by_value=USE_GV)
    macs = 2 * positions * K * V
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::fused_recurrent_bwd_kernel")
def linear_recurrence_gradients(
    *,
    k: TensorSpec,
    do: TensorSpec,
    K: int,
    V: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_GK: bool = False,
    USE_GV: bool = False,
    out: object,
) -> Work:
    """MACs = 5 · positions · K · V: the states again, ∂q, ∂states, ∂k and ∂v.

    Two scales take 2 · K. Decays multiply the states and their gradients; their own gradients take
    4 per key, or per value.
    """
    positions = k.numel // K
    flops = 2 * K
    flops += 2 * _flops_of_decays(K, V, USE_G or USE_G_GAMMA, by_key=USE_GK, by_value=USE_GV)
    if USE_G or USE_GK:
        flops += 4 * K
    if USE_GV:
        flops += 4 * V
    macs = 5 * positions * K * V
    flops *= positions
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
    APPLY_BETA_SIGMOID: bool = False,
    out: object,
) -> Work:
    """MACs = 3 · positions · K · V, as without a gate; norms of q and k take 6 · K + 4.

    A gate ``−exp(A) · softplus(g + bias)`` takes 7, the sigmoid of beta 4.
    """
    positions = v.numel // V
    flops = K + 2 * V + _flops_of_decays(K, V, USE_G, by_key=USE_GK, by_value=USE_GV)
    if USE_QK_L2NORM_IN_KERNEL:
        flops += 6 * K + 4
    if USE_GATE_IN_KERNEL:
        flops += _SOFTPLUS + 3
    if APPLY_BETA_SIGMOID:
        flops += _SIGMOID
    macs = 3 * positions * K * V
    flops *= positions
    return Work(macs=macs, other_flops=flops)


def _flops_of_decays(
    keys: int, values: int, is_scalar: bool, *, by_key: bool, by_value: bool
) -> int:
    """Return the FLOPs per position of the decays that multiply a state."""
    flops = 0
    for is_used, exponentials in ((is_scalar, 1), (by_key, keys), (by_value, values)):
        if is_used:
            flops += keys * values + exponentials
    return flops
