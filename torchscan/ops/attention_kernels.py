"""The kernels that attention picks on GPUs, and their gradients.

Operands are (samples, length, heads, width), or have all samples in a row and where each begins. In
the latter case a trace does not have the length of each sample: all count as if as long as the
longest. Costs are those of :mod:`torchscan.ops.attention`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchscan.ops.attention import Output, backward_work, count_scores, forward_work
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


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
    """Return the cost of the flash kernel."""
    scores = kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return forward_work(scores, query, value, None, dropout_p)


@cost_of("aten::_flash_attention_forward_no_dropout_inplace")
def flash_attention_in_place(target: TensorSpec, *args: Any, out: Output) -> Work:
    """Return the cost of the flash kernel that writes into an existing tensor."""
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
    """Return the cost of the memory-efficient kernel."""
    scores = kernel_scores(query, key, cu_seqlens_q, max_seqlen_q or 0, max_seqlen_k or 0)
    return forward_work(scores, query, value, bias, dropout_p)


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
    """Return the cost of cuDNN's kernel, which takes (samples, heads, length, width)."""
    if cum_seq_q is None:
        scores = count_scores(query, key)
    else:
        scores = kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return forward_work(scores, query, value, attn_bias, dropout_p)


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
    """Return the cost of the gradients of the flash kernel."""
    scores = kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return backward_work(scores, query, value, None, dropout_p)


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
    """Return the cost of the gradients of the memory-efficient kernel."""
    scores = kernel_scores(query, key, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return backward_work(scores, query, value, bias, dropout_p)


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
    """Return the cost of the gradients of cuDNN's kernel."""
    if cum_seq_q is None:
        scores = count_scores(query, key)
    else:
        scores = kernel_scores(query, key, cum_seq_q, max_q, max_k)
    return backward_work(scores, query, value, attn_bias, dropout_p)


@cost_of("torchao::qscaled_dot_product")
def quantized_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_mask: TensorSpec | None = None,
    *_: object,
    out: TensorSpec,
) -> Work:
    """Return the cost of attention in 8 bits, of (samples, heads, length, width).

    A probability is rounded, shifted and bounded (4), an element of the result scaled besides (5).
    In float8, both are only bounded (2), and the result is scaled (3).
    """
    scores = count_scores(query, key)
    work = forward_work(scores, query, value, attn_mask, 0.0)
    per_score, per_element = 4, 5
    if query.dtype.is_floating_point:
        per_score, per_element = 2, 3
    flops = work.other_flops + per_score * scores
    flops += per_element * out.numel
    return replace(work, other_flops=flops)


def kernel_scores(
    query: TensorSpec, key: TensorSpec, starts: TensorSpec | None, max_q: int, max_k: int
) -> int:
    """Return the number of scores in tensors that have heads before widths.

    With ``starts`` of sequences that follow each other, each counts as long as the longest.
    """
    heads = query.shape[-2]
    if starts is None:
        samples, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        return samples * heads * queries * keys
    samples = starts.numel - 1
    return samples * heads * max_q * max_k
