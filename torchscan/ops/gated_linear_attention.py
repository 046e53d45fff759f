"""Gated linear attention: Triton kernels of ``flash-linear-attention``.

Keys have a decay each, so a chunk of ``BT`` positions is divided into ``BT / BC`` blocks. Between
blocks, scores are matrix products; inside of one, sums of products with a decay for each key. All
pairs of positions count as MACs, also those that a kernel skips, as in attention.
"""

from __future__ import annotations

from torchscan.ops.linear_attention import Pointer, count_chunks
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("triton::chunk_gla_fwd_A_kernel_intra_sub_inter")
def scores_between_blocks(
    *, q: TensorSpec, A: TensorSpec, K: int, BT: int, BC: int, out: object
) -> Work:
    """MACs = positions · (BT − BC) · K. Decays take 7 · K for each earlier block."""
    positions = A.numel // BT
    earlier = BT // BC - 1  # twice the mean number of earlier blocks
    return Work(macs=positions * (BT - BC) * K, other_flops=positions * earlier * 7 * K // 2)


@cost_of("triton::chunk_gla_fwd_A_kernel_intra_sub_intra")
def scores_inside_blocks(
    *, q: TensorSpec, A: TensorSpec, K: int, BT: int, BC: int, out: object
) -> Work:
    """MACs = positions · BC · K. A decay takes 3 (difference, exponential, product), a scale 1."""
    positions = A.numel // BT
    return Work(macs=positions * BC * K, other_flops=positions * BC * (3 * K + 1))


@cost_of("triton::chunk_gla_fwd_kernel_o")
def gated_outputs(
    *, v: TensorSpec, g: TensorSpec, A: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (K · V + BT · V): q · state, and the scores · v.

    Decays take 2 · K, the scale V, the mask 1 per pair.
    """
    positions = v.numel // V
    flops = 2 * K + V + BT
    return Work(macs=positions * (K * V + BT * V), other_flops=positions * flops)


@cost_of("triton::chunk_gla_bwd_kernel_dA")
def score_gradients(*, v: TensorSpec, dA: TensorSpec, V: int, BT: int, out: object) -> Work:
    """MACs = positions · BT · V, for ∂result · v; a pair takes 2 for scale and mask."""
    positions = v.numel // V
    return Work(macs=positions * BT * V, other_flops=positions * 2 * BT)


@cost_of("triton::chunk_gla_bwd_kernel_dv")
def gated_value_gradients(
    *, dv: TensorSpec, dh: TensorSpec, A: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (BT · V + K · V): scores · ∂result, and k · ∂state.

    The mask takes 1 per pair, decays 3 · K.
    """
    positions = dv.numel // V
    flops = BT + 3 * K
    return Work(macs=positions * (BT * V + K * V), other_flops=positions * flops)


@cost_of("triton::chunk_gla_bwd_kernel_intra")
def gradients_inside_chunks(
    *, dq: TensorSpec, dA: TensorSpec, K: int, BT: int, BC: int, out: object
) -> Work:
    """MACs = 2 · positions · BT · K, for ∂scores · k and ∂scores · q.

    Inside a block, a pair takes 8 · K: difference, exponential, product and mask, for both. Between
    n blocks, decays take 7 · K for each earlier or later one, and 6 · K · (n − 1) / n at the end.
    """
    positions = dA.numel // BT
    blocks = BT // BC
    between = 7 * (blocks - 1) * K // 2 + 6 * K * (blocks - 1) // blocks
    flops = 8 * BC * K + between
    return Work(macs=2 * positions * BT * K, other_flops=positions * flops)


@cost_of("triton::chunk_gla_bwd_kernel_inter")
def gradients_between_chunks(
    *,
    dq2: TensorSpec,
    dh: TensorSpec,
    dg: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    V: int,
    BT: int,
    out: object,
) -> Work | None:
    """MACs = 2 · positions · K · V, for ∂result · state and v · ∂state.

    A position takes 18 · K: ∂q 3 and ∂k 3 with their decays, 2 sums with the parts from inside the
    chunk, and 10 for the gradient of the decays. A chunk takes 2 · K · V + 2 · K for its state.
    """
    if cu_seqlens is not None:
        return None
    positions = dq2.numel // K
    chunks = count_chunks(positions, T, BT)
    flops = positions * 18 * K + chunks * 2 * K * (V + 1)
    return Work(macs=2 * positions * K * V, other_flops=flops)


@cost_of("triton::chunk_local_cumsum_scalar_kernel", "triton::chunk_local_cumsum_vector_kernel")
def chunk_sums(
    *, s: TensorSpec, o: TensorSpec, BT: int, HAS_SCALE: bool = False, out: object
) -> Work:
    """Return one sum per element, and one product with a scale."""
    return Work(other_flops=(2 if HAS_SCALE else 1) * s.numel)
