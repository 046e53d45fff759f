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

from torchscan.ops.elementwise import first_output
from torchscan.ops.op_costs import Work, elements, stored_bytes
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.windows import WHOLE, Dim, Looks, Ways, broadcast_dims, here, look
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
    """The operator that picks a kernel, and the kernels that it picks.

    Operands are (…, heads, length, width).
    """
    scores = _scores(query, key)
    return _forward(scores, query, value, attn_mask or attn_bias, dropout_p)


@window_of(aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu)
@window_of(aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention)
@window_of(
    aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_fused_attention_overrideable
)
@window_of("torchscan::flex_attention", "torchscan::fused_attention")
def attention_window(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *_: object,
    attn_mask: TensorSpec | None = None,
    attn_bias: TensorSpec | None = None,
    out: TensorSpec | tuple[TensorSpec, ...],
) -> Looks:
    """Its own query, all keys and values (even if masked), and its own row of a mask."""
    result, mask = first_output(out), attn_mask if attn_mask is not None else attn_bias
    batch = len(result.shape) - 2
    looks: list[Ways] = [
        look(result, *_heads(query, result), here(batch), WHOLE),
        look(result, *_heads(key, result), WHOLE, WHOLE),
        look(result, *_heads(value, result), WHOLE, here(batch + 1)),
    ]
    if mask is not None:
        rows = broadcast_dims(mask.shape[:-1], result.shape[:-1])
        looks.append(look(result, *rows, WHOLE))
    return tuple(looks)


def _heads(spec: TensorSpec, out: TensorSpec) -> list[Dim]:
    """Return the dimensions before length and width.

    Heads shared by several queries are looked at as a whole.
    """
    sizes = zip(spec.shape[:-2], out.shape[:-2], strict=True)
    return [here(dim) if size == full else WHOLE for dim, (size, full) in enumerate(sizes)]


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
    """The gradients of all of the above."""
    scores = _scores(query, key)
    return _backward(scores, query, value, attn_mask or attn_bias, dropout_p)


@cost_of("torchscan::flex_attention")
def flex_attention(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, score_operators: int, *, out: Output
) -> Work:
    """Attention whose scores a function modifies: 1 per score for each of its operators.

    Skipped blocks count, too.
    """
    scores = _scores(query, key)
    work = _forward(scores, query, value, None, 0.0)
    flops = work.other_flops + score_operators * scores
    return replace(work, other_flops=flops)


@cost_of("torchscan::flex_attention_backward")
def flex_attention_backward(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, score_operators: int, *, out: Output
) -> Work:
    """Return the cost of the gradients of the above.

    The function is computed again, and differentiated at the same price.
    """
    scores = _scores(query, key)
    work = _backward(scores, query, value, None, 0.0)
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
    work = _forward(rows * seen, query, value, bias, 0.0)
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
    scores = _scores(query, latent)
    work = _forward(scores, query, latent, None, 0.0)
    macs = work.macs + scores * rotary_query.shape[-1]
    return replace(work, macs=macs)


# -- the kernels below them ----------------------------------------------------------------------
# Operands are (samples, length, heads, width), or have all samples in a row and where each begins.
# In the latter case a trace does not have the length of each sample: all count as if as long as the
# longest.


@cost_of(aten._flash_attention_forward)
def flash_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    cum_seq_q: TensorSpec | None,
    cum_seq_k: TensorSpec | None,
    max_q: int,
    max_k: int,
    dropout_p: float = 0.0,
    *_: object,
    out: Output,
) -> Work:
    """The flash kernel."""
    scores = _kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return _forward(scores, query, value, None, dropout_p)


@cost_of("aten::_flash_attention_forward_no_dropout_inplace")
def flash_attention_in_place(target: TensorSpec, *args: Any, out: Output) -> Work:
    """The flash kernel, into an existing tensor."""
    return flash_attention(*args[:7], out=out)


@cost_of(aten._efficient_attention_forward)
def efficient_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    bias: TensorSpec | None,
    cu_seqlens_q: TensorSpec | None,
    cu_seqlens_k: TensorSpec | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float = 0.0,
    *_: object,
    out: Output,
) -> Work:
    """The memory-efficient kernel."""
    scores = _kernel_scores(query, key, cu_seqlens_q, max_seqlen_q or 0, max_seqlen_k or 0)
    return _forward(scores, query, value, bias, dropout_p)


@cost_of("aten::_cudnn_attention_forward")
def cudnn_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None,
    cum_seq_q: TensorSpec | None,
    cum_seq_k: TensorSpec | None,
    max_q: int,
    max_k: int,
    *_: object,
    dropout_p: float = 0.0,
    out: Output,
) -> Work:
    """CuDNN's kernel, which takes (samples, heads, length, width)."""
    if cum_seq_q is None:
        scores = _scores(query, key)
    else:
        scores = _kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return _forward(scores, query, value, attn_bias, dropout_p)


@cost_of(aten._flash_attention_backward)
def flash_attention_backward(
    grad_out: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *_: object,
    cum_seq_q: TensorSpec | None,
    max_q: int,
    max_k: int,
    dropout_p: float = 0.0,
    out: Output,
) -> Work:
    """The gradients of the flash kernel."""
    scores = _kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return _backward(scores, query, value, None, dropout_p)


@cost_of(aten._efficient_attention_backward)
def efficient_attention_backward(
    grad_out_: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    bias: TensorSpec | None = None,
    *_: object,
    cu_seqlens_q: TensorSpec | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    out: Output,
) -> Work:
    """The gradients of the memory-efficient kernel."""
    scores = _kernel_scores(query, key, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return _backward(scores, query, value, bias, dropout_p)


@cost_of("aten::_cudnn_attention_backward")
def cudnn_attention_backward(
    grad_out: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *_: object,
    attn_bias: TensorSpec | None,
    cum_seq_q: TensorSpec | None,
    max_q: int,
    max_k: int,
    dropout_p: float = 0.0,
    out: Output,
) -> Work:
    """The gradients of cuDNN's kernel."""
    if cum_seq_q is None:
        scores = _scores(query, key)
    else:
        scores = _kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return _backward(scores, query, value, attn_bias, dropout_p)


# -- whole layers in one kernel --------------------------------------------------------------------


@cost_of(aten._native_multi_head_attention, "aten::_triton_multi_head_attention")
def multi_head_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    embed_dim: int,
    num_head: int,
    qkv_weight: TensorSpec,
    qkv_bias: TensorSpec,
    proj_weight: TensorSpec,
    *_: object,
    mask: TensorSpec | None = None,
    out: Output,
) -> Work:
    """MACs = N · (2·L·D² + 2·M·D²) + N·L·M·2·D: projections, attention, output.

    There are N samples, L queries and M keys.

    Other FLOPs: 6 per score (7 with a mask).
    """
    samples, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    scores = samples * num_head * queries * keys
    projected = samples * (2 * queries + 2 * keys) * embed_dim
    per_score = 6 + (mask is not None)
    macs = projected * embed_dim + 2 * scores * (embed_dim // num_head)
    return Work(macs=macs, other_flops=per_score * scores)


@cost_of(aten._transformer_encoder_layer_fwd)
def transformer_encoder_layer(
    src: TensorSpec,
    embed_dim: int,
    num_heads: int,
    qkv_weight: TensorSpec,
    qkv_bias: TensorSpec,
    proj_weight: TensorSpec,
    proj_bias: TensorSpec,
    use_gelu: bool,
    *_: object,
    ffn_weight_1: TensorSpec,
    mask: TensorSpec | None = None,
    out: Output,
) -> Work:
    """MACs = N·L·(4·D² + 2·D·F) + N·L²·2·D: the above, and a feed-forward part.

    L is the length of the sequences, F the width of the feed-forward part.

    Other FLOPs: those of attention, two layer norms (8 per element, 2 per row each), two sums, the
    activation (relu 1, gelu 5).
    """
    attention = multi_head_attention(
        src, src, src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, mask=mask, out=out
    )
    rows, width = src.numel // embed_dim, ffn_weight_1.shape[0]
    norms = 2 * (8 * src.numel + 2 * rows)
    activation = (5 if use_gelu else 1) * rows * width
    other = norms + 2 * src.numel + activation
    macs = attention.macs + 2 * rows * embed_dim * width
    return Work(macs=macs, other_flops=attention.other_flops + other)


@cost_of(aten._transform_bias_rescale_qkv)
def split_projections(
    qkv: TensorSpec, qkv_bias: TensorSpec, num_heads: int, *, out: Output
) -> Work:
    """1 per element for the bias of queries, keys and values; 1 per query element to scale."""
    return Work(other_flops=qkv.numel + qkv.numel // 3)


def _scores(query: TensorSpec, key: TensorSpec) -> int:
    return math.prod(query.shape[:-1]) * key.shape[-2]


def _kernel_scores(
    query: TensorSpec, key: TensorSpec, starts: TensorSpec | None, max_q: int, max_k: int
) -> int:
    heads = query.shape[-2]
    if starts is None:
        samples, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        return samples * heads * queries * keys
    samples = starts.numel - 1
    return samples * heads * max_q * max_k


def _forward(
    scores: int, query: TensorSpec, value: TensorSpec, mask: TensorSpec | None, dropout: float
) -> Work:
    macs = scores * (query.shape[-1] + value.shape[-1])
    return Work(macs=macs, other_flops=_flops_per_score(mask, dropout) * scores)


def _backward(
    scores: int, query: TensorSpec, value: TensorSpec, mask: TensorSpec | None, dropout: float
) -> Work:
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
