"""Operators of the package ``flash_attn``, by the names of their arguments.

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
