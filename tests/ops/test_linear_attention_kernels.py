"""Kernels of linear attention and of its gradients, against counts derived by hand.

The counts follow the sources of flash-linear-attention 0.6.0, whose kernels were run in Triton's
interpreter at other sizes to count their matrix products and other arithmetic.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.launches import launch
from tests.ops.test_every_formula import T
from torchscan.ops import compute_cost
from torchscan.types import OpSignature

#: 3 samples of 96 positions, with 2 heads; keys of 8, values of 24; 3 chunks of 32 per sequence
ROWS, CHUNKS, PAIRS = 3 * 96 * 2, 3 * 3 * 2, 32
KEYS, VALUES, SCALARS = T(3, 96, 2, 8), T(3, 96, 2, 24), T(3, 96, 2)
SCORES, STATES = T(3, 96, 2, 32), T(3, 3, 2, 8, 24)
SIZES: dict[str, Any] = {"T": 96, "K": 8, "V": 24, "BT": 32}
BLOCKS: dict[str, Any] = {"T": 96, "K": 8, "BT": 32, "BC": 16}
STATE = 8 * 24
#: 4 products of 16 x 16 x 16 for the block below the diagonal: B · A · B; and 14 rows of two blocks
INVERSE = 2 * 16**3 + 2 * 14 * 16 * 16
#: of two blocks: mask, sign, diagonal; of each row sign, mask, sum, choice; a sign below
AROUND_INVERSE = 2 * (3 * 256 + 14 * (3 * 16 + 256)) + 256


def _grads(name: str, written: dict[str, Any], **options: Any) -> OpSignature:
    given = {"q": KEYS, "k": KEYS, "v": VALUES, "do": VALUES, "dh": STATES, "h": STATES}
    tensors = {each: spec for each, spec in given.items() if each not in written}
    return launch(name, written, **tensors, **SIZES, **options)


CASES = [
    # k · v of every chunk, and a scale of q
    (_grads("chunk_bwd_kernel_dh", {"dh": STATES}), ROWS * STATE, ROWS * 8),
    # q and the state are multiplied by exponentials, one for each position and chunk
    (
        _grads("chunk_bwd_kernel_dh", {"dh": STATES}, USE_G=True),
        ROWS * STATE,
        ROWS * (8 + 8 + 1) + CHUNKS * (STATE + 1),
    ),
    # by key: an exponential for each
    (
        _grads("chunk_bwd_kernel_dh", {"dh": STATES}, USE_GK=True),
        ROWS * STATE,
        ROWS * (8 + 2 * 8) + CHUNKS * (STATE + 8),
    ),
    (
        _grads("chunk_bwd_kernel_dv", {"dv": VALUES}),
        ROWS * (PAIRS * 8 + STATE + PAIRS * 24),
        ROWS * PAIRS * 2,
    ),
    (
        _grads("chunk_bwd_kernel_dv", {"dv": VALUES}, USE_G=True),
        ROWS * (PAIRS * 8 + STATE + PAIRS * 24),
        ROWS * (PAIRS * 5 + 3 + 24),
    ),
    (
        _grads("chunk_bwd_kernel_dv_local", {"dv": VALUES}),
        ROWS * PAIRS * (8 + 24),
        ROWS * PAIRS * 3,
    ),
    (
        _grads("chunk_bwd_kernel_dv_local", {"dv": VALUES}, USE_A=True),
        ROWS * PAIRS * 24,
        ROWS * PAIRS,
    ),
    # ∂o · v, ∂o · h, v · ∂h, and twice the scores · keys; mask, and 3 for scales of ∂q and ∂k
    (
        _grads("chunk_bwd_kernel_dqkwg", {"dq": KEYS, "dk": KEYS}),
        ROWS * (PAIRS * 24 + STATE + STATE + 2 * PAIRS * 8),
        ROWS * (PAIRS + 3 * 8),
    ),
    # a pair: mask, difference, exponential, two products. ∂q 2, ∂k 1, ∂w 1 and its product; the
    # gradient of the decay: three products and sums, and 6; a product and sum of each state
    (
        _grads("chunk_bwd_kernel_dqkwg", {"dq": KEYS, "dk": KEYS}, USE_G=True, USE_DW=True),
        ROWS * (PAIRS * 24 + 3 * STATE + 2 * PAIRS * 8),
        ROWS * (5 * PAIRS + (2 + 1 + 1 + 6) * 8 + 6) + CHUNKS * (2 * STATE + 2),
    ),
    (
        launch("chunk_scaled_dot_kkt_fwd_kernel", {"A": SCORES}, k=KEYS, beta=SCALARS, K=8, BT=32),
        ROWS * PAIRS * 8,
        ROWS * PAIRS * 2,
    ),
    (
        launch("merge_16x16_to_32x32_inverse_kernel", {"Ai": SCORES}, A=SCORES, T=96, BT=32),
        CHUNKS * INVERSE,
        CHUNKS * AROUND_INVERSE,
    ),
    # blocks below the diagonal: 3 of 2 products, 2 of 3, and one of 4; 0, 1 and 2 sums
    (
        launch(
            *("merge_16x16_to_64x64_inverse_kernel", {"Ai": T(1, 128, 2, 64)}),
            A=T(1, 128, 2, 64),
            T=128,
            BT=64,
        ),
        4 * (16 * 16**3 + 4 * 14 * 256),
        4 * (4 * (3 * 256 + 14 * (48 + 256)) + (3 + 2 * 2 + 3) * 256),
    ),
    (
        launch(
            *("chunk_gated_delta_rule_fwd_kkt_solve_kernel", {"A": SCORES}),
            k=KEYS,
            beta=SCALARS,
            USE_G=True,
            **BLOCKS,
        ),
        ROWS * PAIRS * 8 + CHUNKS * INVERSE,
        ROWS * PAIRS * 5 + CHUNKS * AROUND_INVERSE,
    ),
    (
        launch(
            *("recompute_w_u_fwd_kernel", {"w": KEYS, "u": VALUES}),
            k=KEYS,
            v=VALUES,
            beta=SCALARS,
            A=SCORES,
            g=SCALARS,
            **SIZES,
        ),
        ROWS * PAIRS * (8 + 24),
        ROWS * (8 + 24 + 8 + 1),
    ),
    # w · h and k · v; v − w · h; v and h by exponentials
    (
        launch(
            *("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", {"h": STATES, "v_new": VALUES}),
            k=KEYS,
            v=VALUES,
            w=KEYS,
            USE_G=True,
            **SIZES,
        ),
        ROWS * 2 * STATE,
        ROWS * (24 + 24 + 3) + CHUNKS * (STATE + 1),
    ),
    (
        launch(
            *("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", {"dh": STATES, "dv2": VALUES}),
            q=KEYS,
            k=KEYS,
            w=KEYS,
            do=VALUES,
            dv=VALUES,
            USE_GK=True,
            **SIZES,
        ),
        ROWS * 3 * STATE,
        ROWS * 24 + CHUNKS * (3 * STATE + STATE + 8),
    ),
    # ∂A: ∂w · k, ∂u · v; ∂k: A · ∂w, ∂A · k, ∂A · k again; ∂v: A · ∂u; A · ∂A · A; k · k
    (
        launch(
            *("prepare_wy_repr_bwd_kernel", {"dk": KEYS, "dv": VALUES, "db": SCALARS}),
            k=KEYS,
            v=VALUES,
            beta=SCALARS,
            A=SCORES,
            dw=KEYS,
            du=VALUES,
            **SIZES,
        ),
        ROWS * PAIRS * (5 * 8 + 2 * 24 + 2 * PAIRS),
        ROWS * (10 * 8 + 4 * 24 + 4 * PAIRS),
    ),
    (
        launch(
            *("prepare_wy_repr_bwd_kernel", {"dk": KEYS, "dv": VALUES, "dbeta": SCALARS}),
            k=KEYS,
            v=VALUES,
            beta=SCALARS,
            A=SCORES,
            dw=KEYS,
            du=VALUES,
            **SIZES,
        ),
        ROWS * PAIRS * (4 * 8 + 2 * 24 + 2 * PAIRS),
        ROWS * (10 * 8 + 4 * 24 + 3 * PAIRS),
    ),
    # one block below another: 4 for q (difference, exponential, product, scale), 3 for k, by half
    # of the positions each
    (
        launch("chunk_gla_fwd_A_kernel_intra_sub_inter", {"A": SCORES}, q=KEYS, k=KEYS, **BLOCKS),
        ROWS * 16 * 8,
        ROWS // 2 * (4 + 3) * 8,
    ),
    (
        launch("chunk_gla_fwd_A_kernel_intra_sub_intra", {"A": SCORES}, q=KEYS, k=KEYS, **BLOCKS),
        ROWS * 16 * 8,
        ROWS * 16 * (3 * 8 + 1),
    ),
    (
        launch(
            *("chunk_gla_fwd_kernel_o", {"o": VALUES}),
            q=KEYS,
            v=VALUES,
            g=KEYS,
            h=STATES,
            A=SCORES,
            **SIZES,
        ),
        ROWS * (STATE + PAIRS * 24),
        ROWS * (2 * 8 + 24 + PAIRS),
    ),
    (_grads("chunk_gla_bwd_kernel_dA", {"dA": SCORES}), ROWS * PAIRS * 24, ROWS * PAIRS * 2),
    (
        _grads("chunk_gla_bwd_kernel_dv", {"dv": VALUES}, A=SCORES),
        ROWS * (PAIRS * 24 + STATE),
        ROWS * (PAIRS + 3 * 8),
    ),
    # inside a block 4 for both gradients; between the two: k 3 or q 4 by half of the positions, and
    # 3 at the end of both
    (
        launch(
            *("chunk_gla_bwd_kernel_intra", {"dq": KEYS, "dk": KEYS}),
            q=KEYS,
            k=KEYS,
            dA=SCORES,
            **BLOCKS,
        ),
        ROWS * 2 * PAIRS * 8,
        ROWS * 16 * 8 * 8 + ROWS // 2 * (3 + 4) * 8 + ROWS // 2 * 2 * 3 * 8,
    ),
    (
        _grads("chunk_gla_bwd_kernel_inter", {"dq2": KEYS, "dk2": KEYS, "dg": KEYS}),
        ROWS * 2 * STATE,
        ROWS * (3 + 3 + 2 + 10) * 8 + CHUNKS * (2 * STATE + 2 * 8),
    ),
    (launch("chunk_local_cumsum_vector_kernel", {"o": KEYS}, s=KEYS, BT=32), 0, ROWS * 8),
    (
        launch("chunk_local_cumsum_scalar_kernel", {"o": KEYS}, s=KEYS, BT=32, HAS_SCALE=True),
        0,
        ROWS * 8 * 2,
    ),
    # k · v is added to the state, q · state
    (
        launch("fused_recurrent_fwd_kernel", {"o": VALUES}, q=KEYS, k=KEYS, v=VALUES, **SIZES),
        ROWS * 2 * STATE,
        ROWS * 8,
    ),
    (
        launch(
            *("fused_recurrent_fwd_kernel", {"o": VALUES}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            USE_GK=True,
            **SIZES,
        ),
        ROWS * 2 * STATE,
        ROWS * (8 + STATE + 8),
    ),
    (
        launch(
            *("fused_recurrent_bwd_kernel", {"dq": KEYS, "dk": KEYS, "dv": VALUES}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            do=VALUES,
            USE_GK=True,
            **SIZES,
        ),
        ROWS * 5 * STATE,
        # and the last states times their gradients, in 6 sequences of all heads
        ROWS * (2 * 8 + 2 * (STATE + 8) + 4 * 8) + 3 * 2 * 2 * STATE,
    ),
    (
        launch(
            *("fused_recurrent_delta_rule_fwd_kernel", {"o": VALUES, "u": VALUES}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            beta=SCALARS,
            **SIZES,
        ),
        ROWS * 3 * STATE,
        ROWS * (8 + 2 * 24),
    ),
    (
        launch(
            *("fused_recurrent_delta_rule_bwd_kernel", {"dq": KEYS, "dv": VALUES, "db": SCALARS}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            beta=SCALARS,
            **SIZES,
        ),
        ROWS * 7 * STATE,
        ROWS * (2 * 8 + 5 * 24),
    ),
    # squares, sums and quotients of q and k; an epsilon and a root for both
    (
        launch(
            *("fused_recurrent_gated_delta_rule_fwd_kernel", {"o": VALUES}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            g=SCALARS,
            beta=SCALARS,
            USE_G=True,
            USE_QK_L2NORM_IN_KERNEL=True,
            **SIZES,
        ),
        ROWS * 3 * STATE,
        ROWS * (8 + 2 * 24 + STATE + 1 + 2 * (3 * 8 + 2)),
    ),
    # bias, softplus, the rate and its product; the sigmoid of beta
    (
        launch(
            *("fused_recurrent_gated_delta_rule_fwd_kernel", {"o": VALUES}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            g=SCALARS,
            beta=SCALARS,
            USE_GATE_IN_KERNEL=True,
            APPLY_BETA_SIGMOID=True,
            **SIZES,
        ),
        ROWS * 3 * STATE,
        ROWS * (8 + 2 * 24 + 1 + 4 + 1 + 1 + 4),
    ),
    # q · k and k · k in blocks; 17 / 2 positions are not later: difference, exponential, product
    # and mask for each key, and scale, mask and beta; beta · k before
    (
        launch(
            *("chunk_kda_fwd_kernel_intra_token_parallel", {"Aqk": SCORES, "Akk": SCORES}),
            q=KEYS,
            k=KEYS,
            beta=SCALARS,
            **BLOCKS,
        ),
        ROWS * 2 * 16 * 8,
        ROWS * (17 * (4 * 8 + 3) // 2 + 8),
    ),
    # in the second of two blocks: 5 for q and k, 3 for k of the first one; half of 16 pairs, twice
    (
        launch(
            *("chunk_kda_fwd_kernel_inter_solve_fused", {"Aqk": SCORES, "Akk": SCORES}),
            q=KEYS,
            k=KEYS,
            beta=SCALARS,
            **BLOCKS,
        ),
        ROWS * 2 * 16 * 8 + CHUNKS * INVERSE,
        ROWS * ((5 + 3) * 8 // 2 + 16) + CHUNKS * AROUND_INVERSE,
    ),
    (
        launch(
            *("recompute_w_u_fwd_kda_kernel", {"w": KEYS, "u": VALUES, "kg": KEYS, "qg": KEYS}),
            q=KEYS,
            k=KEYS,
            v=VALUES,
            beta=SCALARS,
            A=SCORES,
            STORE_KG=True,
            STORE_QG=True,
            **SIZES,
        ),
        ROWS * PAIRS * (8 + 24),
        ROWS * (24 + (3 + 4 + 2) * 8),
    ),
    (
        launch(
            *("kda_gate_chunk_cumsum_vector_kernel", {"o": KEYS}),
            s=KEYS,
            A_log=T(2),
            HAS_BIAS=True,
            HAS_SCALE=True,
        ),
        0,
        ROWS * 8 * (1 + 4 + 1 + 1 + 1),
    ),
    # the sigmoid and two products
    (
        launch(
            *("kda_gate_chunk_cumsum_vector_kernel", {"o": KEYS}),
            s=KEYS,
            A_log=T(2),
            USE_LOWER_BOUND=True,
        ),
        0,
        ROWS * 8 * (4 + 2 + 1),
    ),
]

#: 4 rows of 8
X = T(4, 8)
LAYERS = [
    # x̂ 1, a sum 2, the rest 3, a weight 1 and its gradient 2; the gradient of a residual
    (
        launch(
            *("layer_norm_bwd_kernel", {"dx": X, "dw": T(1, 8)}),
            x=X,
            w=T(8),
            dy=X,
            D=8,
            NB=1,
            IS_RMS_NORM=True,
            HAS_DRESIDUAL=True,
        ),
        0,
        (6 + 1 + 2 + 1) * 32,
    ),
    # 10 with a mean, 1 and 2 for the weight, 1 for the bias
    (
        launch(
            *("layer_norm_bwd_kernel", {"dx": X, "dw": T(1, 8), "db": T(1, 8)}),
            x=X,
            w=T(8),
            dy=X,
            D=8,
            NB=1,
        ),
        0,
        (10 + 1 + 2 + 1) * 32,
    ),
    # norm: 6, 1 and 2; gate: σ 4, y 1, ∂y · g · σ 1, ∂y · y · σ · (1 + g · (1 − σ)) 6
    (
        launch(
            *("layer_norm_gated_bwd_kernel", {"dx": X, "dg": X, "dw": T(1, 8)}),
            x=X,
            g=X,
            w=T(8),
            dy=X,
            D=8,
            ACTIVATION="swish",
            IS_RMS_NORM=True,
        ),
        0,
        (6 + 1 + 2 + 4 + 8) * 32,
    ),
    (launch("l2norm_fwd_kernel", {"y": X}, x=X, D=8), 0, 3 * 32 + 2 * 4),
    (launch("l2norm_bwd_kernel", {"dx": X}, y=X, dy=X, D=8), 0, 6 * 32),
    (
        launch("causal_conv1d_fwd_kernel", {"y": X}, x=X, weight=T(8, 3), W=3, ACTIVATION="silu"),
        32 * 3,
        5 * 32,
    ),
    (
        launch(
            *("causal_conv1d_bwd_kernel", {"dx": X, "dw": T(1, 8, 3)}),
            x=X,
            dy=X,
            W=3,
            ACTIVATION="swish",
            HAS_BIAS=True,
        ),
        2 * 32 * 3,
        (3 * 9 + 1) * 32,
    ),
    (launch("fused_beta_sigmoid_fwd_kernel", {"y": X}, x=X, n_elements=32), 0, 5 * 32),
    (launch("fused_beta_sigmoid_bwd_kernel", {"dx": X}, x=X, dy=X, n_elements=32), 0, 8 * 32),
    # bias, softplus, product with the rate, scale, sum
    (
        launch(
            *("gdn_gate_chunk_cumsum_scalar_kernel", {"o": X}),
            g=X,
            A_log=T(8),
            HAS_BIAS=True,
            HAS_SCALE=True,
        ),
        0,
        (1 + 4 + 1 + 1 + 1) * 32,
    ),
    (
        launch("gdn_gate_bwd_kernel", {"dg": X}, g=X, A_log=T(8), dyg=X, HAS_BIAS=True),
        0,
        (4 + 4 + 2 + 2 + 2) * 32,
    ),
]


@pytest.mark.parametrize(
    ("launched", "macs", "other"), CASES + LAYERS, ids=lambda each: getattr(each, "operator", "")
)
def test_a_kernel_counts_products_per_chunk(launched: OpSignature, macs: int, other: int) -> None:
    cost = compute_cost(launched)
    assert cost.state == "formula"
    assert (cost.cost.macs, cost.cost.flops) == (macs, 2 * macs + other)


@pytest.mark.parametrize("launched", [each for each, *_ in CASES + LAYERS], ids=str)
def test_a_kernel_without_its_sizes_is_unknown(launched: OpSignature) -> None:
    """Names are generic, and sizes of 1 would be wrong."""
    tensors = {name: value for name, value in launched.arguments.items() if name in ("x", "q")}
    other = launch(launched.op._opname, dict(launched.kwargs), **tensors)
    assert compute_cost(other).state == "unknown"
