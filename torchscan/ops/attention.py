"""Attention as one operator, whichever kernel runs it. It is counted dense: a causal mask does not halve it."""

from __future__ import annotations

import math

import torch

from torchscan.ops.registry import Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten


@cost_of(aten.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_mask: TensorSpec | None = None,
    dropout_p: float = 0.0,
    *_: object,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """With S = query heads · L · M scores, of which each takes E products, and E_v to weigh the values: MACs = S · (E + E_v).

    Other FLOPs = S · (1 to scale + 5 of softmax + 1 to add a mask + 2 of dropout). Query groups count the query heads.
    """
    scores = math.prod(out.shape[:-2]) * query.shape[-2] * key.shape[-2]
    per_score = 6 + (attn_mask is not None) + (2 if dropout_p else 0)
    return Work(macs=scores * (query.shape[-1] + value.shape[-1]), other_flops=per_score * scores)
