"""Operators that take functions: flex attention is recorded as one operator, others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from tests.versions import needs
from torchscan import RecordError, record
from torchscan.analyses.totals import by_operator

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore"
    )  # torch's compiler, which it imports, uses what torch deprecates
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

#: older versions of torch do not show operators that take functions to a mode
recorded = needs("nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
#: 2 samples · 4 heads · 16 queries · 16 keys
SCORES = 2 * 4 * 16 * 16


class Flexible(nn.Module):
    """Attention of 4 heads, 8 wide."""

    def __init__(self, score_mod: ScoreMod | None = None, *, is_causal: bool = False) -> None:
        super().__init__()
        self.score_mod = score_mod
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Any:
        mask = (
            create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 16, 16, device="cpu")
            if self.is_causal
            else None
        )
        return flex_attention(x, x, x, score_mod=self.score_mod, block_mask=mask)


def attention_cost(model: nn.Module, *args: Tensor) -> torchscan.types.OpCost:
    return by_operator(record(model, args=args))["torchscan.flex_attention"]


@recorded
def test_flex_attention_is_one_operator() -> None:
    """8 products for each score and 8 to weigh the values; 6 other operations per score, as for any attention."""
    cost = attention_cost(Flexible(), torch.rand(2, 4, 16, 8))
    assert (cost.macs, cost.flops) == (SCORES * 16, 2 * SCORES * 16 + 6 * SCORES)


@recorded
def test_the_function_of_the_scores_counts() -> None:
    """A product and a sum; the difference of positions is one of integers."""
    cost = attention_cost(
        Flexible(lambda score, _b, _h, q, k: score + (q - k) * 0.1), torch.rand(2, 4, 16, 8)
    )
    assert cost.flops == 2 * SCORES * 16 + (6 + 2) * SCORES


@recorded
def test_blocks_that_are_left_out_count() -> None:
    assert attention_cost(Flexible(is_causal=True), torch.rand(2, 4, 16, 8)).macs == SCORES * 16


@recorded
def test_grouped_queries_count_the_query_heads() -> None:
    model = Calls(lambda _, q, k: flex_attention(q, k, k, enable_gqa=True))
    assert (
        attention_cost(model, torch.rand(2, 4, 16, 8), torch.rand(2, 2, 16, 8)).macs == SCORES * 16
    )


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's compiler uses what torch deprecates
def test_a_compiled_model_is_recorded_as_what_was_compiled() -> None:
    compiled: Any = torch.compile(nn.Linear(4, 4))
    model = nn.Sequential(compiled, nn.ReLU())
    assert list(by_operator(record(model, (4,)))) == ["aten.linear", "aten.relu"]


def test_other_operators_that_take_functions_are_refused_in_one_line() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan_op as scan

    model = Calls(lambda _, x: scan(torch.mul, [x], ()))
    with pytest.raises(
        RecordError, match=r"associative_scan takes functions|no rule registered for HOP"
    ) as caught:
        record(model, (4,))
    assert "try: replace it with one of its branches" in str(caught.value)
