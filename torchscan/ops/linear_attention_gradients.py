"""Gradients of linear attention: Triton kernels of ``flash-linear-attention``.

As for the results, all pairs of positions in a chunk of ``BT`` count.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import PAIR_DECAY, Decays, Pointer, count_chunks
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("triton::chunk_bwd_kernel_dh")
def chunk_state_gradients(
    *,
    q: TensorSpec,
    do: TensorSpec,
    dh: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    V: int,
    BT: int,
    BS: int | None = None,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_GK: bool = False,
    USE_GV: bool = False,
    out: object,
) -> Work | None:
    """MACs = positions · K · V, for the gradients of the states; the scale takes K per position.

    Decays multiply the state of each chunk, and q or, by value, the gradient of the result. Packed
    sequences have a chunk for each state, unless several chunks share a state (``BS``).
    """
    positions = q.numel // K
    chunks = count_chunks(positions, T, BT)
    if cu_seqlens is not None:
        if BS not in (None, BT):
            return None
        chunks = dh.numel // (K * V)
    decays = Decays(
        keys=K,
        values=V,
        by_head=USE_G,
        is_constant=USE_G_GAMMA,
        by_key=USE_GK,
        by_value=USE_GV,
    )
    flops = positions * (K + decays.flops_per_position(K, 1)) + chunks * decays.flops_per_state()
    macs = positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_bwd_kernel_dv")
def chunk_value_gradients(
    *,
    q: TensorSpec,
    dv: TensorSpec,
    dh: TensorSpec,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    out: object,
) -> Work:
    """MACs = positions · (BT · K + K · V + BT · V): q · k, k · ∂state and the scores · ∂result.

    A pair takes 2 for scale and mask. Besides that of pairs, a decay takes 3 per position and V
    products; a constant one also a product per position.
    """
    positions = dv.numel // V
    flops = positions * 2 * BT
    if USE_G or USE_G_GAMMA:
        flops += positions * (PAIR_DECAY * BT + 3 + V)
    if USE_G_GAMMA:
        flops += positions
    macs = BT * K + K * V + BT * V
    macs *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_bwd_kernel_dv_local")
def value_gradients_in_chunks(
    *,
    q: TensorSpec,
    dv: TensorSpec,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_A: bool = False,
    out: object,
) -> Work:
    """MACs = positions · (BT · K + BT · V): q · k and the scores · ∂result.

    A pair takes 3 for scale, sum and mask, besides a decay. Given scores (``USE_A``) need
    only the mask.
    """
    positions = dv.numel // V
    if USE_A:
        macs = positions * BT * V
        flops = positions * BT
        return Work(macs=macs, other_flops=flops)
    per_pair = 3
    if USE_G or USE_G_GAMMA:
        per_pair += PAIR_DECAY
    flops = positions * BT * per_pair
    if USE_G_GAMMA:
        flops += positions
    macs = positions * BT * (K + V)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_bwd_kernel_dqkwg")
def chunk_query_and_key_gradients(
    *,
    v: TensorSpec,
    dq: TensorSpec,
    dh: TensorSpec,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_DW: bool = False,
    out: object,
) -> Work:
    """MACs = positions · (BT · V + 2 · K · V + 2 · BT · K): ∂scores, ∂q and ∂k.

    ``USE_DW`` adds K · V for ∂w, which is negated. Without a decay, a pair takes 1 for the mask and
    a position 3 · K. A decay takes 5 per pair and 3 · K for q and k; its gradient another 6 · K and
    6 per position, and 2 · (K · V + 1) per chunk.
    """
    positions = dq.numel // K
    macs = BT * V + 2 * K * V + 2 * BT * K
    flops, per_chunk = BT + 3 * K, 0
    if USE_G:
        flops = 5 * BT + 9 * K + 6
        per_chunk = 2 * (K * V + 1)
    elif USE_G_GAMMA:
        flops = 5 * BT + 3 * K + 6
    if USE_DW:
        macs += K * V
        flops += K
    chunks = dh.numel // (K * V)
    macs *= positions
    flops = positions * flops + chunks * per_chunk
    return Work(macs=macs, other_flops=flops)
