"""Kimi delta attention: Triton kernels of ``flash-linear-attention``.

It is a delta rule with a decay for each key, so a chunk of ``BT`` positions is divided into blocks
of ``BC``, as in :mod:`torchscan.ops.gated_linear_attention`. All pairs of positions count as MACs.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import Pointer, count_chunks
from torchscan.ops.delta_rules import count_diagonal_inverses, count_inverses
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

_SOFTPLUS, _SIGMOID = 4, 4


@cost_of("triton::kda_gate_fwd_kernel")
def key_gates(
    *,
    g: TensorSpec,
    yg: TensorSpec,
    beta: Pointer = None,
    HAS_BIAS: bool = False,
    USE_LOWER_BOUND: bool = False,
    out: object,
) -> Work:
    """Return the FLOPs of ``−exp(A) · softplus(g + bias)`` per element, and of a sigmoid of beta.

    With a lower bound, a sigmoid replaces softplus, with one more product.
    """
    per_element = _count_gate(has_bias=HAS_BIAS, is_bounded=USE_LOWER_BOUND)
    flops = per_element * g.numel
    if beta is not None:
        flops += _SIGMOID * beta.numel
    return Work(other_flops=flops)


@cost_of("triton::kda_gate_chunk_cumsum_vector_kernel")
def key_gate_sums(
    *,
    s: TensorSpec,
    HAS_BIAS: bool = False,
    HAS_SCALE: bool = False,
    USE_LOWER_BOUND: bool = False,
    out: object,
) -> Work:
    """Return the FLOPs of gates, as above, of a sum per element, and of a product with a scale."""
    per_element = 1 + _count_gate(has_bias=HAS_BIAS, is_bounded=USE_LOWER_BOUND)
    if HAS_SCALE:
        per_element += 1
    return Work(other_flops=per_element * s.numel)


def _count_gate(*, has_bias: bool, is_bounded: bool) -> int:
    """Return the FLOPs of the gate of a key."""
    flops = _SOFTPLUS + 1
    if is_bounded:
        flops = _SIGMOID + 2
    if has_bias:
        flops += 1
    return flops


@cost_of("triton::chunk_kda_fwd_kernel_intra_token_parallel")
def scores_of_blocks(
    *, q: TensorSpec, beta: TensorSpec, Aqk: TensorSpec, K: int, BT: int, BC: int, out: object
) -> Work:
    """MACs = 2 · positions · BC · K: q · k and k · k.

    On average, a position reads the (BC + 1) / 2 that are not later. Each takes 4 · K for
    decay, product and mask, and 3 for scale, mask and beta.
    """
    positions = Aqk.numel // BT
    macs = 2 * positions * BC * K
    flops = (BC + 1) * (4 * K + 3) // 2 + K
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_kda_fwd_kernel_inter_solve_fused")
def scores_between_blocks_and_inverses(
    *,
    q: TensorSpec,
    beta: TensorSpec,
    Aqk: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    K: int,
    BT: int,
    BC: int,
    USE_SAFE_GATE: bool = False,
    out: object,
) -> Work:
    """MACs = 2 · positions · (BT − BC) · K, for q · k and k · k, and those of the inverses.

    In all but the first of n blocks, a position takes 5 · K for the decays of q and k, and 3 · K
    for those of the keys of each earlier block; a pair takes a scale or beta. With bounded gates
    ("safe"), another kernel inverts the blocks on the diagonal.
    """
    positions = Aqk.numel // BT
    later = BT // BC - 1
    chunks = count_chunks(positions, T, BT, chunk_indices)
    macs, flops = count_inverses(chunks, BT, has_diagonal=USE_SAFE_GATE)
    macs += 2 * positions * (BT - BC) * K

    per_position = 5 * K * later * BC // BT
    per_position += 3 * K * later // 2
    per_position += BC * later
    flops += positions * per_position
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_kda_fwd_kernel_intra_sub_chunk")
def scores_and_inverses_of_blocks(
    *,
    q: TensorSpec,
    beta: TensorSpec,
    Aqk: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    K: int,
    BT: int,
    BC: int,
    out: object,
) -> Work:
    """MACs = 2 · positions · BC · K for q · k and k · k, and those of the inverses.

    Gates are bounded. Decays take 9 · K per position: a difference, two exponentials, a sign, two
    masks and three products; a block takes K for their offset. A pair takes scale, beta and the
    mask of q · k.
    """
    positions = Aqk.numel // BT
    chunks = count_chunks(positions, T, BT, chunk_indices)
    macs, flops = count_diagonal_inverses(chunks, BT)
    macs += 2 * positions * BC * K
    flops += positions * 9 * K
    flops += positions * 3 * BC
    blocks = chunks * (BT // BC)
    flops += blocks * K
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::recompute_w_u_fwd_kda_kernel")
def wy_representation_with_key_decays(
    *,
    u: TensorSpec,
    beta: TensorSpec,
    A: TensorSpec,
    K: int,
    V: int,
    BT: int,
    STORE_QG: bool = False,
    STORE_KG: bool = False,
    out: object,
) -> Work:
    """MACs = positions · BT · (K + V), for w and u; beta and the decay take V + 3 · K.

    Keys with the decay to the end of the chunk take 4 · K, queries with their decay 2 · K.
    """
    positions = u.numel // V
    flops = V + 3 * K
    if STORE_KG:
        flops += 4 * K
    if STORE_QG:
        flops += 2 * K
    macs = positions * BT * (K + V)
    flops *= positions
    return Work(macs=macs, other_flops=flops)
