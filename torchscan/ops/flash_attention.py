"""Operators of the package ``flash_attn``, by the names of their arguments.

The package has them since version 2.7.0; earlier versions call C++ that torch does not see.
``flash_attn_3`` is built from the folder ``hopper`` of the same sources.

Tensors are (samples, length, heads, width), or (tokens, heads, width) if lengths vary. Costs are
those of torch's attention: dense, so a causal mask does not halve them.
"""

from __future__ import annotations

from torchscan.ops.attention import backward_work, forward_work
from torchscan.ops.attention_kernels import kernel_scores
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("flash_attn::_flash_attn_forward")
def flash_attention(
    *, q: TensorSpec, k: TensorSpec, v: TensorSpec, dropout_p: float = 0.0, out: object
) -> Work:
    """Return the cost of attention in samples of one length."""
    scores = kernel_scores(q, k, None, q.shape[1], k.shape[1])
    return forward_work(scores, q, v, None, dropout_p)


@cost_of("flash_attn::_flash_attn_varlen_forward")
def packed_flash_attention(
    *,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    cu_seqlens_q: TensorSpec,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    out: object,
) -> Work:
    """Return the cost of attention in packed sequences, each as long as the longest."""
    scores = kernel_scores(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return forward_work(scores, q, v, None, dropout_p)


@cost_of("flash_attn::_flash_attn_backward")
def flash_attention_gradients(
    *, q: TensorSpec, k: TensorSpec, v: TensorSpec, dropout_p: float = 0.0, out: object
) -> Work:
    """Return the cost of the gradients of attention in samples of one length."""
    scores = kernel_scores(q, k, None, q.shape[1], k.shape[1])
    return backward_work(scores, q, v, None, dropout_p)


@cost_of("flash_attn::_flash_attn_varlen_backward")
def packed_flash_attention_gradients(
    *,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    cu_seqlens_q: TensorSpec,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    out: object,
) -> Work:
    """Return the cost of the gradients of attention in packed sequences."""
    scores = kernel_scores(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return backward_work(scores, q, v, None, dropout_p)


@cost_of("flash_attn_3::fwd")
def flash_attention_3(
    *,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    k_new: TensorSpec | None = None,
    q_v: TensorSpec | None = None,
    cu_seqlens_q: TensorSpec | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: TensorSpec | None = None,
    out: object,
) -> Work | None:
    """Return the cost of attention. With a cache, which is longer than its keys, it is unknown."""
    if any(given is not None for given in (k_new, q_v, page_table)):
        return None
    scores = _scores_of_3(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return None if scores is None else forward_work(scores, q, v, None, 0.0)


@cost_of("flash_attn_3::bwd")
def flash_attention_3_gradients(
    *,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    cu_seqlens_q: TensorSpec | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: object,
) -> Work | None:
    """Return the cost of the gradients of attention."""
    scores = _scores_of_3(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    return None if scores is None else backward_work(scores, q, v, None, 0.0)


def _scores_of_3(
    q: TensorSpec, k: TensorSpec, starts: TensorSpec | None, max_q: int | None, max_k: int | None
) -> int | None:
    """Return the number of scores, or None for packed sequences of unknown lengths."""
    if starts is None:
        return kernel_scores(q, k, None, q.shape[1], k.shape[1])
    if max_q is None or max_k is None:
        return None
    return kernel_scores(q, k, starts, max_q, max_k)


@cost_of("triton::rotary_kernel")
def rotary_kernel(*, X: TensorSpec, COS: TensorSpec, ROTARY_DIM: int, out: object) -> Work:
    """Return 3 FLOPs per rotated element: the first ``ROTARY_DIM`` of each head."""
    flops = 3 * ROTARY_DIM * (X.numel // X.shape[-1])
    return Work(other_flops=flops)
