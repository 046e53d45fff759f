"""Delta rules: Triton kernels of ``flash-linear-attention``, by the names of their parameters.

In each chunk of ``BT`` positions, the rule is a product with the inverse of a triangular matrix
(the WY representation). All pairs of positions count, as in attention; the inverse counts as its
kernels compute it, in blocks of 16.
"""

from __future__ import annotations

from torchscan.ops.linear_attention import Pointer, count_chunks
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

#: rows and columns of the blocks of an inverse
_BLOCK = 16


@cost_of("triton::chunk_scaled_dot_kkt_fwd_kernel")
def chunk_key_products(
    *,
    k: TensorSpec,
    beta: TensorSpec,
    A: TensorSpec,
    K: int,
    BT: int,
    USE_G: bool = False,
    out: object,
) -> Work:
    """MACs = positions · BT · K, for k · k; a pair takes 2 for beta and mask, and 3 for a decay."""
    positions = A.numel // BT
    per_pair = 5 if USE_G else 2
    macs = positions * BT * K
    flops = positions * BT * per_pair
    return Work(macs=macs, other_flops=flops)


@cost_of(
    "triton::solve_tril_16x16_kernel",
    "triton::merge_16x16_to_32x32_inverse_kernel",
    "triton::merge_16x16_to_64x64_inverse_kernel",
)
def chunk_inverses(
    *, A: TensorSpec, Ai: TensorSpec, cu_seqlens: Pointer = None, T: int, BT: int, out: object
) -> Work | None:
    """Return the cost of the inverses of unit lower triangular matrices, one for each chunk.

    A row of a diagonal block is substituted into the 14 rows that follow the second (16 · 16 MACs
    each). Of n blocks, (n − d) lie d below the diagonal: each takes d + 1 products of blocks.
    """
    if cu_seqlens is not None:
        return None
    return cost_of_inverses(A.numel // BT, T, BT)


def cost_of_inverses(positions: int, length: int, width: int) -> Work:
    """Return the cost of the inverses of all chunks of this width.

    Besides MACs, a diagonal block takes a mask, a sign and a sum with the identity, and for each
    row a sign, a mask, a sum and a choice of the row. A block d below takes a sign and d − 1 sums.
    """
    chunks = count_chunks(positions, length, width)
    blocks = width // _BLOCK
    rows = blocks * (_BLOCK - 2)
    macs = rows * _BLOCK**2
    flops = 3 * blocks * _BLOCK**2 + rows * (3 * _BLOCK + _BLOCK**2)
    for below in range(1, blocks):
        macs += (blocks - below) * (below + 1) * _BLOCK**3
        flops += (blocks - below) * below * _BLOCK**2
    macs = chunks * macs
    flops = chunks * flops
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gated_delta_rule_fwd_kkt_solve_kernel")
def chunk_key_products_and_inverses(
    *,
    k: TensorSpec,
    beta: TensorSpec,
    A: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    BT: int,
    USE_G: bool = False,
    out: object,
) -> Work | None:
    """Return the cost of the products of keys and of the inverses, by one kernel."""
    if cu_seqlens is not None:
        return None
    products = chunk_key_products(k=k, beta=beta, A=A, K=K, BT=BT, USE_G=USE_G, out=out)
    inverses = cost_of_inverses(A.numel // BT, T, BT)
    macs = products.macs + inverses.macs
    flops = products.other_flops + inverses.other_flops
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::recompute_w_u_fwd_kernel")
def chunk_wy_representation(
    *,
    v: TensorSpec,
    beta: TensorSpec,
    u: TensorSpec,
    A: TensorSpec,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    out: object,
) -> Work:
    """MACs = positions · BT · (K + V), for w and u; beta takes K + V, a decay K + 1 more."""
    positions = u.numel // V
    flops = K + V
    if USE_G:
        flops += K + 1
    macs = positions * BT * (K + V)
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gated_delta_rule_fwd_kernel_h_blockdim64")
def chunk_delta_states(
    *,
    v: TensorSpec,
    w: TensorSpec,
    h: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_GK: bool = False,
    out: object,
) -> Work | None:
    """MACs = 2 · positions · K · V: w · state, and k · (v − w · state).

    A decay takes V + 3 per position and K · V + 1 per chunk; by key, K · V + K per chunk.
    """
    if cu_seqlens is not None:
        return None
    positions = v.numel // V
    chunks = count_chunks(positions, T, BT)
    flops = positions * V
    if USE_G:
        flops += positions * (V + 3) + chunks * (K * V + 1)
    if USE_GK:
        flops += chunks * (K * V + K)
    macs = 2 * positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64")
def chunk_delta_state_gradients(
    *,
    dv: TensorSpec,
    w: TensorSpec,
    dh: TensorSpec,
    cu_seqlens: Pointer = None,
    T: int,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_GK: bool = False,
    out: object,
) -> Work | None:
    """MACs = 3 · positions · K · V: k · ∂state, q · ∂result and w · ∂v.

    ∂v takes a sum (V), an element of ∂state 3 per chunk (scale, difference, sum). A decay takes
    V + K + 4 per position and K · V + 1 per chunk; by key, K · V + K per chunk.
    """
    if cu_seqlens is not None:
        return None
    positions = dv.numel // V
    chunks = count_chunks(positions, T, BT)
    flops = positions * V + chunks * 3 * K * V
    if USE_G:
        flops += positions * (V + K + 4) + chunks * (K * V + 1)
    if USE_GK:
        flops += chunks * (K * V + K)
    macs = 3 * positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::prepare_wy_repr_bwd_kernel")
def chunk_wy_gradients(
    *,
    dv: TensorSpec,
    beta: TensorSpec,
    A: TensorSpec,
    dw: TensorSpec,
    K: int,
    V: int,
    BT: int,
    g: Pointer = None,
    db: Pointer = None,
    out: object,
) -> Work:
    """MACs = positions · BT · (4 · K + 2 · V + 2 · BT): ∂A from w and u, ∂k twice, ∂v, A · ∂A · A.

    Beta and its gradient take 10 · K + 4 · V, a pair 3 for two masks and a sign. The kernel of
    gated rules, with ``db``, computes k · k again: K MACs and a product per pair. A decay takes 6
    per pair, and 3 · K + 3 per position.
    """
    positions = dv.numel // V
    macs, flops = BT * (4 * K + 2 * V + 2 * BT), 10 * K + 4 * V + 3 * BT
    if db is not None:
        macs += BT * K
        flops += BT
    if g is not None:
        flops += 6 * BT + 3 * K + 3
    macs *= positions
    flops *= positions
    return Work(macs=macs, other_flops=flops)
