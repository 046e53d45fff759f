"""Delta rules with a diagonal-plus-low-rank (DPLR) transition, as in RWKV 7.

Triton kernels of ``flash-linear-attention``. The transition of a state is a diagonal matrix of
decays plus a · bᵀ. Inside a chunk of ``BT`` positions, all pairs of q or a with k or b count.
Products of a and b in a chunk form a triangular matrix; its inverse counts as the kernels compute
it.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import Pointer, count_chunks, flops_of_decayed_states
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

#: rows and columns of the blocks of an inverse
_BLOCK = 16
#: products and sums of blocks below the diagonal, by the number of blocks on the diagonal
_BLOCKS_BELOW = {1: (0, 0), 2: (2, 0), 4: (17, 4)}


@cost_of("triton::chunk_rwkv6_fwd_cumsum_kernel")
def sums_as_products(
    *, s: TensorSpec, oi: TensorSpec, oe: TensorSpec, BT: int, HAS_SCALE: bool = False, out: object
) -> Work:
    """MACs = 2 · numel(s) · BT, and a scale takes 2 per element.

    Inclusive and exclusive cumulative sums, computed as matrix products.
    """
    macs = 2 * s.numel * BT
    flops = 2 * s.numel if HAS_SCALE else 0
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_fwd_A_kernel_intra_tensorcore")
def low_rank_scores(
    *,
    q: TensorSpec,
    Aqb: TensorSpec,
    Aak: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    K: int,
    BT: int,
    out: object,
) -> Work:
    """MACs = 4 · positions · BT · K: q and a, each times k and b. A pair takes 4 masks.

    A position takes 15 · K: a scale, two differences, a sign, three exponentials and 8 products
    with them; a chunk takes 3 · K for the decays from its middle.
    """
    positions = Aak.numel // BT
    chunks = count_chunks(positions, T, BT, chunk_indices)
    pairs = positions * BT
    macs = 4 * pairs * K
    flops = 4 * pairs
    flops += 15 * positions * K
    flops += 3 * chunks * K
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_fwd_A_kernel_intra_sub_intra")
def low_rank_scores_by_rows(
    *, q: TensorSpec, Aqb: TensorSpec, Aak: TensorSpec, K: int, BT: int, out: object
) -> Work:
    """MACs = 4 · positions · BT · K, as above, as sums of products.

    A pair takes 8 · K, for 2 differences, 2 exponentials and 4 products, and 4 masks. A position
    takes 10 · K: a scale, a sign, a sum, 3 exponentials and 4 products with them.
    """
    positions = Aak.numel // BT
    pairs = positions * BT
    macs = 4 * pairs * K
    flops = pairs * (8 * K + 4)
    flops += 10 * positions * K
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::prepare_wy_repr_fwd_kernel_safe")
def inverses_by_powers(
    *,
    A_ab: TensorSpec,
    A_ab_inv: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    BT: int,
    out: object,
) -> Work | None:
    """Return the cost of inverses from powers of blocks of 16, for chunks of 16, 32 or 64.

    A block on the diagonal takes 6 products, for its powers 2, 4 and 8 and the product of four
    sums with the identity, and a mask. Of 2 or 4 blocks, those below take 2 or 17 products.
    """
    blocks = BT // _BLOCK
    if blocks not in _BLOCKS_BELOW:
        return None
    chunks = count_chunks(A_ab.numel // BT, T, BT, chunk_indices)
    products, sums = _BLOCKS_BELOW[blocks]
    products += 6 * blocks
    sums += 5 * blocks
    macs = chunks * products * _BLOCK**3
    flops = chunks * sums * _BLOCK**2
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::prepare_wy_repr_fwd_kernel_chunk32")
def inverses_by_rows(
    *,
    A_ab: TensorSpec,
    A_ab_inv: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    BT: int,
    out: object,
) -> Work:
    """Return the cost of inverses by substitution of each row but the first: BT · BT MACs.

    A row takes 3 · BT · BT + 2 · BT: it is selected and summed, masked, added, and put back. A
    chunk takes a mask and a sum with the identity.
    """
    chunks = count_chunks(A_ab.numel // BT, T, BT, chunk_indices)
    rows = chunks * (BT - 1)
    macs = rows * BT**2
    flops = rows * 3 * BT**2
    flops += rows * 2 * BT
    flops += chunks * 2 * BT**2
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::prepare_wy_repr_fwd_kernel_chunk64")
def inverses_of_halves(
    *,
    A_ab: TensorSpec,
    A_ab_inv: TensorSpec,
    chunk_indices: Pointer = None,
    T: int,
    BT: int,
    BC: int,
    GATHER_SUPPORTED: bool = True,
    out: object,
) -> Work:
    """Return the cost of inverting two diagonal blocks of BC rows, and of the block below them.

    The diagonal blocks are inverted as in :func:`inverses_by_rows`; the block below takes two
    products. With ``GATHER_SUPPORTED``, a row is gathered instead of selected by a mask and a sum.
    """
    chunks = count_chunks(A_ab.numel // BT, T, BT, chunk_indices)
    rows = chunks * 2 * (BC - 1)
    macs = rows * BC**2
    macs += chunks * 2 * BC**3

    per_row = BC**2 + 2 * BC
    if not GATHER_SUPPORTED:
        per_row += 2 * BC**2
    flops = rows * per_row
    flops += chunks * 4 * BC**2
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::wu_fwd_kernel")
def low_rank_wy_representation(
    *,
    u: TensorSpec,
    A_ab_inv: TensorSpec,
    A_ak: TensorSpec,
    K: int,
    V: int,
    BT: int,
    out: object,
) -> Work:
    """MACs = positions · BT · (BT + K + V): the inverse · a · k, w and u. A pair takes 2 masks."""
    positions = u.numel // V
    pairs = positions * BT
    macs = pairs * (BT + K + V)
    flops = 2 * pairs
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_fwd_kernel_h")
def low_rank_states(
    *, v: TensorSpec, bg: TensorSpec, h: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 3 · positions · K · V: w · state, b · (u + w · state) and k · v.

    u takes V per position. A chunk decays its state by key, and adds to it.
    """
    positions = v.numel // V
    macs = 3 * positions * K * V
    flops = positions * V + flops_of_decayed_states(h, K, V)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_fwd_kernel_o")
def low_rank_outputs(
    *, v: TensorSpec, A_qk: TensorSpec, A_qb: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (K · V + 2 · BT · V): q · state, and both scores · values.

    A pair takes 2 masks, an element of the result 2 sums.
    """
    positions = v.numel // V
    pairs = positions * BT
    macs = positions * K * V
    macs += 2 * pairs * V
    flops = 2 * pairs + 2 * v.numel
    return Work(macs=macs, other_flops=flops)
