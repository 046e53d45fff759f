"""Quantization and dequantization, and arithmetic of quantized elements."""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import per_element, per_input
from torchscan.ops.registry import cost_of, declare_costless
from torchscan.trace.events import TensorSpec

# -- from and to numbers of few bits ---------------------------------------------------------------

# scale, round, two comparisons
per_element(4, "aten::quantize_per_tensor", "aten::quantize_per_channel")
# and the extremes of all elements, one comparison each
per_element(5, "aten::quantize_per_tensor_dynamic")
per_element(2, "aten::dequantize")  # zero point, scale
for _library in ("bitsandbytes", "torchscan"):  # ours stand for theirs, without data
    # scales of the row and the column
    per_element(2, f"{_library}::int8_mm_dequant", mixes=True)
    # the scale of a block
    per_element(1, f"{_library}::dequantize_blockwise", mixes=True)
    # absolute value, comparison, scale, rounding
    per_input(4, f"{_library}::int8_vectorwise_quant")
per_element(1, "bitsandbytes::dequantize_4bit", mixes=True)  # the scale of a block
# absolute value, comparison, scale; the nearest of 16 or 256 values takes 4 or 8 comparisons
per_input(3 + 4, "bitsandbytes::quantize_4bit")
per_input(3 + 8, "bitsandbytes::quantize_blockwise")
per_element(2, "bitsandbytes::int8_vectorwise_dequant", mixes=True)  # scale of the row, 1 / 127
per_input(2 * 4, "bitsandbytes::int8_double_quant")  # by rows, and by columns
# scale, two comparisons; its other quantizers are composite
per_element(3, "torchao::quantize_affine_float8_non_decomposed", mixes=True)
per_element(1, "torchao::dequantize_affine_float8_non_decomposed", mixes=True)
per_element(1, "torchao::triton_mxfp8_dequant_dim0", mixes=True)  # the scale of a block


@cost_of("torchscan::dequantize_4bit")
def dequantize_4bit(*_: object, out: TensorSpec) -> Work:
    """1 per weight: the scale of its block."""
    return Work(other_flops=out.numel)


@cost_of("torchscan::quantize_mx", "torchao::triton_to_mxfp8_dim0", "torchao::triton_to_mxfp8_dim1")
def quantize_in_blocks(matrix: TensorSpec, *_: object, out: tuple[TensorSpec, ...]) -> Work:
    """Each element: absolute value, comparison, quotient; each block of 32: ÷, log2, ceil, exp2."""
    blocks = matrix.numel // 32
    flops = 2 * matrix.numel + (matrix.numel - blocks) + 4 * blocks
    return Work(other_flops=flops)


@cost_of(
    "torchao::triton_fp8_blockwise_act_quant_lhs",
    "torchao::triton_fp8_blockwise_act_quant_rhs",
    "torchao::triton_fp8_blockwise_act_quant_transposed_lhs",
)
@cost_of(
    "torchao::triton_fp8_blockwise_weight_quant_rhs",
    "torchao::triton_fp8_blockwise_weight_quant_transposed_rhs",
)
@cost_of(
    "torchao::triton_fp8_blockwise_weight_quant_grouped_rhs",
    "torchao::triton_fp8_blockwise_weight_quant_grouped_transposed_rhs",
    "torchao::triton_fp8_blockwise_weight_quant_grouped_rhs_deepgemm",
    "torchao::triton_fp8_blockwise_weight_quant_grouped_transposed_rhs_deepgemm",
    "torchao::triton_fp8_blockwise_act_quant_k_grouped_deepgemm",
)
def quantize_blocks_to_float8(
    *_: object, out: tuple[TensorSpec, TensorSpec], **_kwargs: object
) -> Work:
    """Return the FLOPs of quantizing blocks to float8.

    A scale takes 4: two bounds, a quotient and its reciprocal. An element counts as in
    :func:`_scale_to_float8`.
    """
    return _scale_to_float8(out, 4)


@cost_of(
    "torchao::triton_fp8_per_group_rowwise_scales",
    "torchao::triton_fp8_per_group_colwise_scales",
    "torchao::triton_fp8_colwise_3d_scale_and_cast",
    "torchao::triton_fp8_rowwise_transpose_rhs_fused",
)
def quantize_rows_to_float8(
    *_: object,
    round_scales_to_power_of_2: bool = False,
    out: tuple[TensorSpec, TensorSpec],
    **_kwargs: object,
) -> Work:
    """Return the FLOPs of quantizing rows or columns of a group to float8; a scale takes 3.

    Rounding a scale to a power of two takes 3: logarithm, floor and power.
    """
    per_scale = 6 if round_scales_to_power_of_2 else 3
    return _scale_to_float8(out, per_scale)


def _scale_to_float8(out: tuple[TensorSpec, TensorSpec], per_scale: int) -> Work:
    """Return 5 FLOPs per element, less a comparison for each scale, and those of the scales.

    An element takes its absolute value, a comparison, a product with the scale and two bounds.
    """
    values, scales = out
    flops = 5 * values.numel + (per_scale - 1) * scales.numel
    return Work(other_flops=flops)


declare_costless(
    "aten::_make_per_tensor_quantized_tensor",
    "aten::_make_per_channel_quantized_tensor",
    "aten::_empty_affine_quantized",
)
declare_costless("aten::_convert_weight_to_int4pack", "aten::_convert_weight_to_int4pack_for_cpu")
declare_costless("aten::int_repr", "aten::q_scale", "aten::q_zero_point")
declare_costless("quantized::cat", "quantized::linear_prepack")
declare_costless("torchao::float8_linear_prepack_cpu", "torchao::da8w4_linear_prepack_cpu")
declare_costless("torchao::triton_mx_block_rearrange")

# -- quantization-aware training -------------------------------------------------------------------

# quantized and dequantized
per_element(6, "aten::fake_quantize_per_tensor_affine", "aten::fake_quantize_per_channel_affine")
per_element(
    6,
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::fake_quantize_per_channel_affine_cachemask",
)
per_element(6, "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
# the least and the largest element are sought, then as above
per_element(6 + 2, "aten::_fused_moving_avg_obs_fq_helper", "aten::fused_moving_avg_obs_fake_quant")
per_element(1, "aten::fake_quantize_per_tensor_affine_cachemask_backward")
per_element(1, "aten::fake_quantize_per_channel_affine_cachemask_backward")

# -- arithmetic of quantized elements --------------------------------------------------------------

# two unpacked, one packed
per_element(7, "quantized::add", "quantized::mul", "quantized::add_relu", "quantized::mul_relu")
per_element(2, "quantized::add_scalar", "quantized::mul_scalar", "quantized::relu6")
per_element(4, "quantized::leaky_relu", "quantized::sigmoid")
per_element(5, "quantized::hardswish")
per_element(5, "quantized::softmax", mixes=True)
per_element(6, "quantized::elu", "quantized::celu")
