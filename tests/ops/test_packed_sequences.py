"""Packed sequences in kernels of linear attention: chunks end where a sequence ends."""

from __future__ import annotations

import importlib
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ops.launches import launch
from tests.ops.test_every_formula import I, T
from torchscan import crawl_module
from torchscan.ops import compute_cost
from torchscan.types import OpSignature, TensorSpec

#: lengths of the sequences in a row; 2 heads, keys of 8, values of 24, chunks of 32
LENGTHS, HEADS, K, V, BT = (40, 8, 48), 2, 8, 24, 32
POSITIONS = sum(LENGTHS) * HEADS
CHUNKS = sum(len(range(0, length, BT)) for length in LENGTHS)
KEYS, VALUES = T(1, 96, HEADS, K), T(1, 96, HEADS, V)
STATES, SCORES = T(1, CHUNKS, HEADS, K, V), T(1, 96, HEADS, BT)
PACKED: dict[str, Any] = {"cu_seqlens": I(4), "T": 96, "K": K, "V": V, "BT": BT}
STATE = K * V


def work(launched: OpSignature) -> tuple[int, int]:
    """Return the MACs and other FLOPs of a launch with a complete formula."""
    call = compute_cost(launched)
    assert call.state == "formula"
    return call.cost.macs, call.cost.flops - 2 * call.cost.macs


def pack(name: str, written: dict[str, TensorSpec], **options: Any) -> OpSignature:
    given = {"q": KEYS, "k": KEYS, "v": VALUES, "w": KEYS, "do": VALUES, "dv": VALUES}
    tensors = {each: spec for each, spec in given.items() if each not in written}
    return launch(name, written, **tensors, **options)


def test_packed_sequences_have_more_chunks_than_one_long_sequence() -> None:
    assert CHUNKS == 2 + 1 + 2


@pytest.mark.parametrize(
    ("launched", "per_position", "per_chunk"),
    [
        # by head: exponentials of values and states
        (pack("chunk_fwd_kernel_h", {"h": STATES}, USE_G=True, **PACKED), V + 2, STATE + 1),
        (pack("chunk_bwd_kernel_dh", {"dh": STATES}, USE_G=True, **PACKED), 2 * K + 1, STATE + 1),
        # by key, for states; a difference of values
        (
            pack(
                *("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", {"h": STATES}),
                USE_GK=True,
                **PACKED,
            ),
            V,
            STATE + K,
        ),
        (
            pack(
                *("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", {"dh": STATES}),
                USE_G=True,
                **PACKED,
            ),
            V + V + K + 4,
            3 * STATE + STATE + 1,
        ),
        (
            pack("chunk_gla_bwd_kernel_inter", {"dq2": KEYS, "dg": KEYS}, dh=STATES, **PACKED),
            18 * K,
            2 * STATE + 2 * K,
        ),
        (
            pack("chunk_bwd_kernel_dqkwg", {"dq": KEYS}, dh=STATES, USE_G=True, **PACKED),
            5 * BT + 9 * K + 6,
            2 * STATE + 2,
        ),
    ],
    ids=lambda each: getattr(each, "operator", ""),
)
def test_states_of_packed_sequences_count_by_chunk(
    launched: OpSignature, per_position: int, per_chunk: int
) -> None:
    _, other = work(launched)
    assert other == POSITIONS * per_position + CHUNKS * HEADS * per_chunk


@pytest.mark.parametrize(
    ("name", "written"),
    [("chunk_fwd_kernel_h", {"h": STATES}), ("chunk_bwd_kernel_dh", {"dh": STATES})],
)
def test_packed_chunks_that_share_states_are_unknown(
    name: str, written: dict[str, TensorSpec]
) -> None:
    assert compute_cost(pack(name, written, BS=2 * BT, **PACKED)).state == "unknown"
    without = {**PACKED, "cu_seqlens": I(4)}
    del without["cu_seqlens"]
    assert compute_cost(pack(name, written, BS=2 * BT, **without)).state == "formula"


def test_gradients_of_recurrent_decays_take_the_last_state_of_each_sequence() -> None:
    """By head, a step takes two scales, the states and their gradients, and 4 per key."""
    launched = pack("fused_recurrent_bwd_kernel", {"dq": KEYS}, USE_G=True, **PACKED)
    _, other = work(launched)
    per_position = 2 * K + 2 * (STATE + 1) + 4 * K
    assert other == POSITIONS * per_position + len(LENGTHS) * HEADS * 2 * STATE


#: 4 products of 16 x 16 x 16 below the diagonal: B · A · B; and 14 rows of two blocks
INVERSE = 2 * 16**3 + 2 * 14 * 16 * 16


@pytest.mark.parametrize(
    ("launched", "scores"),
    [
        (
            launch(
                *("merge_16x16_to_32x32_inverse_kernel", {"Ai": SCORES}),
                A=SCORES,
                chunk_indices=I(CHUNKS, 2),
                **PACKED,
            ),
            0,
        ),
        (
            launch(
                *("chunk_gated_delta_rule_fwd_kkt_solve_kernel", {"A": SCORES}),
                k=KEYS,
                beta=T(1, 96, HEADS),
                chunk_indices=I(CHUNKS, 2),
                **PACKED,
            ),
            POSITIONS * BT * K,
        ),
        (
            launch(
                *("chunk_kda_fwd_kernel_inter_solve_fused", {"Aqk": SCORES, "Akk": SCORES}),
                q=KEYS,
                beta=T(1, 96, HEADS),
                chunk_indices=I(CHUNKS, 2),
                BC=16,
                **PACKED,
            ),
            POSITIONS * 2 * 16 * K,
        ),
    ],
    ids=lambda each: getattr(each, "operator", ""),
)
def test_packed_sequences_have_an_inverse_for_each_chunk(
    launched: OpSignature, scores: int
) -> None:
    macs, _ = work(launched)
    assert macs == scores + CHUNKS * HEADS * INVERSE


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        # of a rule with decays by value, by key, and with two keys
        ("recompute_w_u_fwd_kernel", {"u": VALUES}, {"gv": VALUES}),
        ("recompute_w_u_fwd_kernel", {"u": VALUES}, {"gk": KEYS}),
        ("prepare_wy_repr_bwd_kernel", {"dv": VALUES, "dw": KEYS}, {"gv": VALUES}),
        ("prepare_wy_repr_bwd_kernel", {"dv": VALUES, "dw": KEYS, "dp": KEYS}, {}),
        # of products of Householder matrices, and of low rank with an identity
        ("chunk_fwd_kernel_o", {"o": VALUES}, {"q": KEYS, "h": STATES, "num_householder": 2}),
        ("fused_recurrent_fwd_kernel", {"o": VALUES}, {"ha": VALUES}),
        ("fused_recurrent_bwd_kernel", {"dq": KEYS}, {"ha": VALUES, "do": VALUES}),
    ],
)
def test_a_kernel_of_another_rule_with_the_same_name_is_unknown(
    name: str, written: dict[str, TensorSpec], read: dict[str, Any]
) -> None:
    shared = {"k": KEYS, "v": VALUES, "beta": T(1, 96, HEADS), "A": SCORES}
    tensors = {each: spec for each, spec in shared.items() if each not in written}
    other = launch(name, written, **tensors, **read, **PACKED)
    assert compute_cost(other).state == "unknown"


# -- against each sequence by itself, if the package is installed ----------------------------------

RULES = {
    "gla.chunk_gla": ("q", "k", "v", "g"),
    "gated_delta_rule.chunk_gated_delta_rule": ("q", "k", "v", "g", "beta"),
    "kda.chunk_kda": ("q", "k", "v", "g", "beta"),
    "rwkv7.chunk_rwkv7": ("r", "w", "k", "v", "a", "b"),
    "simple_gla.chunk_simple_gla": ("q", "k", "v", "g"),
}
#: rules with one decay for each head
BY_HEAD = ("gated_delta_rule", "simple_gla")


class Rule(nn.Module):
    """A rule on tensors of a parameter: 2 heads, keys of 16 and values of 32."""

    def __init__(self, name: str) -> None:
        super().__init__()
        module, function = name.split(".")
        self.function = getattr(importlib.import_module(f"fla.ops.{module}"), function)
        self.widths: dict[str, tuple[int, ...]] = dict.fromkeys(RULES[name], (16,))
        self.widths["v"] = (32,)
        if module in BY_HEAD:
            self.widths["g"] = ()
        if "beta" in self.widths:
            self.widths["beta"] = ()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, length: int, starts: Tensor | None) -> Tensor:
        inputs = {
            name: torch.ones(1, length, 2, *width) * self.scale
            for name, width in self.widths.items()
        }
        result: Tensor = self.function(**inputs, cu_seqlens=starts)[0]
        return result


def train(rule: Rule, length: int, starts: Tensor | None = None) -> tuple[int, int]:
    info = crawl_module(
        rule, args=(length, starts), training=True, loss=torch.sum, mode="train", strict=True
    )
    overall = info["overall"]
    return overall["macs"], overall["flops"]


@pytest.mark.filterwarnings("ignore:.*float32")  # of the package
@pytest.mark.parametrize("name", RULES)
def test_packed_sequences_cost_as_much_as_each_by_itself(name: str) -> None:
    """A sum of n elements counts n - 1, for the loss and for gradients of the scale.

    Computed separately, each additional sequence has one addition fewer in each of these sums.
    """
    pytest.importorskip("fla.ops")
    lengths = (100, 40, 64)
    rule = Rule(name)
    alone = [train(rule, length) for length in lengths]
    starts = torch.tensor([0, *accumulate(lengths)])
    macs, flops = train(rule, sum(lengths), starts)
    assert macs == sum(macs for macs, _ in alone)
    further = len(lengths) - 1
    tensors = len(RULES[name])
    assert 0 <= flops - sum(flops for _, flops in alone) <= further * (1 + 2 * tensors)
