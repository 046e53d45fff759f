"""Gradients of delta rules with a diagonal-plus-low-rank (DPLR) transition, as in RWKV 7.

Triton kernels of ``flash-linear-attention``. All pairs of positions in a chunk of ``BT`` count.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import flops_of_decayed_states
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("triton::chunk_dplr_bwd_kernel_dAu")
def low_rank_score_gradients(
    *, dv_new: TensorSpec, A_qb: TensorSpec, dA_qb: TensorSpec, V: int, BT: int, out: object
) -> Work:
    """MACs = 3 · positions · BT · V: ∂result · v, ∂result · u and the scores · ∂result.

    A pair takes 5: a mask, and a scale and a mask of both gradients.
    """
    positions = dv_new.numel // V
    pairs = positions * BT
    macs = 3 * pairs * V
    flops = 5 * pairs
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_bwd_kernel_dhu")
def low_rank_state_gradients(
    *, bg: TensorSpec, dv: TensorSpec, dh: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 3 · positions · K · V: b · ∂state, q · ∂result and w · ∂v.

    ∂v takes a sum (V). A chunk decays ∂state by key, and adds to it.
    """
    positions = dv.numel // V
    macs = 3 * positions * K * V
    flops = positions * V + flops_of_decayed_states(dh, K, V)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_bwd_kernel_dv")
def low_rank_value_gradients(
    *, A_qk: TensorSpec, kg: TensorSpec, dv: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (K · V + BT · V): k · ∂state, and the scores · ∂result; a pair: a mask."""
    positions = dv.numel // V
    pairs = positions * BT
    macs = positions * K * V + pairs * V
    return Work(macs=macs, other_flops=pairs)


@cost_of("triton::chunk_dplr_bwd_o_kernel")
def low_rank_gradients_between_chunks(
    *, dq: TensorSpec, db: TensorSpec, dh: TensorSpec, K: int, V: int, out: object
) -> Work:
    """MACs = 4 · positions · K · V: ∂q, ∂k, ∂b and ∂w from states and their gradients.

    The gradient of the decays takes 4 · K per position, for k · ∂k and b · ∂b, and
    2 · K · V + 2 · K per chunk.
    """
    positions = dq.numel // K
    chunks = dh.numel // (K * V)
    macs = 4 * positions * K * V
    flops = 4 * positions * K
    flops += chunks * 2 * K * (V + 1)
    return Work(macs=macs, other_flops=flops)


# Not registered: its kernel, ``prepare_wy_repr_bwd_kernel``, has the same name as that of delta
# rules, whose formula calls this one.
def low_rank_wy_gradients(dv: TensorSpec, keys: int, values: int, width: int) -> Work:
    """Return the cost of ∂a, ∂v and the gradients of the matrices of a · k and a · b.

    MACs = positions · BT · (5 · BT + 2 · K + 2 · V): the matrix of a · k times the inverse;
    ∂u · v, and a product with it for both matrices; ∂w · a; two products of the inverse with its
    gradient; ∂a and ∂v. A pair takes 6 masks, an element of ∂v a sum.
    """
    positions = dv.numel // values
    macs = positions * width * (5 * width + 2 * keys + 2 * values)
    return Work(macs=macs, other_flops=positions * (6 * width + values))


@cost_of("triton::chunk_dplr_bwd_kernel_intra_tensorcore")
def low_rank_gradients_inside_chunks(
    *, dAqb: TensorSpec, dAak: TensorSpec, dgk_offset: TensorSpec, K: int, BT: int, out: object
) -> Work:
    """MACs = 8 · positions · BT · K: two products for each of ∂q, ∂k, ∂a and ∂b.

    A pair takes 4 masks, a position 39 · K: 10 for decays of q, k, a and b, 4 sums, 5 for ∂q, 4 for
    ∂a, 2 and 3 each for ∂k and ∂b with the parts between chunks, and 8 for the gradient of the
    decays.
    """
    positions = dAak.numel // BT
    pairs = positions * BT
    macs = 8 * pairs * K
    flops = 4 * pairs
    flops += 39 * positions * K
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_bwd_kernel_intra")
def low_rank_gradients_by_rows(
    *, dAqb: TensorSpec, dAak: TensorSpec, dgk_offset: TensorSpec, K: int, BT: int, out: object
) -> Work:
    """MACs = 8 · positions · BT · K, as above, as sums of products.

    A pair takes 24 · K: four differences and exponentials, and eight products and masks. A position
    takes 21 · K for the parts between chunks and for the gradient of the decays.
    """
    positions = dAak.numel // BT
    pairs = positions * BT
    macs = 8 * pairs * K
    flops = 24 * pairs * K
    flops += 21 * positions * K
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_dplr_bwd_dgk_kernel")
def low_rank_decay_gradients(
    *, dgk: TensorSpec, dgk_offset: TensorSpec, dgk_last: TensorSpec, out: object
) -> Work:
    """Return 3 FLOPs per element: sums with later positions and the chunk, and a difference."""
    return Work(other_flops=3 * dgk.numel)
