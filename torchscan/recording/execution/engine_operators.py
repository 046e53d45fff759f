"""Operators for the attention kernels of inference engines, which torch has no operator for.

Engines run attention with sinks, soft caps and sliding windows as one kernel, and attend to the
latent cache of a model itself. On data these operators compute what the kernels compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define(
    "fused_attention(Tensor query, Tensor key, Tensor value, Tensor? sinks=None, "
    "Tensor? bias=None, bool is_causal=False, int? window=None, float? softcap=None, "
    "float? scale=None) -> Tensor"
)
_library.define(
    "latent_attention(Tensor query, Tensor rotary_query, Tensor latent, Tensor rotary_key, "
    "bool is_causal=False, float? scale=None) -> Tensor"
)
fused_attention = torch.ops.torchscan.fused_attention
latent_attention = torch.ops.torchscan.latent_attention


def compute_fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(q·kᵀ)·v, with an additional score per head that attends to nothing.

    The last query belongs to the last key. It sees ``window`` keys, its own included.
    """
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(group, dim=1)
    value = value.repeat_interleave(group, dim=1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.float() @ key.float().transpose(-1, -2)
    scores = scores * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    hidden = _hidden_keys(scores, window, is_causal=is_causal)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        drain = sinks.float().reshape(1, -1, 1, 1)
        drain = drain.expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, drain], dim=-1)
    shares = torch.softmax(scores, dim=-1)
    shares = shares[..., : key.shape[2]].to(value.dtype)
    by_position = (shares @ value).transpose(1, 2)
    return by_position.contiguous().transpose(1, 2)


def _hidden_keys(scores: Tensor, window: int | None, *, is_causal: bool) -> Tensor:
    """Return True where a query does not see a key."""
    queries, keys = scores.shape[-2:]
    hidden = torch.zeros(queries, keys, dtype=torch.bool, device=scores.device)
    key_index = torch.arange(keys, device=scores.device)
    query_index = key_index[keys - queries :, None]
    if is_causal:
        hidden = hidden | (key_index > query_index)
    if window is not None:
        hidden = hidden | (key_index <= query_index - window)
    return hidden


def compute_latent_attention(
    query: Tensor,
    rotary_query: Tensor,
    latent: Tensor,
    rotary_key: Tensor,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return attention of all heads to one key head, whose first part is also the value."""
    queries = torch.cat([query, rotary_query], dim=-1)
    keys = torch.cat([latent, rotary_key], dim=-1)
    return compute_fused_attention(queries, keys, latent, is_causal=is_causal, scale=scale)


def shape_of_fused_attention(
    query: Tensor, _key: Tensor, value: Tensor, *_args: object, **_kwargs: object
) -> Tensor:
    """Return a result without data, laid out by position."""
    batch, heads, queries, _ = query.shape
    by_position = value.new_empty((batch, queries, heads, value.shape[-1]))
    return by_position.transpose(1, 2)


def shape_of_latent_attention(
    query: Tensor, _rotary_query: Tensor, latent: Tensor, *_args: object, **_kwargs: object
) -> Tensor:
    """Return a result without data, laid out by position."""
    return shape_of_fused_attention(query, latent, latent)


_library.impl("fused_attention", compute_fused_attention, "CompositeExplicitAutograd")
_library.impl("fused_attention", shape_of_fused_attention, "Meta")
_library.impl("latent_attention", compute_latent_attention, "CompositeExplicitAutograd")
_library.impl("latent_attention", shape_of_latent_attention, "Meta")
