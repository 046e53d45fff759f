"""Delta rules: Triton kernels of ``flash-linear-attention``, by the names of their parameters.

In each chunk of ``BT`` positions, the rule is a product with the inverse of a triangular matrix
(the WY representation). All pairs of positions count, as in attention; the inverse counts as its
kernels compute it, in blocks of 16.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import PAIR_DECAY, Decays, Pointer, count_chunks
from torchscan.ops.low_rank_transition_gradients import low_rank_wy_gradients
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
    """MACs = positions · BT · K, for k · k; a pair takes 2 for beta and mask, besides a decay."""
    positions = A.numel // BT
    per_pair = 2
    if USE_G:
        per_pair += PAIR_DECAY
    macs = positions * BT * K
    flops = positions * BT * per_pair
    return Work(macs=macs, other_flops=flops)


@cost_of(
    "triton::solve_tril_16x16_kernel",
    "triton::merge_16x16_to_32x32_inverse_kernel",
    "triton::merge_16x16_to_64x64_inverse_kernel",
)
def chunk_inverses(
    *, A: TensorSpec, Ai: TensorSpec, chunk_indices: Pointer = None, T: int, BT: int, out: object
) -> Work:
    """Return the cost of the inverses of unit lower triangular matrices, one for each chunk.

    A row of a diagonal block is substituted into the 14 rows that follow the second (16 · 16 MACs
    each). Of n blocks, (n − d) lie d below the diagonal: each takes d + 1 products of blocks.
    """
    chunks = count_chunks(A.numel // BT, T, BT, chunk_indices)
    macs, flops = count_inverses(chunks, BT)
    return Work(macs=macs, other_flops=flops)


def count_diagonal_inverses(chunks: int, width: int) -> tuple[int, int]:
    """Return the MACs and other FLOPs of the inverses of the diagonal blocks of all chunks.

    A block takes a mask, a sign and a sum with the identity, and for each row a sign, a mask, a sum
    and a choice of the row.
    """
    blocks = chunks * (width // _BLOCK)
    rows = blocks * (_BLOCK - 2)
    macs = rows * _BLOCK**2
    flops = 3 * blocks * _BLOCK**2 + rows * (3 * _BLOCK + _BLOCK**2)
    return macs, flops


def count_inverses(chunks: int, width: int, *, has_diagonal: bool = False) -> tuple[int, int]:
    """Return the MACs and other FLOPs of the inverses of all chunks.

    A block d below the diagonal takes d + 1 products, a sign and d − 1 sums. ``has_diagonal``: an
    earlier kernel inverts the blocks on the diagonal.
    """
    macs, flops = (0, 0) if has_diagonal else count_diagonal_inverses(chunks, width)
    blocks = width // _BLOCK
    for below in range(1, blocks):
        macs += chunks * (blocks - below) * (below + 1) * _BLOCK**3
        flops += chunks * (blocks - below) * below * _BLOCK**2
    return macs, flops


@cost_of("triton::chunk_gated_delta_rule_fwd_kkt_solve_kernel")
def chunk_key_products_and_inverses(
    *,
    k: TensorSpec,
    beta: TensorSpec,
    A: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    K: int,
    BT: int,
    USE_G: bool = False,
    out: object,
) -> Work:
    """Return the cost of the products of keys and of the inverses, by one kernel."""
    products = chunk_key_products(k=k, beta=beta, A=A, K=K, BT=BT, USE_G=USE_G, out=out)
    chunks = count_chunks(A.numel // BT, T, BT, chunk_indices)
    macs, flops = count_inverses(chunks, BT)
    return Work(macs=products.macs + macs, other_flops=products.other_flops + flops)


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
    g: Pointer = None,
    gk: Pointer = None,
    gv: Pointer = None,
    out: object,
) -> Work | None:
    """MACs = positions · BT · (K + V), for w and u; beta takes K + V, a decay K + 1 more.

    Return None for kernels of the same name with decays by key or value, which compute other
    layers.
    """
    if gk is not None or gv is not None:
        return None
    positions = u.numel // V
    flops = K + V
    if g is not None:
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
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_GK: bool = False,
    out: object,
) -> Work:
    """MACs = 2 · positions · K · V: w · state, and k · (v − w · state).

    Decays multiply the state of each chunk; by head, they take V + 3 per position.
    """
    positions = v.numel // V
    chunks = h.numel // (K * V)
    decays = Decays(keys=K, values=V, by_head=USE_G, by_key=USE_GK)
    flops = positions * V + chunks * decays.flops_per_state()
    if USE_G:
        flops += positions * (V + 3)
    macs = 2 * positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64")
def chunk_delta_state_gradients(
    *,
    dv: TensorSpec,
    w: TensorSpec,
    dh: TensorSpec,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_GK: bool = False,
    out: object,
) -> Work:
    """MACs = 3 · positions · K · V: k · ∂state, q · ∂result and w · ∂v.

    ∂v takes a sum (V), an element of ∂state 3 per chunk (scale, difference, sum). Decays multiply
    ∂state of each chunk; by head, they take V + K + 4 per position.
    """
    positions = dv.numel // V
    chunks = dh.numel // (K * V)
    decays = Decays(keys=K, values=V, by_head=USE_G, by_key=USE_GK)
    flops = positions * V + chunks * (3 * K * V + decays.flops_per_state())
    if USE_G:
        flops += positions * (V + K + 4)
    macs = 3 * positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::prepare_wy_repr_bwd_kernel")
def chunk_wy_gradients(
    *,
    dv: TensorSpec,
    dw: TensorSpec,
    K: int,
    V: int,
    BT: int,
    A: Pointer = None,
    A_ab_inv: Pointer = None,
    g: Pointer = None,
    gv: Pointer = None,
    db: Pointer = None,
    dp: Pointer = None,
    out: object,
) -> Work | None:
    """MACs = positions · BT · (4 · K + 2 · V + 2 · BT): ∂A from w and u, ∂k twice, ∂v, A · ∂A · A.

    Beta and its gradient take 10 · K + 4 · V, a pair 3 for two masks and a sign. The kernel of
    gated rules, with ``db``, computes k · k again: K MACs and a product per pair. A decay takes 6
    per pair, and 3 · K + 3 per position.

    Other kernels have this name, too: of these, only the DPLR kernel
    (:func:`low_rank_wy_gradients`) has a formula.
    """
    if A_ab_inv is not None:
        return low_rank_wy_gradients(dv, K, V, BT)
    if A is None or gv is not None or dp is not None:
        return None
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
