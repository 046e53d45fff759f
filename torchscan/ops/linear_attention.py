"""Triton kernels of ``flash-linear-attention``, by their names and the names of their parameters.

A sequence is divided into chunks of ``BT`` positions. Inside a chunk, all pairs of positions count:
dense, like attention.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import PAIR_DECAY, Decays, Pointer, count_chunks
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("triton::chunk_fwd_kernel_h")
def chunk_states(
    *,
    k: TensorSpec,
    v: TensorSpec,
    h: TensorSpec,
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
    """MACs = positions · K · V, for the states at the ends of chunks.

    Decays multiply the state of each chunk and what a position adds to it: by head, its values.
    Packed sequences have a chunk for each state, unless several chunks share a state (``BS``).
    """
    positions = k.numel // K
    chunks = count_chunks(positions, T, BT)
    if cu_seqlens is not None:
        if BS not in (None, BT):
            return None
        chunks = h.numel // (K * V)
    decays = Decays(
        keys=K,
        values=V,
        by_head=USE_G,
        is_constant=USE_G_GAMMA,
        by_key=USE_GK,
        by_value=USE_GV,
    )
    flops = positions * decays.flops_per_position(V, 2) + chunks * decays.flops_per_state()
    macs = positions * K * V
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_fwd_kernel_o")
def chunk_outputs(
    *,
    q: TensorSpec,
    v: TensorSpec,
    h: TensorSpec,
    K: int,
    V: int,
    BT: int,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    num_householder: int | None = None,
    out: object,
) -> Work | None:
    """MACs = positions · (K · V + BT · K + BT · V): q · state, q · k and the scores · v.

    A pair of positions takes 1 for the mask, an element of the result 3 (two scales, a sum). A
    decay takes 1 more per element of the result and 1 per position, besides that of pairs; a
    constant one (gamma) also a product per position. The kernel of another package, for products of
    Householder matrices, is unknown.
    """
    if num_householder is not None:
        return None
    positions = v.numel // V
    per_pair, per_element, per_position = 1, 3, 0
    if USE_G or USE_G_GAMMA:
        per_pair, per_element, per_position = 1 + PAIR_DECAY, 3 + 1, 1
    if USE_G_GAMMA:
        per_position += 1
    macs = positions * (K * V + BT * K + BT * V)
    flops = positions * (BT * per_pair + V * per_element + per_position)
    return Work(macs=macs, other_flops=flops)
