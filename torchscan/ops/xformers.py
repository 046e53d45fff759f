"""Operators and Triton kernels of xformers, by the names of their arguments.

Attention is (samples, length, heads, width), also with groups of heads, or all samples in a row.
Costs are those of torch's attention: dense, so a causal mask does not halve them.
"""

from __future__ import annotations

import math

from torchscan.ops.attention import backward_work, forward_work
from torchscan.ops.attention_kernels import kernel_scores
from torchscan.ops.normalization import rms_norm
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("xformers_flash::flash_fwd", "xformers_flash3::flash_fwd")
def flash_attention(
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    cu_seqlens_q: TensorSpec | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p: float = 0.0,
    out: object,
) -> Work:
    """Return the cost of flash attention."""
    scores = _count_scores(query, key, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return forward_work(scores, query, value, None, p)


@cost_of("xformers_flash::flash_bwd", "xformers_flash3::flash_bwd")
def flash_attention_gradients(
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    cu_seqlens_q: TensorSpec | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p: float = 0.0,
    out: object,
) -> Work:
    """Return the cost of the gradients of flash attention."""
    scores = _count_scores(query, key, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return backward_work(scores, query, value, None, p)


@cost_of("xformers::efficient_attention_forward_cutlass")
def efficient_attention(
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None = None,
    seqstart_q: TensorSpec | None = None,
    dropout_p: float = 0.0,
    out: object,
) -> Work | None:
    """Return the cost of attention in samples of one length.

    Of samples in a row, the operator does not know the longest number of keys.
    """
    if seqstart_q is not None:
        return None
    scores = _count_scores(query, key, None, 0, 0)
    return forward_work(scores, query, value, attn_bias, dropout_p)


@cost_of("xformers::efficient_attention_backward_cutlass")
def efficient_attention_gradients(
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    bias: TensorSpec | None = None,
    cu_seqlens_q: TensorSpec | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    dropout_p: float = 0.0,
    out: object,
) -> Work:
    """Return the cost of the gradients of attention."""
    scores = _count_scores(query, key, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return backward_work(scores, query, value, bias, dropout_p)


@cost_of("xformer::memory_efficient_attention_forward")
def attention_of_any_kernel(
    *, q: TensorSpec, k: TensorSpec, v: TensorSpec, p: float | None = 0.0, out: object
) -> Work:
    """Return the cost of attention by the kernel that xformers chooses."""
    return forward_work(_count_scores(q, k, None, 0, 0), q, v, None, p or 0.0)


def _count_scores(
    query: TensorSpec, key: TensorSpec, starts: TensorSpec | None, max_q: int, max_k: int
) -> int:
    """Return the number of scores; without heads there is one, and heads may be in groups."""
    if starts is not None:
        return kernel_scores(query, key, starts, max_q, max_k)
    samples, queries, *heads, _ = query.shape
    return samples * queries * key.shape[1] * math.prod(heads)


@cost_of("triton::_rms_norm_kernel")
def rms_norm_kernel(
    *,
    x_ptr: TensorSpec,
    w_ptr: TensorSpec | None = None,
    N_COLS: int,
    h1_ptr: TensorSpec,
    out: object,
) -> Work:
    """Return the FLOPs of ``rms_norm``."""
    return rms_norm(x_ptr, [N_COLS], w_ptr, out=x_ptr)


@cost_of("triton::_rms_norm_add_kernel")
def rms_norm_of_sum_kernel(
    *,
    x_ptr: TensorSpec,
    y_ptr: TensorSpec,
    w_ptr: TensorSpec | None = None,
    N_COLS: int,
    out: object,
) -> Work:
    """Return the FLOPs of a sum and its ``rms_norm``."""
    work = rms_norm(x_ptr, [N_COLS], w_ptr, out=x_ptr)
    return Work(other_flops=work.other_flops + x_ptr.numel)
