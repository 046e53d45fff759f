"""Operators of ``flash_attn`` count as torch's attention.

The package needs a GPU to be imported. Operators with its names and arguments stand in for it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import crawl_module, record

SAMPLES, QUERIES, KEYS, HEADS, WIDTH = 2, 16, 24, 4, 8
SCORES = SAMPLES * HEADS * QUERIES * KEYS
#: scale, 5 of softmax; 2 of dropout
FLOPS, DROPOUT = 6, 2


@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Raise: this machine has no kernel."""
    raise NotImplementedError


@forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1])


@torch.library.custom_op("flash_attn::_flash_attn_backward", mutates_args=("dq", "dk", "dv"))
def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
) -> Tensor:
    """Raise: this machine has no kernel."""
    raise NotImplementedError


@backward.register_fake
def _(dout: Tensor, q: Tensor, *_: object) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1])


@torch.library.custom_op("flash_attn::_flash_attn_varlen_forward", mutates_args=())
def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Raise: this machine has no kernel."""
    raise NotImplementedError


@packed.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        out, logarithms = torch.ops.flash_attn._flash_attn_forward(q, k, v, dropout, 1.0, True)
        ctx.save_for_backward(q, k, v, out, logarithms)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, logarithms = ctx.saved_tensors
        found = [torch.empty_like(each) for each in (q, k, v)]
        torch.ops.flash_attn._flash_attn_backward(
            gradients[0], q, k, v, out, logarithms, *found, 0.0, 1.0, True
        )
        return (*found, None)


class Attention(nn.Module):
    """Attention as the package calls its kernels."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the weighted values."""
        out: Tensor = _Attention.apply(q, k, v, self._dropout)
        return out


def _operands() -> tuple[Tensor, ...]:
    key = torch.rand(SAMPLES, KEYS, HEADS, WIDTH, requires_grad=True)
    return (torch.rand(SAMPLES, QUERIES, HEADS, WIDTH, requires_grad=True), key, key * 2)


@pytest.mark.parametrize(("dropout", "per_score"), [(0.0, FLOPS), (0.1, FLOPS + DROPOUT)])
def test_attention_counts_its_scores(dropout: float, per_score: int) -> None:
    overall = crawl_module(Attention(dropout), args=_operands())["overall"]
    assert overall["complete"]
    assert overall["macs"] == SCORES * 2 * WIDTH
    assert overall["flops"] == 2 * SCORES * 2 * WIDTH + per_score * SCORES


def test_gradients_take_five_products_per_score() -> None:
    """Scores again, and the gradients of scores, queries, keys and values."""
    trace = record(Attention(), args=_operands(), training=True, loss=torch.sum)
    rows = {row["operator"]: row for row in trace.table().to_dict()["rows"]}
    assert rows["flash_attn._flash_attn_backward"]["macs"] == SCORES * 5 * WIDTH


def test_sequences_of_different_lengths_count_as_the_longest() -> None:
    class Packed(nn.Module):
        def forward(self, q: Tensor, starts: Tensor) -> Tensor:
            out, _ = torch.ops.flash_attn._flash_attn_varlen_forward(
                q, q, q, starts, starts, 10, 10, 0.0, 1.0, True
            )
            return out

    starts = torch.tensor([0, 6, 16], dtype=torch.int32)
    q = torch.rand(16, HEADS, WIDTH)
    assert crawl_module(Packed(), args=(q, starts))["overall"]["macs"] == (
        2 * HEADS * 10 * 10 * 2 * WIDTH
    )
