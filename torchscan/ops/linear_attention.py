"""Triton kernels of ``flash-linear-attention``, by their names and the names of their parameters.

A sequence is divided into chunks of ``BT`` positions. Inside a chunk, all pairs of positions count:
dense, like attention. Sequences of different lengths in a row have an unknown number of chunks.
"""

from __future__ import annotations

from torchscan.ops.normalization import layer_norm, rms_norm
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

Pointer = TensorSpec | None
#: of a gate by its activation: sigmoid 4, and a product; swish is a product more
_GATES = {"sigmoid": 4 + 1, "swish": 5 + 1, "silu": 5 + 1}


@cost_of("triton::chunk_fwd_kernel_h")
def chunk_states(
    *,
    k: Pointer = None,
    v: Pointer = None,
    cu_seqlens: Pointer = None,
    T: int = 1,
    H: int = 1,
    K: int = 1,
    V: int = 1,
    BT: int = 0,
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
    if k is None or v is None or cu_seqlens is not None or not BT:
        return None
    positions = k.numel // K
    chunks = positions // T * -(-T // BT)
    flops = 0
    for is_used, per_position, per_chunk in (
        (USE_G, V + 2, 1),
        (USE_G_GAMMA, V + 3, 2),
        (USE_GK, 3 * K, K),
        (USE_GV, 3 * V, V),
    ):
        if is_used:
            flops += positions * per_position + chunks * (K * V + per_chunk)
    return Work(macs=positions * K * V, other_flops=flops)


@cost_of("triton::chunk_fwd_kernel_o")
def chunk_outputs(
    *,
    q: Pointer = None,
    v: Pointer = None,
    h: Pointer = None,
    K: int = 1,
    V: int = 1,
    BT: int = 0,
    USE_G: bool = False,
    USE_G_GAMMA: bool = False,
    out: object,
) -> Work | None:
    """MACs = positions · (K · V + BT · K + BT · V): q · state, q · k and the scores · v.

    A pair of positions takes 1 for the mask, an element of the result 3 (two scales, a sum). A
    decay takes 3 more per pair (difference, exponential, product), 1 per element of the result and
    1 per position; a constant one (gamma) also a product per position.
    """
    if q is None or v is None or h is None or not BT:
        return None
    positions = v.numel // V
    per_pair, per_element, per_position = 1, 3, 0
    if USE_G or USE_G_GAMMA:
        per_pair, per_element, per_position = 1 + 3, 3 + 1, 1
    if USE_G_GAMMA:
        per_position += 1
    macs = positions * (K * V + BT * K + BT * V)
    flops = positions * (BT * per_pair + V * per_element + per_position)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::layer_norm_fwd_kernel")
def norm_kernel(
    *,
    x: Pointer = None,
    y: Pointer = None,
    w: Pointer = None,
    b: Pointer = None,
    D: int = 1,
    NB: int = 0,
    IS_RMS_NORM: bool = False,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work | None:
    """Return the FLOPs of ``layer_norm`` or ``rms_norm``, and a sum with what is added before."""
    if x is None or y is None or not NB:
        return None
    flops = _normalize(x, w, b, D, is_rms_norm=IS_RMS_NORM)
    if HAS_RESIDUAL:
        flops += x.numel
    return Work(other_flops=flops)


@cost_of("triton::layer_norm_gated_fwd_kernel")
def gated_norm_kernel(
    *,
    x: Pointer = None,
    g: Pointer = None,
    w: Pointer = None,
    b: Pointer = None,
    D: int = 1,
    ACTIVATION: str = "",
    IS_RMS_NORM: bool = False,
    HAS_RESIDUAL: bool = False,
    out: object,
) -> Work | None:
    """Return the FLOPs of a norm, of the activation of a gate, and of their product."""
    if x is None or g is None or ACTIVATION not in _GATES:
        return None
    flops = _normalize(x, w, b, D, is_rms_norm=IS_RMS_NORM) + _GATES[ACTIVATION] * x.numel
    if HAS_RESIDUAL:
        flops += x.numel
    return Work(other_flops=flops)


def _normalize(
    x: TensorSpec, weight: Pointer, bias: Pointer, width: int, *, is_rms_norm: bool
) -> int:
    """Return the FLOPs of a norm; a bias takes one per element."""
    if not is_rms_norm:
        return layer_norm(x, [width], weight, bias, out=x).other_flops
    flops = rms_norm(x, [width], weight, out=x).other_flops
    return flops if bias is None else flops + x.numel


@cost_of("triton::rotary_embedding_kernel")
def rotary_kernel(
    *, x: Pointer = None, cos: Pointer = None, D: int = 1, R: int = 0, out: object
) -> Work | None:
    """Return 3 FLOPs per rotated element: 2 · ``R`` of the ``D`` elements of a head."""
    if x is None or cos is None or not R:
        return None
    return Work(other_flops=3 * x.numel // D * 2 * R)
