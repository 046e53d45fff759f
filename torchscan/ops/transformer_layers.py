"""Whole layers of a transformer in one kernel, as torch runs them in evaluation."""

from __future__ import annotations

from torchscan.ops.attention import Output
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


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
    samples, queries = query.shape[:2]
    keys = key.shape[1]
    projected_rows = 2 * samples * (queries + keys)
    projections = projected_rows * embed_dim**2
    scores = samples * num_head * queries * keys
    head_width = embed_dim // num_head
    products = 2 * scores * head_width
    per_score = 6 if mask is None else 7
    return Work(macs=projections + products, other_flops=per_score * scores)


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
    rows = src.numel // embed_dim
    hidden = rows * ffn_weight_1.shape[0]
    per_activation = 5 if use_gelu else 1

    norms = 16 * src.numel + 4 * rows
    sums = 2 * src.numel
    other_flops = attention.other_flops + norms + sums
    other_flops += per_activation * hidden
    macs = attention.macs + 2 * embed_dim * hidden
    return Work(macs=macs, other_flops=other_flops)


@cost_of(aten._transform_bias_rescale_qkv)
def split_projections(
    qkv: TensorSpec, qkv_bias: TensorSpec, num_heads: int, *, out: Output
) -> Work:
    """1 per element for the bias of queries, keys and values; 1 per query element to scale."""
    queries = qkv.numel // 3
    return Work(other_flops=qkv.numel + queries)
