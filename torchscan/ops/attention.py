"""Attention as one operator, whichever kernel runs it.

It is counted as dense: a causal mask does not halve it.

With S = samples · query heads · L queries · M keys scores, E wide queries and E_v wide values:

forward   MACs = S · (E + E_v)        scores, weighted values
backward  MACs = S · (3·E + 2·E_v)    scores again; ∂V = Pᵀ·∂O, ∂P = ∂O·Vᵀ, ∂Q = ∂S·K, ∂K = ∂Sᵀ·Q

Other FLOPs per score: forward 1 to scale, 5 of softmax, 1 to add a mask, 2 of dropout. Backward 1
to scale and 2 for the softmax from its saved logarithm, 2 for ∂S = P·(∂P − D), 1 to scale, 1 with a
mask, 2 with dropout; D = Σ O·∂O takes 2·E_v per query. Grouped queries count the query heads.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torchscan.ops.op_costs import Work, elements, stored_bytes
from torchscan.ops.per_element import first_output
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.windows import WHOLE, Dim, Looks, UpTo, broadcast_dims, here, look
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

Output = TensorSpec | tuple[object, ...]


@cost_of(aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu)
@cost_of(aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention)
@cost_of(
    aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_fused_attention_overrideable
)
@cost_of("aten::_triton_scaled_dot_attention")
def scaled_dot_product_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *_: object,
    attn_mask: TensorSpec | None = None,
    attn_bias: TensorSpec | None = None,
    dropout_p: float = 0.0,
    out: Output,
) -> Work:
    """Return the cost of the operator that picks a kernel, and of the kernels that it picks.

    Operands are (…, heads, length, width).
    """
    scores = count_scores(query, key)
    return forward_work(scores, query, value, attn_mask or attn_bias, dropout_p)


@window_of(aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu)
@window_of(aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention)
@window_of(
    aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_fused_attention_overrideable
)
@window_of("torchscan::flex_attention")
def attention_window(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *_: object,
    attn_mask: TensorSpec | None = None,
    attn_bias: TensorSpec | None = None,
    is_causal: bool = False,
    out: TensorSpec | tuple[TensorSpec, ...],
) -> Looks:
    """Read the own query, all keys and values (even if masked), and the own row of a mask.

    If causal, read keys and values up to the own place.
    """
    result = first_output(out)
    batch = len(result.shape) - 2
    keys = UpTo(batch) if is_causal else WHOLE
    of_query = look(result, *_heads(query, result), here(batch), WHOLE)
    of_key = look(result, *_heads(key, result), keys, WHOLE)
    of_value = look(result, *_heads(value, result), keys, here(batch + 1))

    mask = attn_mask if attn_mask is not None else attn_bias
    if mask is None:
        return (of_query, of_key, of_value)
    rows = broadcast_dims(mask.shape[:-1], result.shape[:-1])
    return (of_query, of_key, of_value, look(result, *rows, WHOLE))


@window_of("torchscan::fused_attention")
def engine_attention_window(
    query: TensorSpec, key: TensorSpec, *others: Any, is_causal: bool = False, **options: Any
) -> Looks:
    """Read as in :func:`attention_window`.

    If causal, the last query belongs to the last key: with more keys than queries, all are read.
    """
    is_square = query.shape[-2] == key.shape[-2]
    return attention_window(query, key, *others, is_causal=is_causal and is_square, **options)


def _heads(spec: TensorSpec, out: TensorSpec) -> list[Dim]:
    """Return the dimensions before length and width.

    Heads shared by several queries are looked at as a whole.
    """
    dims: list[Dim] = []
    sizes = zip(spec.shape[:-2], out.shape[:-2], strict=True)
    for dim, (size, full) in enumerate(sizes):
        is_shared = size != full
        dims.append(WHOLE if is_shared else here(dim))
    return dims


@cost_of(
    aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
@cost_of(
    aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward,
)
@cost_of(aten._scaled_dot_product_fused_attention_overrideable_backward)
def fused_attention_backward(
    grad_out: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *_: object,
    attn_mask: TensorSpec | None = None,
    attn_bias: TensorSpec | None = None,
    dropout_p: float = 0.0,
    out: Output,
) -> Work:
    """Return the cost of the gradients of the operator and of these kernels."""
    scores = count_scores(query, key)
    return backward_work(scores, query, value, attn_mask or attn_bias, dropout_p)


@cost_of("torchscan::flex_attention")
def flex_attention(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, score_operators: int, *, out: Output
) -> Work:
    """Return the cost of attention whose scores a function modifies: 1 per score and operator.

    Skipped blocks count, too.
    """
    scores = count_scores(query, key)
    work = forward_work(scores, query, value, None, 0.0)
    flops = work.other_flops + score_operators * scores
    return replace(work, other_flops=flops)


@cost_of("torchscan::flex_attention_backward")
def flex_attention_backward(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, score_operators: int, *, out: Output
) -> Work:
    """Return the cost of the gradients of the above.

    The function is computed again, and differentiated at the same price.
    """
    scores = count_scores(query, key)
    work = backward_work(scores, query, value, None, 0.0)
    flops = work.other_flops + 2 * score_operators * scores
    return replace(work, other_flops=flops)


@cost_of("torchscan::fused_attention")
def attention_of_engines(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    sinks: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    is_causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    *_: object,
    inputs: tuple[TensorSpec, ...],
    out: Output,
) -> Work:
    """Return the cost of attention in which a query sees at most ``window`` keys.

    A soft cap takes 3 FLOPs per score (division, tanh, product), a sink 2 per query and head. Keys
    before the window of the first query are not read.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    seen = keys if window is None else min(keys, window)
    rows = math.prod(query.shape[:-1])
    work = forward_work(rows * seen, query, value, bias, 0.0)
    capped = 0 if softcap is None else 3 * rows * seen
    drained = 0 if sinks is None else 2 * rows
    work = replace(work, other_flops=work.other_flops + capped + drained)
    unread = keys - seen - queries + 1
    if unread <= 0:
        return work
    cached = key.numel + value.numel
    skipped = cached * unread // keys
    elements_read = elements(inputs) - skipped
    bytes_read = stored_bytes(inputs) - skipped * key.dtype.itemsize
    return replace(work, elements_read=elements_read, bytes_read=bytes_read)


@cost_of("torchscan::latent_attention")
def latent_attention(
    query: TensorSpec,
    rotary_query: TensorSpec,
    latent: TensorSpec,
    rotary_key: TensorSpec,
    *_: object,
    out: Output,
) -> Work:
    """Return the cost of attention of all heads to one key head, whose latents are also the values.

    MACs = S · (2 · latent + rotary), with the widths of both parts of a key.
    """
    scores = count_scores(query, latent)
    work = forward_work(scores, query, latent, None, 0.0)
    macs = work.macs + scores * rotary_query.shape[-1]
    return replace(work, macs=macs)


def count_scores(query: TensorSpec, key: TensorSpec) -> int:
    """Return the number of pairs of a query and a key, in all samples and heads."""
    return math.prod(query.shape[:-1]) * key.shape[-2]


def forward_work(
    scores: int, query: TensorSpec, value: TensorSpec, mask: TensorSpec | None, dropout: float
) -> Work:
    """Return the cost of attention with this number of scores."""
    macs = scores * (query.shape[-1] + value.shape[-1])
    flops = _flops_per_score(mask, dropout) * scores
    return Work(macs=macs, other_flops=flops)


def backward_work(
    scores: int, query: TensorSpec, value: TensorSpec, mask: TensorSpec | None, dropout: float
) -> Work:
    """Return the cost of the gradients of attention with this number of scores."""
    rows = math.prod(query.shape[:-1])
    width, value_width = query.shape[-1], value.shape[-1]
    macs = scores * (3 * width + 2 * value_width)
    flops = _flops_per_score(mask, dropout) * scores + 2 * value_width * rows
    return Work(macs=macs, other_flops=flops)


def _flops_per_score(mask: TensorSpec | None, dropout: float) -> int:
    flops = 6
    if mask is not None:
        flops += 1
    if dropout:
        flops += 2
    return flops
