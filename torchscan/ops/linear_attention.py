"""Triton kernels of ``flash-linear-attention``, by their names and the names of their parameters.

A sequence is divided into chunks of ``BT`` positions. Inside a chunk, all pairs of positions count:
dense, like attention. Sequences of different lengths in a row have an unknown number of chunks.
"""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

Pointer = TensorSpec | None


@cost_of("triton::chunk_fwd_kernel_h")
def chunk_states(
    *,
    k: TensorSpec,
    v: TensorSpec,
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
    """MACs = positions · K · V, for the states at the ends of chunks.

    A decay multiplies the state of each chunk (K · V), and what a position adds to it: by head, its
    values (V) with a difference and an exponential; by key or value, each of those K or V with
    them. The decay of a complete chunk is an exponential. A constant decay (gamma) also takes a
    product for each position and chunk.
    """
    if cu_seqlens is not None:
        return None
    positions = k.numel // K
    chunks = count_chunks(positions, T, BT)
    flops = 0
    for is_used, per_position, per_chunk in (
        (USE_G, V + 2, 1),
        (USE_G_GAMMA, V + 3, 2),
        (USE_GK, 3 * K, K),
        (USE_GV, 3 * V, V),
    ):
        if is_used:
            flops += positions * per_position + chunks * (K * V + per_chunk)
    macs = positions * K * V
    return Work(macs=macs, other_flops=flops)


def count_chunks(positions: int, length: int, width: int) -> int:
    """Return the number of chunks of this width in sequences of this length, for all heads."""
    return positions // length * -(-length // width)


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
    out: object,
) -> Work:
    """MACs = positions · (K · V + BT · K + BT · V): q · state, q · k and the scores · v.

    A pair of positions takes 1 for the mask, an element of the result 3 (two scales, a sum). A
    decay takes 3 more per pair (difference, exponential, product), 1 per element of the result and
    1 per position; a constant one (gamma) also a product per position.
    """
    positions = v.numel // V
    per_pair, per_element, per_position = 1, 3, 0
    if USE_G or USE_G_GAMMA:
        per_pair, per_element, per_position = 1 + 3, 3 + 1, 1
    if USE_G_GAMMA:
        per_position += 1
    macs = positions * (K * V + BT * K + BT * V)
    flops = positions * (BT * per_pair + V * per_element + per_position)
    return Work(macs=macs, other_flops=flops)
