"""Gated linear attention: Triton kernels of ``flash-linear-attention``.

Each key has a decay, so a chunk of ``BT`` positions is divided into ``BT / BC`` blocks. Between
blocks, scores are matrix products; inside a block, they are sums of products with a decay for each
key. All pairs of positions count as MACs, also those that a kernel skips, as in attention.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

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
    macs = positions * (BT - BC) * K
    flops = positions * earlier * 7 * K // 2
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gla_fwd_A_kernel_intra_sub_intra")
def scores_inside_blocks(
    *, q: TensorSpec, A: TensorSpec, K: int, BT: int, BC: int, out: object
) -> Work:
    """MACs = positions · BC · K. A decay takes 3 (difference, exponential, product), a scale 1."""
    positions = A.numel // BT
    macs = positions * BC * K
    flops = positions * BC * (3 * K + 1)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gla_fwd_kernel_o")
def gated_outputs(
    *, v: TensorSpec, g: TensorSpec, A: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (K · V + BT · V): q · state, and the scores · v.

    Decays take 2 · K, the scale V, the mask 1 per pair.
    """
    positions = v.numel // V
    flops = 2 * K + V + BT
    macs = positions * (K * V + BT * V)
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gla_bwd_kernel_dA")
def score_gradients(*, v: TensorSpec, dA: TensorSpec, V: int, BT: int, out: object) -> Work:
    """MACs = positions · BT · V, for ∂result · v; a pair takes 2 for scale and mask."""
    positions = v.numel // V
    macs = positions * BT * V
    flops = positions * 2 * BT
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gla_bwd_kernel_dv")
def gated_value_gradients(
    *, dv: TensorSpec, dh: TensorSpec, A: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (BT · V + K · V): scores · ∂result, and k · ∂state.

    The mask takes 1 per pair, decays 3 · K.
    """
    positions = dv.numel // V
    flops = BT + 3 * K
    macs = positions * (BT * V + K * V)
    flops *= positions
    return Work(macs=macs, other_flops=flops)


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
    others = blocks - 1
    flops = 8 * BC * K + 7 * others * K // 2
    flops += 6 * K * others // blocks
    macs = 2 * positions * BT * K
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gla_bwd_kernel_inter")
def gradients_between_chunks(
    *,
    dq2: TensorSpec,
    dh: TensorSpec,
    dg: TensorSpec,
    K: int,
    V: int,
    BT: int,
    out: object,
) -> Work:
    """MACs = 2 · positions · K · V, for ∂result · state and v · ∂state.

    A position takes 18 · K: ∂q 3 and ∂k 3 with their decays, 2 sums with the parts from inside the
    chunk, and 10 for the gradient of the decays. A chunk takes 2 · K · V + 2 · K for its state.
    """
    positions = dq2.numel // K
    chunks = dh.numel // (K * V)
    flops = positions * 18 * K
    flops += chunks * 2 * K * (V + 1)
    macs = 2 * positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_local_cumsum_scalar_kernel", "triton::chunk_local_cumsum_vector_kernel")
def chunk_sums(
    *, s: TensorSpec, o: TensorSpec, BT: int, HAS_SCALE: bool = False, out: object
) -> Work:
    """Return one sum per element, and one product with a scale."""
    flops = (2 if HAS_SCALE else 1) * s.numel
    return Work(other_flops=flops)
