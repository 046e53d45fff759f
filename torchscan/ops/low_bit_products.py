"""Matrix products whose weights are quantized, packed or structured.

The products are those of :mod:`torchscan.ops.matmul`; scales and zero points cost FLOPs besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_product(
    self: TensorSpec, mat2: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k, in 8 or 4 bits; a product with the scales per output.

    Packed fp4 has two numbers per element.
    """
    packed = 2 if self.dtype == getattr(torch, "float4_e2m1fn_x2", None) else 1
    macs = _count_products(self, out) * packed
    return Work(macs=macs, other_flops=out.numel)


@cost_of(aten._weight_int8pack_mm)
def product_with_8_bit_weight(
    self: TensorSpec, mat2: TensorSpec, scales: TensorSpec, *, out: TensorSpec
) -> Work:
    """MACs = numel(out) · k; a product with the scale per output."""
    macs = _count_products(self, out)
    return Work(macs=macs, other_flops=out.numel)


@cost_of(
    aten._weight_int4pack_mm,
    "aten::_weight_int4pack_mm_for_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros",
)
@cost_of("torchscan::product_of_4bit", "torchscan::transposed_product_of_4bit")
def product_with_4_bit_weight(
    self: TensorSpec, mat2: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """MACs = numel(out) · k; two operations per weight (zero point, scale) to unpack it."""
    columns, inner = out.shape[-1], self.shape[-1]
    flops = 2 * columns * inner
    return Work(macs=out.numel * inner, other_flops=flops)


@cost_of("bitsandbytes::gemm_4bit", "bitsandbytes::gemv_4bit")
def product_with_4_bit_blocks(
    x: TensorSpec,
    packed: TensorSpec,
    shape: Sequence[int],
    *_: object,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """MACs = numel(out) · k; each weight is multiplied by the scale of its block."""
    macs = _count_products(x, out)
    return Work(macs=macs, other_flops=math.prod(shape))


@cost_of("bitsandbytes::int8_scaled_mm", "bitsandbytes::int8_linear_matmul")
def product_of_8_bits(
    x: TensorSpec, weight: TensorSpec, *scales: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; with scales of rows and columns, two products per output."""
    macs = _count_products(x, out)
    flops = 2 * out.numel if scales else 0
    return Work(macs=macs, other_flops=flops)


@cost_of("bitsandbytes::int8_mixed_scaled_mm")
def product_of_8_bits_and_outliers(
    *,
    A: TensorSpec,
    CB: TensorSpec,
    outlier_cols: TensorSpec | None = None,
    out: tuple[TensorSpec, ...],
) -> Work:
    """MACs = numel(out) · k, and numel(out) for each column with outliers.

    Each output is scaled by its row and its column (2), and each weight of those columns too (2).
    """
    product, *_ = out
    num_outliers = 0 if outlier_cols is None else outlier_cols.numel
    macs = product.numel * (A.shape[-1] + num_outliers)
    return Work(macs=macs, other_flops=2 * product.numel + 2 * CB.shape[0] * num_outliers)


@cost_of("torchao::int_matmul", "torchao::swizzle_mm")
def product_without_scales(
    a: TensorSpec, b: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k."""
    return Work(macs=_count_products(a, out))


@cost_of("torchao::int_scaled_matmul", "torchao::swizzle_scaled_mm")
def product_with_one_scale(
    a: TensorSpec, b: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; a product with the scale per output."""
    return Work(macs=_count_products(a, out), other_flops=out.numel)


@cost_of("torchao::scaled_int8_mm")
def product_with_two_scales(
    a: TensorSpec, b: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; products with the scales of row and column per output."""
    return Work(macs=_count_products(a, out), other_flops=2 * out.numel)


@cost_of("torchao::float8_linear_cpu")
def float8_product_on_cpu(
    input: TensorSpec,
    input_scales: TensorSpec,
    weight: TensorSpec,
    weight_scales: TensorSpec,
    *_: object,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """MACs = numel(out) · k; products with the scales of row and column per output.

    Scales of groups multiply each block of products; a packed weight is (columns, blocks, …).
    """
    blocks = weight.shape[1] if len(weight.shape) == 4 else 1
    columns = out.shape[-1]
    rows = out.numel // max(columns, 1)
    per_output = blocks if input_scales.numel > rows else 1
    per_output += blocks if weight_scales.numel > columns else 1
    return Work(macs=_count_products(input, out), other_flops=per_output * out.numel)


@cost_of("torchao::da8w4_linear_cpu")
def product_of_8_and_4_bits_on_cpu(
    input: TensorSpec,
    input_scales: TensorSpec,
    input_qzeros: TensorSpec,
    weight: TensorSpec,
    *_: object,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k, of integers; a product with both scales per output and block of k.

    A packed weight is (columns, blocks, …). Zero points are integers, and cost nothing.
    """
    blocks = weight.shape[1]
    flops = 2 * blocks * out.numel
    return Work(macs=_count_products(input, out), other_flops=flops)


@cost_of("torchao::mx_fp8_bf16")
def product_of_mx_blocks(a: TensorSpec, b: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """MACs = numel(out) · k; each block of 32 products is scaled by a block of a and one of b."""
    return _product_of_blocks(a, out, 32)


@cost_of("torchao::triton_fp8_gemm_1x128_128x128", "torchao::triton_fp8_gemm_1x128_128x1")
@cost_of("torchao::blockwise_scaled_mm", "ao::blockwise_fp8_gemm")
def product_of_scaled_blocks(
    a: TensorSpec, *_: object, block_size: int = 128, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; each block of products is scaled by a block of a and one of b."""
    return _product_of_blocks(a, out, block_size)


def _product_of_blocks(rows: TensorSpec, out: TensorSpec, block_size: int) -> Work:
    blocks = -(-rows.shape[-1] // block_size)
    return Work(macs=_count_products(rows, out), other_flops=2 * blocks * out.numel)


@cost_of("float8_sparse::fp8_sparse_mm")
def sparse_product_with_one_scale(
    dense: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k / 2, as in ``semi_structured_linear``; one scale per output."""
    return Work(macs=_count_products(dense, out) // 2, other_flops=out.numel)


@cost_of("torchao::rowwise_scaled_linear_sparse_cutlass_f8f8")
def sparse_product_with_two_scales(
    *, input: TensorSpec, weight: TensorSpec, out: TensorSpec
) -> Work:
    """MACs = numel(out) · k / 2, as in ``semi_structured_linear``; two scales per output."""
    return Work(macs=_count_products(weight, out), other_flops=2 * out.numel)


@cost_of("aten::_dyn_quant_matmul_4bit")
def dynamic_product_with_4_bit_weight(inp: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """MACs = numel(out) · k; each input is scaled and rounded (2), each output scaled (1)."""
    macs = _count_products(inp, out)
    flops = 2 * inp.numel + out.numel
    return Work(macs=macs, other_flops=flops)


@cost_of("aten::_mixed_dtypes_linear")
def mixed_linear(
    input: TensorSpec,
    weight: TensorSpec,
    scale: TensorSpec,
    *_: object,
    out: TensorSpec,
    **_kwargs: object,
) -> Work:
    """MACs = numel(out) · k; a product with the scale per output."""
    macs = _count_products(input, out)
    return Work(macs=macs, other_flops=out.numel)


@cost_of("aten::_sparse_semi_structured_linear")
def semi_structured_linear(
    input: TensorSpec, weight: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k / 2: two of four weights are stored, in a tensor k / 2 wide."""
    return Work(macs=_count_products(weight, out))


@cost_of("aten::_sparse_semi_structured_mm", "aten::_sparse_semi_structured_addmm")
def semi_structured_product(*operands: TensorSpec, out: TensorSpec, **_kwargs: object) -> Work:
    """MACs = numel(out) · k / 2, as in ``semi_structured_linear``.

    The stored matrix comes before the metadata with the positions of its elements.
    """
    stored = operands[-3]
    return Work(macs=_count_products(stored, out))


# (input, packed weights, …): a packed weight counts as the tensors inside it, with the weight first
@cost_of(
    "quantized::linear",
    "quantized::linear_relu",
    "quantized::linear_leaky_relu",
    "quantized::linear_tanh",
)
@cost_of(
    "quantized::linear_dynamic", "quantized::linear_relu_dynamic", "quantized::linear_dynamic_fp16"
)
@cost_of(
    "quantized::linear_relu_dynamic_fp16",
    "quantized::linear_with_input_q_dq_qweight_dq_output_fp32",
)
def packed_linear(x: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object) -> Work:
    """MACs = numel(out) · in_features; each output is rescaled: 2."""
    macs = _count_products(x, out)
    return Work(macs=macs, other_flops=2 * out.numel)


@cost_of(aten.mkldnn_linear)
def prepacked_linear(x: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object) -> Work:
    """MACs = numel(out) · in_features."""
    return Work(macs=_count_products(x, out))


def _count_products(rows: TensorSpec, out: TensorSpec) -> int:
    """Return numel(out) · k, with k the last dimension of the operand that has rows."""
    return out.numel * rows.shape[-1]
