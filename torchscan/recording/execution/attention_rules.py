"""Shapes of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import FLOATS, Rule, like_input, meta_like
from torchscan.recording.execution.norm_rules import dtype_of_sums
from torchscan.torch_versions import FUSES_GROUPED_QUERIES, OpOverload, aten


def runs_in_one_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    enable_gqa: bool = False,
    **_: Any,
) -> bool:
    """Return whether the CPU's fused attention kernel takes these operands."""
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        return False
    batch, heads, _queries, width = query.shape
    key_batch, key_heads, _keys, key_width = key.shape
    if (batch, width) != (key_batch, key_width) or 0 in (*query.shape, *key.shape):
        return False

    fits = heads == key_heads
    if enable_gqa and FUSES_GROUPED_QUERIES:
        fits = heads % key_heads == 0
    if not fits or dropout_p or query.stride(-1) != 1:
        return False
    return attn_mask is None or not attn_mask.requires_grad


def attention(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Tensor | None:
    """Return the result of a fused kernel, which has the layout of the query.

    Without one torch computes step by step and returns another layout.
    """
    if not runs_in_one_kernel(query, key, value, *args, **kwargs):
        return None
    return like_input(query)


def flash_attention_on_cpu(
    query: Tensor, *_args: Any, **_kwargs: Any
) -> tuple[Tensor, Tensor] | None:
    """Return the result, and the logarithm of a sum for each query and head."""
    if query.dim() != 4 or query.dtype not in FLOATS:
        return None
    batch, heads, length = query.shape[:3]
    dtype = dtype_of_sums(query)
    sums = torch.empty((batch, length, heads), dtype=dtype, device="meta")
    return meta_like(query), sums.transpose(1, 2)


def flash_attention_backward(
    _grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_rest: Any, **_kwargs: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key and value."""
    return meta_like(query), meta_like(key), meta_like(value)


ATTENTION_RULES: Mapping[OpOverload, Rule] = {
    aten.scaled_dot_product_attention.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention_on_cpu,
    aten._scaled_dot_product_flash_attention_backward.default: flash_attention_backward,
}
