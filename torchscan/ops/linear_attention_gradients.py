"""Gradients of linear attention: Triton kernels of ``flash-linear-attention``.

As for the results, all pairs of positions in a chunk of ``BT`` count.
"""

from __future__ import annotations

from torchscan.ops.linear_attention import Pointer, count_chunks
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("triton::chunk_bwd_kernel_dh")
def chunk_state_gradients(
    *,
    q: TensorSpec,
    do: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    USE_GK: bool = False,
    USE_GV: bool = False,
    out: object,
) -> Work | None:
    """MACs = positions · K · V, for the gradients of the states; the scale takes K per position.

    A decay multiplies the state of each chunk (K · V), and q (K) or the gradient of the result (V)
    with an exponential; by key or value there are K or V exponentials.
    """
    if cu_seqlens is not None:
        return None
    positions = q.numel // K
    chunks = count_chunks(positions, T, BT)
    flops = positions * K
    for is_used, per_position, per_chunk in (
        (USE_G, K + 1, 1),
        (USE_G_GAMMA, K + 2, 2),
        (USE_GK, 2 * K, K),
        (USE_GV, 2 * V, V),
    ):
        if is_used:
            flops += positions * per_position
            flops += chunks * (K * V + per_chunk)
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

    A pair takes 2 for scale and mask. A decay takes 3 more per pair, 3 per position and V products;
    a constant one also a product per position.
    """
    positions = dv.numel // V
    flops = positions * 2 * BT
    if USE_G or USE_G_GAMMA:
        flops += positions * (3 * BT + 3 + V)
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

    A pair takes 3 for scale, sum and mask, and 3 more for a decay. Given scores (``USE_A``) need
    only the mask.
    """
    positions = dv.numel // V
    if USE_A:
        macs = positions * BT * V
        flops = positions * BT
        return Work(macs=macs, other_flops=flops)
    per_pair = 6 if USE_G or USE_G_GAMMA else 3
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
    T: int,
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
    chunks = count_chunks(positions, T, BT)
    macs *= positions
    flops = positions * flops + chunks * per_chunk
    return Work(macs=macs, other_flops=flops)
