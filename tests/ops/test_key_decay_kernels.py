"""Kernels of Kimi delta attention and RWKV 7, against loops over their chunks and blocks.

The counts follow the sources of flash-linear-attention 0.6.0. Its kernels were run in Triton's
interpreter, at other sizes, to count their matrix products and other arithmetic.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.ops.launches import launch
from tests.ops.test_every_formula import I, T
from torchscan import crawl_module
from torchscan.ops import compute_cost
from torchscan.types import OpSignature

#: 2 samples of 128 positions, with 3 heads; keys of 8, values of 24; 2 chunks of 64 in 4 blocks
ROWS, CHUNKS, K, V, BT, BC = 2 * 128 * 3, 2 * 2 * 3, 8, 24, 64, 16
KEYS, VALUES, SCALARS = T(2, 128, 3, K), T(2, 128, 3, V), T(2, 128, 3)
SCORES, STATES = T(2, 128, 3, BT), T(2, 2, 3, K, V)
SIZES: dict[str, Any] = {"T": 128, "K": K, "V": V, "BT": BT}
BLOCKS = SIZES | {"BC": BC}
#: scores of q and a with k and b, and their gradients
PAIRS = {"Aqk": SCORES, "Aqb": SCORES, "Aab": SCORES, "Aak": SCORES}
PAIR_GRADS: dict[str, Any] = {f"d{name}": SCORES for name in PAIRS}


def count_blocks(on_diagonal: int, earlier: int) -> int:
    """Add what the blocks of scores take on the diagonal, and below and above it, in all chunks."""
    total = 0
    for _, row, column in product(range(CHUNKS), range(BT // BC), range(BT // BC)):
        total += on_diagonal if row == column else earlier
    return total


def substitution() -> int:
    """Return the MACs of the rows of a block of 16 that are substituted: all but two."""
    return sum(BC * BC for _ in range(2, BC))


def merge() -> tuple[int, int]:
    """Return the products, and the signs and sums, of the blocks below the diagonal."""
    products, elementwise = 0, 0
    for row in range(BT // BC):
        for column in range(row):
            between = row - column
            products += between + 1  # of A with each inverse between, and of the inverse with them
            elementwise += 1 + (between - 1)
    return products * BC**3, elementwise * BC**2


MERGE, AROUND_MERGE = merge()
#: of a block: mask, sign, diagonal; of each row sign, mask, sum, choice
AROUND_DIAGONAL = 3 * BC**2 + (BC - 2) * (3 * BC + BC**2)
DIAGONALS = CHUNKS * (BT // BC)

CASES: list[tuple[OpSignature, int, int]] = [
    # q · k and k · k in blocks. A key: difference, 2 exponentials and masks, a sign, 3 products;
    # pairs: scale, beta, a mask (the other is of the inverse); an offset of each block
    (
        launch(
            *("chunk_kda_fwd_kernel_intra_sub_chunk", {"Aqk": SCORES, "Akk": T(2, 128, 3, BC)}),
            q=KEYS,
            beta=SCALARS,
            **BLOCKS,
        ),
        DIAGONALS * (2 * BC * BC * K + substitution()),
        ROWS * (1 + 2 + 2 + 1 + 3) * K + DIAGONALS * (K + 3 * BC**2 + AROUND_DIAGONAL),
    ),
    # between blocks: q and k by a decay of 5, keys of each earlier block by 3; scale and beta
    (
        launch(
            *("chunk_kda_fwd_kernel_inter_solve_fused", {"Aqk": SCORES, "Akk": SCORES}),
            q=KEYS,
            beta=SCALARS,
            USE_SAFE_GATE=True,
            **BLOCKS,
        ),
        count_blocks(0, 2 * BC * BC * K) + CHUNKS * MERGE,
        CHUNKS * (3 * BC * 5 * K + 6 * (BC * 3 * K + 2 * BC**2) + AROUND_MERGE),
    ),
    (
        launch(
            *("chunk_kda_fwd_kernel_inter_solve_fused", {"Aqk": SCORES, "Akk": SCORES}),
            q=KEYS,
            beta=SCALARS,
            **BLOCKS,
        ),
        count_blocks(0, 2 * BC * BC * K) + CHUNKS * MERGE + DIAGONALS * substitution(),
        CHUNKS * (3 * BC * 5 * K + 6 * (BC * 3 * K + 2 * BC**2) + AROUND_MERGE)
        + DIAGONALS * AROUND_DIAGONAL,
    ),
    # ∂o · v and the scores · ∂o; two masks and a scale
    (
        launch(*("chunk_kda_bwd_kernel_dAv", {"dv": VALUES, "dA": SCORES}), do=VALUES, V=V, BT=BT),
        CHUNKS * 2 * BT * BT * V,
        CHUNKS * 3 * BT * BT,
    ),
    # ∂q, ∂k, ∂w with states; ∂v · v, ∂w · k, A · ∂v, A · ∂w; A · ∂A · A
    (
        launch(
            *("chunk_kda_bwd_kernel_wy_dqkg_fused", {"dq": KEYS, "dv2": VALUES, "dg": KEYS}),
            dh=STATES,
            **SIZES,
        ),
        CHUNKS * (3 * BT * K * V + 2 * BT * BT * V + 2 * BT * BT * K + 2 * BT**3),
        # decay, beta; ∂q 2; ∂k 4; k; ∂w; ∂beta 2; k · ∂k and its sum; ∂g 7; ∂k 2. ∂beta and ∂v: 3
        ROWS * (1 + 1 + 2 + 4 + 1 + 1 + 2 + 2 + 7 + 2) * K
        + ROWS * 3 * V
        + CHUNKS * (4 * BT * BT + 2 * K * V + 2 * K),
    ),
    # both scores · k, and twice with later q and k. On the diagonal, twice: difference,
    # exponential, two products and masks. Between blocks 3 and 7, for 6 pairs of blocks; at the end
    # 4 for three blocks and 3 for three
    (
        launch(*("chunk_kda_bwd_kernel_intra", {"dq2": KEYS, "dg2": KEYS}), dAqk=SCORES, **BLOCKS),
        count_blocks(4 * BC * BC * K, 4 * BC * BC * K),
        DIAGONALS * BC * BC * 2 * (2 + 2 * 2) * K
        + CHUNKS * BC * (6 * (3 + 7) + 3 * (4 + 3)) * K
        + ROWS * (1 + 11) * K,
    ),
    (
        launch(
            *("chunk_kda_bwd_kernel_intra", {"dq2": KEYS, "dg2": KEYS}),
            dAqk=SCORES,
            SAFE_GATE=True,
            **BLOCKS,
        ),
        count_blocks(4 * BC * BC * K, 4 * BC * BC * K),
        DIAGONALS * (4 * BC * BC + 2 * K)
        + CHUNKS * BC * (6 * (3 + 7) + 3 * (4 + 3)) * K
        + ROWS * (12 + 14 + 11) * K,
    ),
    # softplus, σ, product; ∂y · σ and its product; the gradient of A and of the bias
    (
        launch("kda_gate_bwd_kernel", {"dg": KEYS}, g=KEYS, dyg=KEYS, HAS_BIAS=True),
        0,
        ROWS * K * (1 + 4 + 4 + 1 + 2 + 2 + 1),
    ),
    # the product, σ, σ · (1 − σ), three products
    (
        launch(
            *("kda_gate_bwd_kernel", {"dg": KEYS, "dbeta": SCALARS}),
            g=KEYS,
            dyg=KEYS,
            beta=SCALARS,
            HAS_A=False,
            USE_LOWER_BOUND=True,
        ),
        0,
        ROWS * K * (1 + 4 + 2 + 3) + ROWS * 3,
    ),
    (
        launch("kda_gate_fwd_kernel", {"yg": KEYS}, g=KEYS, beta=SCALARS, HAS_BIAS=True),
        0,
        ROWS * K * (1 + 4 + 1) + ROWS * 4,
    ),
    (
        launch("chunk_rwkv6_fwd_cumsum_kernel", {"oi": KEYS, "oe": KEYS}, s=KEYS, BT=BT),
        CHUNKS * 2 * BT * BT * K,
        0,
    ),
    (
        launch(*("chunk_dplr_fwd_A_kernel_intra_tensorcore", PAIRS), q=KEYS, k=KEYS, **SIZES),
        CHUNKS * 4 * BT * BT * K,
        # two differences, a sign, 3 exponentials, the scale, 4 products twice; 3 at the middle
        CHUNKS * 4 * BT * BT + ROWS * (2 + 1 + 3 + 1 + 8) * K + CHUNKS * 3 * K,
    ),
    (
        launch(*("chunk_dplr_fwd_A_kernel_intra_sub_intra", PAIRS), q=KEYS, k=KEYS, **SIZES),
        CHUNKS * 4 * BT * BT * K,
        CHUNKS * BT * BT * ((2 + 2 + 4) * K + 4) + ROWS * (1 + 1 + 1 + 3 + 4) * K,
    ),
    # powers 2, 4, 8 and three products of sums, per block; 17 products below
    (
        launch("prepare_wy_repr_fwd_kernel_safe", {"A_ab_inv": SCORES}, A_ab=SCORES, **SIZES),
        CHUNKS * (4 * (3 + 3) + 17) * 16**3,
        CHUNKS * (4 * (1 + 4) + 4) * 16**2,
    ),
    (
        launch(
            *("prepare_wy_repr_fwd_kernel_chunk32", {"A_ab_inv": T(2, 128, 3, 32)}),
            A_ab=T(2, 128, 3, 32),
            T=128,
            BT=32,
        ),
        2 * CHUNKS * 31 * 32**2,
        2 * CHUNKS * (31 * (3 * 32**2 + 2 * 32) + 2 * 32**2),
    ),
    # two halves, and two products for the block below
    (
        launch(
            *("prepare_wy_repr_fwd_kernel_chunk64", {"A_ab_inv": SCORES}),
            A_ab=SCORES,
            GATHER_SUPPORTED=False,
            T=128,
            BT=64,
            BC=32,
        ),
        CHUNKS * (2 * 31 * 32**2 + 2 * 32**3),
        CHUNKS * 2 * (31 * (3 * 32**2 + 2 * 32) + 2 * 32**2),
    ),
    (
        launch(
            *("wu_fwd_kernel", {"w": KEYS, "u": VALUES}),
            ag=KEYS,
            v=VALUES,
            A_ab_inv=SCORES,
            A_ak=SCORES,
            **SIZES,
        ),
        CHUNKS * BT * BT * (BT + K + V),
        CHUNKS * 2 * BT * BT,
    ),
    # w · h, k · v and b · v; u; exponentials, products and sums of states
    (
        launch(
            *("chunk_dplr_fwd_kernel_h", {"h": STATES, "v_new": VALUES}),
            v=VALUES,
            w=KEYS,
            bg=KEYS,
            **SIZES,
        ),
        CHUNKS * 3 * BT * K * V,
        ROWS * V + CHUNKS * (K + 2 * K * V),
    ),
    (
        launch(
            *("chunk_dplr_fwd_kernel_o", {"o": VALUES}),
            v=VALUES,
            A_qk=SCORES,
            A_qb=SCORES,
            **SIZES,
        ),
        CHUNKS * (BT * K * V + 2 * BT * BT * V),
        CHUNKS * 2 * BT * BT + ROWS * 2 * V,
    ),
    (
        launch(
            *("chunk_dplr_bwd_kernel_dAu", {"dA_qk": SCORES, "dA_qb": SCORES, "dv_new": VALUES}),
            v=VALUES,
            A_qb=SCORES,
            **SIZES,
        ),
        CHUNKS * 3 * BT * BT * V,
        CHUNKS * BT * BT * (1 + 2 + 2),
    ),
    (
        launch(
            *("chunk_dplr_bwd_kernel_dhu", {"dh": STATES, "dv2": VALUES}),
            bg=KEYS,
            dv=VALUES,
            **SIZES,
        ),
        CHUNKS * 3 * BT * K * V,
        ROWS * V + CHUNKS * (K + 2 * K * V),
    ),
    (
        launch("chunk_dplr_bwd_kernel_dv", {"dv": VALUES}, A_qk=SCORES, kg=KEYS, **SIZES),
        CHUNKS * (BT * K * V + BT * BT * V),
        CHUNKS * BT * BT,
    ),
    # ∂q, ∂k, ∂b, ∂w; k · ∂k and b · ∂b with their sums; h · ∂h, and its decay
    (
        launch(
            *("chunk_dplr_bwd_o_kernel", {"dq": KEYS, "dk": KEYS, "db": KEYS}), dh=STATES, **SIZES
        ),
        CHUNKS * 4 * BT * K * V,
        ROWS * 2 * 2 * K + CHUNKS * (2 * K * V + 2 * K),
    ),
    # of the matrix of a · k: with the inverse, its gradient and the inverse's; inverse · ∂ · inverse;
    # ∂u · v, ∂v, ∂w · a, ∂a
    (
        launch(
            *("prepare_wy_repr_bwd_kernel", {"dv": VALUES, "dag": KEYS, "dAab": SCORES}),
            A_ab_inv=SCORES,
            v=VALUES,
            dw=KEYS,
            **SIZES,
        ),
        CHUNKS * (3 * BT**3 + 2 * BT**3 + 2 * BT * BT * V + 2 * BT * BT * K),
        CHUNKS * 6 * BT * BT + ROWS * V,
    ),
    (
        launch(
            *("chunk_dplr_bwd_kernel_intra_tensorcore", {"dq": KEYS, "dgk_offset": KEYS}),
            **(PAIR_GRADS | SIZES),
        ),
        CHUNKS * 4 * 2 * BT * BT * K,
        # 2 differences, 3 exponentials, a sign, 4 products; 4 sums; ∂q 5, ∂a 4, decay 2, ∂k and ∂b
        # 3; 4 products and 3 sums, and a product
        CHUNKS * 4 * BT * BT + ROWS * (10 + 4 + 5 + 4 + 2 + 3 + 3 + 7 + 1) * K,
    ),
    # four differences and exponentials, eight products and masks; ∂a 3, ∂q 4, decay 2, ∂k and ∂b 2
    (
        launch(
            *("chunk_dplr_bwd_kernel_intra", {"dq": KEYS, "dgk_offset": KEYS}),
            **(PAIR_GRADS | SIZES),
        ),
        CHUNKS * 4 * 2 * BT * BT * K,
        CHUNKS * BT * BT * (8 + 16) * K + ROWS * (3 + 4 + 2 + 2 + 2 + 7 + 1) * K,
    ),
    (
        launch(
            *("chunk_dplr_bwd_dgk_kernel", {"dgk_output": KEYS}),
            dgk=KEYS,
            dgk_offset=KEYS,
            dgk_last=T(2, 2, 3, K),
        ),
        0,
        ROWS * 3 * K,
    ),
]

#: 2 samples of 6 positions with 8 features, in 2 heads of 4
X = T(2, 6, 8)
LAYERS: list[tuple[OpSignature, int, int]] = [
    (launch("token_shift_fwd_kernel_short", {"y": X}, x=X, D=8), 0, 2 * 6 * 8),
    # a sign, and a sum with the next but for the last position
    (launch("token_shift_bwd_kernel_long", {"dx": X}, dy=X, D=8), 0, 2 * 8 * (6 + 5)),
    (
        launch("token_shift_bwd_kernel_short", {"dx": X}, dy=X, D=8, HAS_DCACHE=True),
        0,
        2 * 8 * (6 + 6),
    ),
    # three sequences in one row
    (
        launch(
            *("token_shift_bwd_kernel_short", {"dx": T(1, 12, 8)}),
            dy=T(1, 12, 8),
            cu_seqlens=I(4),
            D=8,
        ),
        0,
        8 * (12 + 12 - 3),
    ),
    (
        launch("fused_addcmul_fwd_kernel", {"oxr": X}, hidden=X, delta=X, use_xg=True, T=6, D=8),
        0,
        96 * 6 * 2,
    ),
    # four sums, five products and their four sums
    (
        launch("addcmul_bwd_kernel1", {"ghidden": X, "gx": X}, dxr=X, use_xg=False, T=6, D=8),
        0,
        96 * (4 + 5 + 4),
    ),
    (launch("k_update_fwd_kernel_short", {"out": X}, k=X, a=X, ka=T(8)), 0, 96 * 4),
    (
        launch("k_update_bwd_kernel_long", {"dk": X, "da": X, "dka": X}, k=X, a=X, ka=T(8)),
        0,
        96 * (4 + 2 + 3),
    ),
    # two products and a sum; its product with v, the sum with o, the gate
    (
        launch(
            *("gate_output_correction_fwd_kernel", {"output_ptr": X}),
            r_ptr=X,
            r_k_ptr=T(2, 4),
            T=6,
            num_heads=2,
            head_dim=4,
        ),
        0,
        96 * (3 + 3),
    ),
    (
        launch(
            *("gate_output_correction_bwd_kernel", {"grad_o_ptr": X, "grad_g_ptr": X}),
            r_ptr=X,
            r_k_ptr=T(2, 4),
            T=6,
            num_heads=2,
            head_dim=4,
        ),
        0,
        96 * (5 + 1 + 1 + 1 + 2 + 3 * 2),
    ),
    (
        launch(
            *("rwkv_seq_mix_kernel", {"output_ptr": X}),
            x_ptr=X,
            x_prev_ptr=T(2, 8),
            mix_k_ptr=T(8),
            hidden_dim=8,
        ),
        0,
        96 * 4,
    ),
    (
        launch("rwkv_mix_bwd_kenel", {"dx_ptr": X}, dk1_ptr0=X, xk_ptr=T(8), hidden_dim=8),
        0,
        96 * 5,
    ),
    (launch("swiglu_fwd_kernel", {"z": X}, x=X, y=X), 0, 96 * (5 + 1)),
    # σ; x · σ; ∂x: 1 − σ, its product with x, a sum, three products; ∂y; the result
    (
        launch("swiglu_fwdbwd_kernel", {"dx": X, "dy": X, "z": X}, x=X, y=X, g=X, HAS_WEIGHT=True),
        0,
        96 * (4 + 1 + 6 + 1 + 1),
    ),
    # 12 rows of 8 logits
    (
        launch("cross_entropy_fwd_kernel", {"lse": T(12), "loss": T(12)}, logits=T(12, 8)),
        0,
        96 * 5 + 12 * (2 + 2 + 4),
    ),
    # in 2 parts each, with smoothing of labels and a soft cap: 2, and quotient, tanh, product, mask
    (
        launch(
            *("cross_entropy_fwd_kernel", {"lse": T(2, 12), "loss": T(2, 12)}),
            logits=T(12, 8),
            label_smoothing=1,
            logit_softcapping=30,
            SPLIT=True,
        ),
        0,
        96 * (5 + 2 + 1 + 6 + 1 + 1) + 24 * (2 + 2 + 4),
    ),
    (
        launch(
            *("cross_entropy_fwd_kernel_reduce", {"loss": T(12), "lse": T(12)}),
            partial_loss=T(2, 12),
            partial_lse=T(2, 12),
            REDUCE_LOSS=True,
        ),
        0,
        24 * (4 + 1) + 12 * (2 + 2 + 2 + 2),
    ),
    (
        launch(*("cross_entropy_bwd_kernel", {"dlogits": T(12, 8)}), logits=T(12, 8), lse=T(12)),
        0,
        96 * (3 + 2 + 2 + 1),
    ),
    (
        launch(
            *("cross_entropy_bwd_kernel", {"dlogits": T(12, 8)}),
            logits=T(12, 8),
            label_smoothing=1,
            logit_softcapping=30,
        ),
        0,
        96 * (3 + 2 + 2 + 1 + 1 + (1 + 6 + 1) + 3),
    ),
    (launch("elementwise_mul_kernel", {"x": X}, g=T(1), N=96), 0, 96),
    (
        launch(
            *("causal_conv1d_update_kernel", {"y": X}),
            x=X,
            W=4,
            ACTIVATION="silu",
            HAS_RESIDUAL=True,
        ),
        96 * 4,
        96 * (5 + 1),
    ),
    (launch("rwkv_channel_mixing_pow_and_relu", {}, in_ptr=X, n_elements=96), 0, 96 * 2),
    (
        launch("relu_square_bwd_kernel", {}, out_ptr=X, forward_input_ptr=X, n_elements=96),
        0,
        96 * 3,
    ),
]


@pytest.mark.parametrize(
    ("launched", "macs", "other"), CASES + LAYERS, ids=lambda each: getattr(each, "operator", "")
)
def test_a_kernel_counts_the_products_of_its_loops(
    launched: OpSignature, macs: int, other: int
) -> None:
    cost = compute_cost(launched)
    assert cost.state == "formula"
    assert (cost.cost.macs, cost.cost.flops) == (macs, 2 * macs + other)


@pytest.mark.parametrize("launched", [each for each, *_ in CASES + LAYERS], ids=str)
def test_a_kernel_of_the_same_name_with_other_parameters_is_unknown(launched: OpSignature) -> None:
    assert compute_cost(launch(launched.op._opname, {"result": X}, x=X)).state == "unknown"


def test_an_inverse_of_chunks_that_its_kernel_does_not_support_is_unknown() -> None:
    wide = launch(
        *("prepare_wy_repr_fwd_kernel_safe", {"A_ab_inv": T(2, 128, 3, 128)}),
        A_ab=T(2, 128, 3, 128),
        T=128,
        BT=128,
    )
    assert compute_cost(wide).state == "unknown"


# -- recurrent forms: against the recurrence in matrix products of torch ---------------------------

#: one sample of 5 positions, with 2 heads
STEPS, HEADS = 5, 2
STEP: dict[str, Any] = {name: T(1, STEPS, HEADS, K) for name in ("q", "k", "a", "b")}
STEP_VALUES = T(1, STEPS, HEADS, V)


def count_products(recurrence: Any) -> int:
    """Return the MACs of all steps of all heads, as torch's counter counts them."""
    row, column, value = torch.rand(1, K), torch.rand(K, 1), torch.rand(1, V)
    state = torch.rand(K, V)
    with FlopCounterMode(display=False) as counter:
        for _ in range(STEPS * HEADS):
            state = recurrence(state, row, column, value)
    return int(counter.get_total_flops()) // 2


def delta_step(state: Any, row: Any, column: Any, value: Any) -> Any:
    """Run a step of a delta rule: correct the value at a key, and read the state."""
    state = state + column @ (value - row @ state)
    _ = row @ state
    return state


def low_rank_step(state: Any, row: Any, column: Any, value: Any) -> Any:
    """Run a step with a transition of low rank, b · aᵀ, and an update k · vᵀ."""
    state = state + column @ (row @ state) + column @ value
    _ = row @ state
    return state


def recurrent_kda(**options: Any) -> OpSignature:
    tensors: dict[str, Any] = {"q": STEP["q"], "k": STEP["k"], "v": STEP_VALUES, "g": STEP["k"]}
    tensors["beta"] = T(1, STEPS, HEADS)
    return launch(
        *("fused_recurrent_kda_fwd_kernel", {"o": STEP_VALUES}),
        **(tensors | options),
        K=K,
        V=V,
    )


@pytest.mark.parametrize(
    ("options", "others"),
    [
        ({}, 0),
        ({"USE_QK_L2NORM_IN_KERNEL": True}, 2 * (3 * K + 2)),
        # bias, softplus, the rate (an exponential) and its product
        ({"USE_GATE_IN_KERNEL": True, "HAS_BIAS": True}, K + 4 * K + K + 1),
        # a sigmoid of a product, times the bound; no rate
        ({"USE_GATE_IN_KERNEL": True, "USE_LOWER_BOUND": True, "HAS_A": False}, 6 * K),
        ({"APPLY_BETA_SIGMOID": True}, 4),
        ({"APPLY_BETA_SIGMOID": True, "ALLOW_NEG_EIGVAL": True}, 5),
        ({"APPLY_BETA_SIGMOID": True, "beta": STEP_VALUES}, 4 * V),
    ],
)
def test_recurrent_kimi_delta_attention(options: dict[str, Any], others: int) -> None:
    """A step decays the state by key, scales q, and multiplies the corrected value by beta."""
    cost = compute_cost(recurrent_kda(**options)).cost
    macs = count_products(delta_step)
    per_step = (K * V + K) + K + 2 * V + others
    assert (cost.macs, cost.flops) == (macs, 2 * macs + STEPS * HEADS * per_step)


@pytest.mark.parametrize(
    ("name", "vectors", "per_step"),
    [
        ("fused_recurrent_dplr_delta_rule_fwd_kernel", ("q", "k", "a", "b"), 0),
        # −κ, and κ · a
        ("fused_recurrent_rwkv7_fwd_kernel", ("k", "kk", "a"), 2 * K),
    ],
)
def test_recurrent_transitions_of_low_rank(
    name: str, vectors: tuple[str, ...], per_step: int
) -> None:
    tensors: dict[str, Any] = dict.fromkeys(vectors, STEP["k"])
    recorded = launch(name, {"o": STEP_VALUES}, **tensors, v=STEP_VALUES, K=K, V=V)
    macs = count_products(low_rank_step)
    flops = 2 * macs + STEPS * HEADS * ((K * V + K) + K + per_step)
    cost = compute_cost(recorded).cost
    assert (cost.macs, cost.flops) == (macs, flops)


# -- the layers, if the package is installed -------------------------------------------------------


def first_sum(outputs: Any) -> torch.Tensor:
    result: torch.Tensor = outputs[0].sum()
    return result


@pytest.mark.parametrize("safe", [False, True])
def test_training_a_layer_of_kimi_delta_attention_is_complete(safe: bool) -> None:
    layers: Any = pytest.importorskip("fla.layers")
    bound = {"lower_bound": -5.0} if safe else {}
    layer = layers.KimiDeltaAttention(
        hidden_size=64, num_heads=2, head_dim=32, safe_gate=safe, **bound
    )
    inputs = (torch.rand(1, 128, 64),)
    info = crawl_module(layer, args=inputs, training=True, mode="train", loss=first_sum)
    assert not info["without_formula"]


@pytest.mark.filterwarnings("ignore:.*RWKV", "ignore:.*float32")  # of the package
def test_training_a_layer_of_rwkv_is_complete() -> None:
    layers: Any = pytest.importorskip("fla.layers")
    layer = layers.RWKV7Attention(
        mode="chunk", hidden_size=64, head_dim=32, layer_idx=0, num_hidden_layers=2
    )
    inputs = (torch.rand(1, 128, 64),)
    info = crawl_module(layer, args=inputs, training=True, mode="train", loss=first_sum)
    assert not info["without_formula"]
