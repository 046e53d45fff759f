"""Gradients of Kimi delta attention: Triton kernels of ``flash-linear-attention``.

All pairs of positions in a chunk of ``BT`` count, also those that a kernel skips.
:mod:`torchscan.ops.chunked_sequences` defines the terms of these docstrings.
"""

from __future__ import annotations

from torchscan.ops.chunked_sequences import Pointer
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

_SOFTPLUS, _SIGMOID = 4, 4


@cost_of("triton::chunk_kda_bwd_kernel_dAv")
def score_and_value_gradients(
    *, do: TensorSpec, dv: TensorSpec, dA: TensorSpec, V: int, BT: int, out: object
) -> Work:
    """MACs = 2 · positions · BT · V: ∂result · v and the scores · ∂result.

    A pair takes 3, for two masks and a scale.
    """
    positions = dv.numel // V
    pairs = positions * BT
    macs = 2 * pairs * V
    flops = 3 * pairs
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_kda_bwd_kernel_wy_dqkg_fused")
def query_key_and_wy_gradients(
    *, dv2: TensorSpec, dh: TensorSpec, dg: TensorSpec, K: int, V: int, BT: int, out: object
) -> Work:
    """MACs = positions · (3 · K · V + 2 · BT · (K + V + BT)).

    ∂q, ∂k and ∂w are products with states. ∂A takes ∂v · v and ∂w · k, A multiplies ∂v and ∂w, and
    ∂A is multiplied by A from both sides. A position takes 23 · K for decays, beta and their
    gradients, and 3 · V for beta. A pair takes 4: beta, two masks and a sign. A chunk takes
    2 · K · V + 2 · K for the gradient of its decay.
    """
    positions = dv2.numel // V
    chunks = dh.numel // (K * V)
    pairs = positions * BT
    macs = 3 * positions * K * V
    macs += 2 * pairs * (K + V + BT)
    flops = positions * 23 * K
    flops += positions * 3 * V
    flops += 4 * pairs
    flops += chunks * 2 * K * (V + 1)
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::chunk_kda_bwd_kernel_intra")
def key_decay_gradients_inside_chunks(
    *,
    dq2: TensorSpec,
    dg2: TensorSpec,
    dAqk: TensorSpec,
    K: int,
    BT: int,
    BC: int,
    SAFE_GATE: bool = False,
    out: object,
) -> Work:
    """MACs = 4 · positions · BT · K: ∂scores and ∂A, each times k, and times q and k of later ones.

    Inside a block, a pair takes 12 · K: difference and exponential, and product and mask for both,
    twice; a position takes K for beta. With bounded gates ("safe") a position takes 26 · K and 4
    masks per pair instead, a block 2 · K for the offset of its gates. Between n blocks, decays take
    10 · K for each pair of blocks, and 7 · K · (n − 1) / n at the end. Sums, beta and the gradient
    of the gates take 11 · K.
    """
    positions = dAqk.numel // BT
    blocks = BT // BC
    others = blocks - 1
    macs = 4 * positions * BT * K

    flops = 11 * K + 5 * others * K
    flops += 7 * K * others // blocks
    if SAFE_GATE:
        flops += 26 * K + 4 * BC
        flops += 2 * K // BC
    else:
        flops += 12 * BC * K + K
    flops *= positions
    return Work(macs=macs, other_flops=flops)


@cost_of("triton::kda_gate_bwd_kernel")
def key_gate_gradients(
    *,
    g: TensorSpec,
    dyg: TensorSpec,
    beta: Pointer = None,
    HAS_A: bool = True,
    HAS_BIAS: bool = False,
    USE_LOWER_BOUND: bool = False,
    out: object,
) -> Work:
    """Return 13 FLOPs per element, 12 with a lower bound; 2 for a bias, 3 for each beta.

    Softplus and its gradient, a sigmoid, take 8, products with ``−exp(A)`` and ∂y 3. With a lower
    bound, a sigmoid and its gradient take 6, products 4. The gradient of A takes 2.
    """
    per_element = _SOFTPLUS + _SIGMOID + 3
    if USE_LOWER_BOUND:
        per_element = _SIGMOID + 6
    if HAS_A:
        per_element += 2
    if HAS_BIAS:
        per_element += 2
    flops = per_element * g.numel
    if beta is not None:
        flops += 3 * beta.numel
    return Work(other_flops=flops)
