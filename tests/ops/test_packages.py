"""Operators and kernels of other packages, each on one call, against counts derived by hand.

Operators of packages that are not installed here are defined with the schemas of their packages.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import pytest
import torch
from torch import nn

from tests.ops.launches import launch
from tests.ops.test_every_formula import Case, I, T, case
from torchscan import crawl_module
from torchscan.ops import compute_cost
from torchscan.types import OpSignature

_ATTENTION = "Tensor query, Tensor key, Tensor value"
_QKV = "Tensor q, Tensor k, Tensor v"
_PACKED = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k"
_STATES = "Tensor(a1!) p, Tensor(a2!) state1, Tensor(a3!)? state2"
#: as in bitsandbytes 0.50.2, torchao 0.18.0, xformers 0.0.35 (cutlass: 0.0.28), causal_conv1d 1.7.0
SCHEMAS = {
    "bitsandbytes::quantize_4bit": "(Tensor A, int blocksize, str quant_type, ScalarType "
    "quant_storage) -> (Tensor, Tensor)",
    "bitsandbytes::quantize_blockwise": "(Tensor A, Tensor code, int blocksize) -> "
    "(Tensor, Tensor)",
    "bitsandbytes::int8_vectorwise_dequant": "(Tensor A, Tensor stats) -> Tensor",
    "bitsandbytes::int8_double_quant": "(Tensor A, float threshold=0.) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor?)",
    "bitsandbytes::int8_mixed_scaled_mm": "(Tensor A, Tensor CA, Tensor CB, Tensor SCA, Tensor "
    "SCB, Tensor? outlier_cols=None, Tensor? bias=None) -> (Tensor, Tensor?)",
    "bitsandbytes::optimizer_update_32bit": f"(str optimizer_name, Tensor(a0!) g, {_STATES}, "
    "Tensor(a4!)? unorm_vec, float max_unorm, float param_norm, float beta1, float beta2, float "
    "beta3, float alpha, float eps, float weight_decay, int step, float lr, float gnorm_scale, "
    "bool skip_zeros=False) -> ()",
    "bitsandbytes::optimizer_update_8bit_blockwise": "(str optimizer_name, Tensor(a0!) g, "
    f"{_STATES}, float beta1, float beta2, float beta3, float alpha, float eps, int step, float "
    "lr, Tensor(a4!) qmap1, Tensor(a5!)? qmap2, Tensor(a6!) absmax1, Tensor(a7!)? absmax2, float "
    "weight_decay, float gnorm_scale, bool skip_zeros=False) -> ()",
    "torchao::int_matmul": "(Tensor a, Tensor b) -> Tensor",
    "torchao::int_scaled_matmul": "(Tensor a, Tensor b, Tensor scales1) -> Tensor",
    "torchao::mx_fp8_bf16": "(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor",
    "torchao::swizzle_mm": "(Tensor mat1, Tensor mat2, bool mat1_is_swizzled, bool "
    "mat2_is_swizzled) -> Tensor",
    "torchao::triton_fp8_gemm_1x128_128x1": "(Tensor a, Tensor b, Tensor a_s, Tensor b_s, "
    "int block_size=128, ScalarType out_dtype=float) -> Tensor",
    "torchao::triton_to_mxfp8_dim0": "(Tensor x, int inner_block_size=32, str "
    "scaling_mode='rceil') -> (Tensor, Tensor)",
    "torchao::triton_mxfp8_dequant_dim0": "(Tensor e4m3_data, Tensor e8m0_scales, ScalarType "
    "out_dtype, int scale_block_size=32) -> Tensor",
    "float8_sparse::fp8_sparse_mm": "(Tensor dense, Tensor packed, Tensor? bias, Tensor alpha, "
    "int out_features, int min_size, int alg_id=0) -> Tensor",
    "torchao::scaled_int8_mm": "(Tensor A, Tensor B, Tensor A_scale, Tensor B_scale) -> Tensor",
    "torchao::float8_linear_cpu": "(Tensor input, Tensor input_scales, Tensor weight, Tensor "
    "weight_scales, Tensor? bias, ScalarType output_dtype) -> Tensor",
    "torchao::da8w4_linear_cpu": "(Tensor input, Tensor input_scales, Tensor input_qzeros, Tensor "
    "weight, Tensor weight_scales, Tensor weight_qzeros, Tensor compensation, Tensor? bias, "
    "ScalarType output_dtype) -> Tensor",
    "torchao::qscaled_dot_product": f"({_ATTENTION}, Tensor? attn_mask=None, float dropout_p=0.0, "
    "bool is_causal=False, float? scale=None, float q_scale=1.0, int q_zp=0, float k_scale=1.0, "
    "int k_zp=0, float v_scale=1.0, int v_zp=0, float a_scale=1.0, int a_zp=0, float o_scale=1.0, "
    "int o_zp=0) -> Tensor",
    "torchao::triton_fp8_blockwise_act_quant_lhs": "(Tensor x, int block_size=128, ScalarType "
    "dtype=float8_e4m3fn) -> (Tensor, Tensor)",
    "torchao::triton_fp8_blockwise_weight_quant_grouped_rhs": "(Tensor weight_t, int "
    "block_size=128, ScalarType dtype=float8_e4m3fn) -> (Tensor, Tensor)",
    "torchao::triton_fp8_per_group_rowwise_scales": "(Tensor hp_tensor, Tensor offsets, ScalarType "
    "output_dtype=float8_e4m3fn, bool round_scales_to_power_of_2=False) -> (Tensor, Tensor)",
    "torchao::emulated_blockwise_scaled_grouped_mm": "(Tensor a, Tensor b, Tensor a_s, int "
    "scale_recipe_a, Tensor b_s, int scale_recipe_b, Tensor offs, ScalarType out_dtype, int "
    "block_size=128) -> Tensor",
    "torchao::rowwise_scaled_linear_sparse_cutlass_f8f8": "(Tensor input, Tensor input_scale, "
    "Tensor weight, Tensor weight_meta, Tensor weight_scale, Tensor? bias=None, ScalarType? "
    "out_dtype=None) -> Tensor",
    "torchao::quantize_affine_float8_non_decomposed": "(Tensor tensor, Tensor scale, ScalarType "
    "float8_dtype) -> Tensor",
    "torchao::dequantize_affine_float8_non_decomposed": "(Tensor tensor, Tensor scale, "
    "ScalarType output_dtype) -> Tensor",
    "flash_attn_3::fwd": f"({_QKV}, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, "
    "Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, Tensor? "
    "cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? "
    "seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? page_table=None) -> "
    "(Tensor(out!), Tensor, Tensor, Tensor)",
    "flash_attn_3::bwd": f"(Tensor dout, {_QKV}, Tensor out, Tensor softmax_lse, Tensor(dq!)? "
    "dq=None, Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, Tensor? cu_seqlens_q=None, Tensor? "
    "cu_seqlens_k=None, Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, "
    "int? max_seqlen_k=None) -> (Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor)",
    "xformers_flash::flash_fwd": f"({_ATTENTION}, {_PACKED}, Tensor? seqused_k, int "
    "max_seqlen_q, int max_seqlen_k, float p, float softmax_scale, bool is_causal, int "
    "window_left, int window_right, bool return_softmax, Tensor? block_tables) -> "
    "(Tensor, Tensor, Tensor)",
    "xformers_flash::flash_bwd": f"(bool grads_share_storage, Tensor grad, {_ATTENTION}, Tensor "
    f"out, Tensor lse, {_PACKED}, int max_seqlen_q, int max_seqlen_k, float p, float "
    "softmax_scale, bool is_causal, int window_left, int window_right, Tensor rng_state) -> "
    "(Tensor, Tensor, Tensor)",
    "xformers::efficient_attention_forward_cutlass": f"({_ATTENTION}, Tensor? attn_bias, Tensor? "
    "seqstart_q, Tensor? seqstart_k, int? max_seqlen_q, float dropout_p, bool "
    "compute_logsumexp, int custom_mask_type, float? scale, Tensor? seqlen_k, int? window_size) "
    "-> (Tensor, Tensor, int, int)",
    "xformers::efficient_attention_backward_cutlass": f"(Tensor grad_out, {_ATTENTION}, Tensor? "
    f"bias, {_PACKED}, int max_seqlen_q, int max_seqlen_k, Tensor logsumexp, Tensor output, float "
    "dropout_p, int rng_seed, int rng_offset, int custom_mask_type, float? scale, int "
    "num_splits_key, int? window_size) -> (Tensor, Tensor, Tensor, Tensor)",
    "xformer::memory_efficient_attention_forward": "(Tensor q, Tensor k, Tensor v, Tensor? b = "
    "None, float? p = 0.0, float? scale = None) -> Tensor",
    "DaoAILab::_causal_conv1d_fwd_cpp": "(Tensor x, Tensor weight, Tensor? bias, Tensor? "
    "seq_idx, Tensor? initial_states, Tensor(a5!) out, Tensor(a6!)? final_states_out, bool "
    "silu_activation) -> ()",
    "DaoAILab::_causal_conv1d_bwd_cpp": "(Tensor x, Tensor weight, Tensor? bias, Tensor dout, "
    "Tensor? seq_idx, Tensor? initial_states, Tensor(a6!)? dfinal_states, Tensor(a7!) dx, "
    "Tensor(a8!) dweight, Tensor(a9!)? dbias, Tensor(a10!) dinitial_states, bool "
    "silu_activation) -> ()",
    "DaoAILab::_causal_conv1d_update_cpp": "(Tensor x, Tensor(a1!) conv_state, Tensor weight, "
    "Tensor? bias, Tensor(a4!) out, bool silu_activation, Tensor? cache_seqlens, Tensor? "
    "conv_state_indices) -> ()",
}


for _package in ("bitsandbytes", "torchao"):
    with contextlib.suppress(Exception):  # it is missing, or does not suit this version of torch
        importlib.import_module(_package)
for _name, _schema in SCHEMAS.items():
    if torch._C._dispatch_has_kernel(_name):
        continue
    with contextlib.suppress(RuntimeError):  # the package has defined it
        torch.library.define(_name, _schema)

F8, I8 = torch.float8_e4m3fn, torch.int8
ROWS = T(4, 8)  # 32 elements
UPDATE = (*(0.9,) * 5, 1, 0.1)
#: 2 samples of 6 queries and 10 keys, with 4 heads of 8
Q, K = T(2, 6, 4, 8), T(2, 10, 4, 8)
SCORES = 2 * 4 * 6 * 10
FORWARD: dict[str, Any] = {"out": (Q, T(2, 4, 6), I(2)), "macs": SCORES * (8 + 8)}
BACKWARD: dict[str, Any] = {"macs": SCORES * (3 * 8 + 2 * 8)}
#: two samples in a row, each as long as the longest
STARTS = I(3)
#: 2 samples of 3 channels, with 5 positions; a kernel of width 4
SEQUENCES, WEIGHT = T(2, 3, 5), T(3, 4)

CASES = [
    # absolute value, comparison, scale; 4 or 8 comparisons with the values of the code
    case(
        "bitsandbytes.quantize_4bit", ROWS, 64, "nf4", torch.uint8, out=(I(16), T(1)), other=7 * 32
    ),
    case("bitsandbytes.quantize_blockwise", ROWS, T(256), 256, out=(I(4, 8), T(1)), other=11 * 32),
    case("bitsandbytes.int8_vectorwise_dequant", T(4, 8, dtype=I8), T(4), out=ROWS, other=2 * 32),
    case("bitsandbytes.int8_double_quant", ROWS, out=(T(4, 8, dtype=I8),) * 2, other=8 * 32),
    # 4 × 6 outputs of 8 products, and two columns with outliers
    case(
        *("bitsandbytes.int8_mixed_scaled_mm", ROWS, T(4, 8, dtype=I8), T(6, 8, dtype=I8)),
        *(T(4), T(6), I(2)),
        out=(T(4, 6), T(4, 2)),
        macs=24 * (8 + 2),
        other=2 * 24 + 2 * 6 * 2,
    ),
    case(
        *("bitsandbytes.optimizer_update_32bit", "adam", ROWS, ROWS, ROWS, ROWS, None, 0.0, 0.0),
        *(*UPDATE, 1.0, 1.0),
        other=14 * 32,
    ),
    case(
        *("bitsandbytes.optimizer_update_8bit_blockwise", "adam", ROWS, ROWS, I(4, 8), I(4, 8)),
        *(*UPDATE, T(256), T(256), T(1), T(1), 0.1, 1.0),
        other=(14 + 2 * 5) * 32,
    ),
    case(
        *("torchao.int_matmul", T(4, 8, dtype=I8), T(8, 6, dtype=I8)),
        out=T(4, 6, dtype=torch.int32),
        macs=24 * 8,
    ),
    case(
        *("torchao.int_scaled_matmul", T(4, 8, dtype=I8), T(8, 6, dtype=I8), T(4, 1)),
        out=T(4, 6),
        macs=24 * 8,
        other=24,
    ),
    # 2 blocks of 32, each with a scale of both operands
    case(
        *("torchao.mx_fp8_bf16", T(4, 64, dtype=F8), T(64, 6, dtype=F8), T(128), T(128)),
        out=T(4, 6),
        macs=24 * 64,
        other=24 * 2 * 2,
    ),
    # 2 blocks of 128, the last of which is not full
    case(
        *("torchao.triton_fp8_gemm_1x128_128x1", T(4, 160, dtype=F8), T(160, 6, dtype=F8)),
        *(T(4, 2), T(2, 6)),
        out=T(4, 6),
        macs=24 * 160,
        other=24 * 2 * 2,
    ),
    case(
        *("torchao.swizzle_mm", T(4, 8, dtype=F8), T(8, 6, dtype=F8), False, True),
        out=T(4, 6),
        macs=24 * 8,
    ),
    # absolute values and quotients, comparisons, and 4 for the scales of 4 blocks
    case(
        *("torchao.triton_to_mxfp8_dim0", T(4, 32)),
        out=(T(4, 32, dtype=F8), T(4, 1)),
        other=2 * 128 + 4 * 31 + 4 * 4,
    ),
    case(
        *("torchao.triton_mxfp8_dequant_dim0", T(4, 32, dtype=F8), T(4, 1), torch.float32),
        out=T(4, 32),
        other=128,
    ),
    # half of 8 weights are stored
    case(
        *("float8_sparse.fp8_sparse_mm", T(4, 8, dtype=F8), T(30), None, T(1), 6, 16),
        out=T(4, 6),
        macs=24 * 4,
        other=24,
    ),
    case(
        *("torchao.scaled_int8_mm", T(4, 8, dtype=I8), T(8, 6, dtype=I8), T(4, 1), T(6)),
        out=T(4, 6),
        macs=24 * 8,
        other=2 * 24,
    ),
    case(
        *("torchao.float8_linear_cpu", T(4, 8, dtype=F8), T(4, 1), T(6, 8, dtype=F8), T(6), None),
        *(torch.float32,),
        out=T(4, 6),
        macs=24 * 8,
        other=2 * 24,
    ),
    # packed in 3 blocks of 2 columns, with a scale for each of 3 groups, and of each group of rows
    case(
        *("torchao.float8_linear_cpu", T(4, 24, dtype=F8), T(4, 1), T(3, 3, 8, 2, dtype=F8)),
        *(T(3, 3, 2), None, torch.float32),
        out=T(4, 6),
        macs=24 * 24,
        other=24 * (1 + 3),
    ),
    case(
        *("torchao.float8_linear_cpu", T(4, 24, dtype=F8), T(4, 3), T(3, 3, 8, 2, dtype=F8)),
        *(T(3, 3, 2), None, torch.float32),
        out=T(4, 6),
        macs=24 * 24,
        other=24 * (3 + 3),
    ),
    # 3 blocks of k; two weights are packed in a byte
    case(
        *("torchao.da8w4_linear_cpu", T(4, 24, dtype=I8), T(4), I(4), I(3, 3, 8, 1)),
        *(T(3, 1, 2), I(3, 1, 2), I(3, 3, 2), None, torch.float32),
        out=T(4, 6),
        macs=24 * 24,
        other=24 * 3 * 2,
    ),
    # of scores: scale, softmax 5, a round, a zero point and two bounds; and of the result
    case(
        *("torchao.qscaled_dot_product", *(T(2, 4, 6, 8, dtype=torch.uint8),) * 3),
        out=T(2, 4, 6, 8, dtype=torch.uint8),
        macs=2 * 4 * 6 * 6 * (8 + 8),
        other=2 * 4 * 6 * 6 * (6 + 4) + 2 * 4 * 6 * 8 * 5,
    ),
    case(
        *("torchao.qscaled_dot_product", *(T(2, 4, 6, 8, dtype=F8),) * 3, T(6, 6)),
        out=T(2, 4, 6, 8, dtype=F8),
        macs=2 * 4 * 6 * 6 * (8 + 8),
        other=2 * 4 * 6 * 6 * (6 + 1 + 2) + 2 * 4 * 6 * 8 * 3,
    ),
    # of 8 blocks of 128: absolute values, scales and two bounds, and comparisons of all but one;
    # two bounds, a quotient and its reciprocal
    case(
        *("torchao.triton_fp8_blockwise_act_quant_lhs", T(4, 256)),
        out=(T(4, 256, dtype=F8), T(4, 2)),
        other=1024 * (1 + 1 + 2) + 8 * 127 + 8 * (2 + 1 + 1),
    ),
    case(
        *("torchao.triton_fp8_blockwise_weight_quant_grouped_rhs", T(3, 128, 256)),
        out=(T(3, 256, 128, dtype=F8), T(3, 2, 1)),
        other=6 * (128 * 128 * 4 + (128 * 128 - 1) + 4),
    ),
    # 2 groups of 3 and 5 columns, in 4 rows
    case(
        *("torchao.triton_fp8_per_group_rowwise_scales", T(4, 8), I(2), F8, True),
        out=(T(4, 8, dtype=F8), T(8)),
        other=32 * 4 + 4 * (2 + 4) + 8 * (2 + 1 + 3),
    ),
    # 4 rows of 3 experts, and their gradients: 4 rows are summed over, in 2 groups
    case(
        *("torchao.emulated_blockwise_scaled_grouped_mm", T(4, 8, dtype=F8)),
        *(T(3, 8, 6, dtype=F8), T(4, 1), 1, T(3, 1, 1), 2, I(3), torch.float32),
        out=T(4, 6),
        macs=24 * 8,
        other=32 + 144,
    ),
    case(
        *("torchao.emulated_blockwise_scaled_grouped_mm", T(6, 4, dtype=F8)),
        *(T(4, 8, dtype=F8), T(6, 1), 1, T(1, 8), 1, I(2), torch.float32),
        out=T(2, 6, 8),
        macs=6 * 4 * 8,
        other=24 + 32,
    ),
    # half of the 8 weights of a row are stored
    case(
        *("torchao.rowwise_scaled_linear_sparse_cutlass_f8f8", T(4, 8, dtype=F8), T(4)),
        *(T(6, 4, dtype=F8), I(6, 1), T(6)),
        out=T(4, 6),
        macs=24 * 4,
        other=2 * 24,
    ),
    case(
        "torchao.quantize_affine_float8_non_decomposed",
        ROWS,
        T(1),
        F8,
        out=T(4, 8, dtype=F8),
        other=3 * 32,
    ),
    case(
        "torchao.dequantize_affine_float8_non_decomposed",
        T(4, 8, dtype=F8),
        T(1),
        torch.float32,
        out=ROWS,
        other=32,
    ),
    # a scale and 5 of softmax per score
    case(
        *("xformers_flash.flash_fwd", Q, K, K, None, None, None, 6, 10, 0.0, 1.0, True, -1, -1),
        *(False, None),
        other=6 * SCORES,
        **FORWARD,
    ),
    # dropout takes 2 more
    case(
        *("xformers_flash.flash_fwd", T(9, 4, 8), T(15, 4, 8), T(15, 4, 8), STARTS, STARTS, None),
        *(6, 10, 0.1, 1.0, True, -1, -1, False, None),
        other=8 * SCORES,
        **FORWARD,
    ),
    case("flash_attn_3.fwd", Q, K, K, other=6 * SCORES, **FORWARD),
    case(
        *("flash_attn_3.fwd", T(9, 4, 8), T(15, 4, 8), T(15, 4, 8), None, None, None, None),
        *(STARTS, STARTS, None, None, None, 6, 10),
        other=6 * SCORES,
        **FORWARD,
    ),
    case(
        *("flash_attn_3.bwd", Q, Q, K, K, Q, T(2, 4, 6)),
        out=(Q, K, K, T(1)),
        other=6 * SCORES + 2 * 8 * 48,
        **BACKWARD,
    ),
    # and each row of the result, 2 x 4 x 6 of 8, is multiplied by its gradient
    case(
        *("xformers_flash.flash_bwd", False, Q, Q, K, K, Q, T(2, 4, 6), None, None, 6, 10, 0.0),
        *(1.0, True, -1, -1, I(2)),
        out=(Q, K, K),
        other=6 * SCORES + 2 * 8 * 48,
        **BACKWARD,
    ),
    # the bias is a sum per score
    case(
        *("xformers.efficient_attention_forward_cutlass", Q, K, K, T(2, 4, 6, 10), None, None),
        *(None, 0.0, False, 0, None, None, None),
        other=7 * SCORES,
        **FORWARD,
    ),
    case(
        *("xformers.efficient_attention_backward_cutlass", Q, Q, K, K, None, None, None, 6, 10),
        *(T(2, 4, 6), Q, 0.0, 0, 0, 0, None, 1, None),
        out=(Q, K, K, T(1)),
        other=6 * SCORES + 2 * 8 * 48,
        **BACKWARD,
    ),
    # 2 groups of 2 heads
    case(
        *("xformer.memory_efficient_attention_forward", T(2, 6, 2, 2, 8), T(2, 10, 2, 2, 8)),
        *(T(2, 10, 2, 2, 8),),
        out=T(2, 6, 2, 2, 8),
        macs=SCORES * 16,
        other=6 * SCORES,
    ),
    # one head
    case(
        *("xformer.memory_efficient_attention_forward", T(2, 6, 8), T(2, 10, 8), T(2, 10, 8)),
        out=T(2, 6, 8),
        macs=SCORES // 4 * 16,
        other=6 * SCORES // 4,
    ),
    case(
        *("DaoAILab._causal_conv1d_fwd_cpp", SEQUENCES, WEIGHT, T(3), None, None, SEQUENCES),
        *(None, True),
        macs=30 * 4,
        other=5 * 30,
        read=30 * 4 + 12 + 3,
    ),
    case(
        *("DaoAILab._causal_conv1d_update_cpp", T(2, 3), T(2, 3, 4), WEIGHT, None, T(2, 3), False),
        *(None, None),
        macs=6 * 4,
    ),
    # the result again, the gradients of inputs and weights; 3 sums of 10 for the bias
    case(
        *("DaoAILab._causal_conv1d_bwd_cpp", SEQUENCES, WEIGHT, T(3), SEQUENCES, None, None, None),
        *(SEQUENCES, WEIGHT, T(3), T(2, 3, 3), True),
        macs=3 * 30 * 4,
        other=9 * 30 + 3 * (10 - 1),
    ),
    case(
        *("DaoAILab._causal_conv1d_bwd_cpp", SEQUENCES, WEIGHT, None, SEQUENCES, None, None, None),
        *(SEQUENCES, WEIGHT, None, T(2, 3, 3), False),
        macs=2 * 30 * 4,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.op)
def test_an_operator_counts_the_arithmetic_of_its_package(case: Case) -> None:
    counted = compute_cost(case.signature())
    assert counted.state == "formula"
    assert (counted.cost.macs, counted.cost.flops) == (case.macs, 2 * case.macs + case.other)
    assert case.read in (None, counted.cost.elements_read)


def test_attention_to_a_cache_has_an_unknown_number_of_keys() -> None:
    cached = case("flash_attn_3.fwd", Q, K, K, K, K, out=(Q, T(2, 4, 6)))
    assert compute_cost(cached.signature()).state == "unknown"
    packed = case("flash_attn_3.fwd", Q, K, K, None, None, None, None, STARTS, out=(Q, T(2, 4)))
    assert compute_cost(packed.signature()).state == "unknown"


def test_samples_in_a_row_have_unknown_numbers_of_keys() -> None:
    unknown = case(
        *("xformers.efficient_attention_forward_cutlass", Q, K, K, None, STARTS, STARTS, 6),
        *(0.0, False, 0, None, None, None),
        out=(Q, T(2, 4, 6)),
    )
    assert compute_cost(unknown.signature()).state == "unknown"


# -- Triton kernels --------------------------------------------------------------------------------


#: 2 samples of 64 positions, with 4 heads of 8; 2 chunks; states of 16
X, BC = T(2, 64, 4, 8), T(2, 64, 1, 16)
CHUNK: dict[str, Any] = {"chunk_size": 32, "hdim": 8, "dstate": 16}
TOKEN = T(2, 4, 8)
#: values of 16, and the states of 8 · 16 before each chunk
V, STATES = T(2, 64, 4, 16), T(2, 2, 4, 8, 16)
LINEAR: dict[str, Any] = {"T": 64, "H": 4, "K": 8, "V": 16, "BT": 32}
KERNELS = [
    # 2 chunks of each sample: 32 x 32 pairs of 16 products
    (
        launch("_bmm_chunk_fwd_kernel", {"out_ptr": T(2, 2, 1, 32, 32)}, a_ptr=BC, b_ptr=BC, K=16),
        2 * 2 * 32 * 32 * 16,
        0,
    ),
    (
        launch(
            *("_chunk_cumsum_fwd_kernel", {"dA_cumsum_ptr": T(2, 4, 2, 32)}),
            dt_ptr=T(2, 64, 4),
            HAS_DT_BIAS=True,
            DT_SOFTPLUS=True,
        ),
        0,
        (4 + 1 + 4) * 512,
    ),
    # 512 positions of all heads
    (
        launch("_chunk_state_fwd_kernel", {"states_ptr": T(2, 2, 4, 8, 16)}, x_ptr=X, **CHUNK),
        512 * 8 * 16,
        512 * (4 + 16),
    ),
    # 16 states of 128 elements
    (
        launch(
            "_state_passing_fwd_kernel",
            {"out_ptr": T(2, 2, 4, 128)},
            states_ptr=T(2, 2, 4, 128),
            dA_cs_ptr=T(2, 4, 2),
            dim=128,
        ),
        0,
        16 * (2 * 128 + 1),
    ),
    (
        launch(
            "_chunk_scan_fwd_kernel",
            {"out_ptr": X},
            cb_ptr=T(2, 2, 1, 32, 32),
            x_ptr=X,
            **CHUNK,
            IS_CAUSAL=True,
            HAS_D=True,
            HAS_Z=True,
        ),
        512 * 8 * (16 + 32),
        512 * (1 + 6 * 32) + 512 * 8 * (1 + 2 + 6),
    ),
    # 64 elements with 16 states each
    (
        launch(
            "_selective_scan_update_kernel",
            {"out_ptr": TOKEN},
            state_ptr=T(2, 4, 8, 16),
            x_ptr=TOKEN,
            dt_ptr=TOKEN,
            dim=8,
            dstate=16,
            DT_SOFTPLUS=True,
            HAS_DT_BIAS=True,
            HAS_D=True,
            HAS_Z=True,
        ),
        64 * 16,
        64 * 16 * (3 + 2 + 1) + 64 * (1 + 4 + 2 + 6),
    ),
    # one step size and one decay for each of 8 heads
    (
        launch(
            "_selective_scan_update_kernel",
            {"out_ptr": TOKEN},
            state_ptr=T(2, 4, 8, 16),
            x_ptr=TOKEN,
            dt_ptr=TOKEN,
            dim=8,
            dstate=16,
            TIE_HDIM=True,
        ),
        64 * 16,
        64 * 16 * 3 + 8 * (2 + 16),
    ),
    # the gradients: 512 positions of all heads, and 512 · 8 elements
    (
        launch(
            *("_chunk_scan_bwd_dstates_kernel", {"dprev_states_ptr": T(2, 2, 4, 8, 16)}),
            dout_ptr=X,
            c_ptr=BC,
            **CHUNK,
        ),
        512 * 8 * 16,
        512 * (1 + 8),
    ),
    # the first of 2 states of each head has no predecessor: 8 · 128 elements remain
    (
        launch(
            *("_state_passing_bwd_kernel", {"dstates_ptr": T(2, 2, 4, 128)}),
            dout_ptr=T(2, 2, 4, 128),
            dA_cs_ptr=T(2, 4, 2),
            dim=128,
            nchunks=2,
        ),
        0,
        8 * (4 * 128 + 2),
    ),
    (
        launch(
            *("_chunk_scan_chunk_state_bwd_dx_kernel", {"dx_ptr": X}),
            x_ptr=X,
            cb_ptr=T(2, 2, 1, 32, 32),
            HAS_D=True,
            **CHUNK,
        ),
        512 * 8 * (16 + 32),
        512 * (5 * 32 + 3 + 8 * 8),
    ),
    (
        launch(
            *("_chunk_state_bwd_db_kernel", {"db_ptr": T(2, 64, 4, 1, 16)}),
            x_ptr=X,
            dstates_ptr=T(2, 2, 4, 8, 16),
            HAS_DDA_CS=True,
            **CHUNK,
        ),
        512 * 8 * 16,
        512 * (4 + 4 * 16),
    ),
    (
        launch(
            *("_chunk_scan_bwd_dc_kernel", {"dc_ptr": T(2, 64, 4, 1, 16)}),
            dout_ptr=X,
            prev_states_ptr=T(2, 2, 4, 8, 16),
            **CHUNK,
        ),
        512 * 8 * 16,
        512 * (1 + 2 * 16),
    ),
    # of pairs; the mask for one group
    (
        launch(
            *("_chunk_scan_bwd_dcb_kernel", {"dcb_ptr": T(2, 2, 1, 1, 32, 32)}),
            x_ptr=X,
            dout_ptr=X,
            **CHUNK,
        ),
        512 * 8 * 32,
        512 * 32 * 6 + 4 * 32 * 32,
    ),
    (
        launch(
            *("_bmm_chunk_bwd_kernel", {"db_ptr": BC}),
            a_ptr=BC,
            dout_ptr=T(2, 2, 1, 32, 32),
            chunk_size=32,
            HAS_RESIDUAL=True,
        ),
        128 * 16 * 32,
        128 * 16,
    ),
    (
        launch(
            *("_chunk_scan_bwd_ddAcs_stable_kernel", {"ddA_cumsum_ptr": T(2, 4, 2, 1, 32)}),
            x_ptr=X,
            dout_ptr=X,
            cb_ptr=T(2, 2, 1, 32, 32),
            **CHUNK,
        ),
        512 * 8 * 32,
        512 * 32 * 12,
    ),
    (
        launch(
            *("_chunk_cumsum_bwd_kernel", {"ddt_ptr": T(2, 64, 4)}),
            ddA_ptr=T(2, 4, 2, 32),
            dt_ptr=T(2, 64, 4),
            DT_SOFTPLUS=True,
            HAS_DT_BIAS=True,
        ),
        0,
        512 * (9 + 2 + 9),
    ),
    # a norm takes 3, 1 for the weight and 2 per row; SiLU 5 and its product 1
    (
        launch(
            *("_layer_norm_fwd_1pass_kernel", {"Y": ROWS}),
            X=ROWS,
            W=T(8),
            N=8,
            IS_RMS_NORM=True,
            HAS_Z=True,
        ),
        0,
        (4 + 6) * 32 + 2 * 4,
    ),
    # gradients of input and weight 9; of a gate before the norm 18
    (
        launch(
            *("_layer_norm_bwd_kernel", {"DX": ROWS}),
            X=ROWS,
            W=T(8),
            N=8,
            IS_RMS_NORM=True,
            HAS_Z=True,
        ),
        0,
        (9 + 18) * 32,
    ),
    # 512 positions of all heads, 16 chunks of 32 of them; keys of 8 and values of 16
    (launch("chunk_fwd_kernel_h", {"h": STATES}, k=X, v=V, **LINEAR), 512 * 8 * 16, 0),
    (
        launch("chunk_fwd_kernel_h", {"h": STATES}, k=X, v=V, **LINEAR, USE_G_GAMMA=True),
        512 * 8 * 16,
        512 * (16 + 3) + 16 * (128 + 2),
    ),
    (
        launch("chunk_fwd_kernel_h", {"h": STATES}, k=X, v=V, **LINEAR, USE_GK=True),
        512 * 8 * 16,
        512 * 3 * 8 + 16 * (128 + 8),
    ),
    (
        launch("chunk_fwd_kernel_o", {"o": V}, q=X, k=X, v=V, h=STATES, **LINEAR),
        512 * (8 * 16 + 32 * 8 + 32 * 16),
        512 * (32 + 3 * 16),
    ),
    (
        launch("chunk_fwd_kernel_o", {"o": V}, q=X, k=X, v=V, h=STATES, **LINEAR, USE_G=True),
        512 * (8 * 16 + 32 * 8 + 32 * 16),
        512 * (4 * 32 + 4 * 16 + 1),
    ),
    # 3 per element, 2 per row and 1 for the weight; 6, 2 and 2 with a mean and a bias
    (
        launch("layer_norm_fwd_kernel", {"y": ROWS}, x=ROWS, w=T(8), D=8, NB=1, IS_RMS_NORM=True),
        0,
        4 * 32 + 2 * 4,
    ),
    (
        launch("layer_norm_fwd_kernel", {"y": ROWS}, x=ROWS, w=T(8), b=T(8), D=8, NB=1),
        0,
        8 * 32 + 2 * 4,
    ),
    # swish takes 5, and the product with it 1
    (
        launch(
            *("layer_norm_gated_fwd_kernel", {"y": ROWS}),
            x=ROWS,
            g=ROWS,
            w=T(8),
            D=8,
            ACTIVATION="swish",
            IS_RMS_NORM=True,
        ),
        0,
        (4 + 6) * 32 + 2 * 4,
    ),
    # half of the elements of each head
    (launch("rotary_embedding_kernel", {"y": X}, x=X, cos=T(64, 2), D=8, R=2), 0, 3 * 2048),
    # of flash_attn: the first 4 of 8 elements of 512 heads
    (launch("rotary_kernel", {"OUT": X}, X=X, COS=T(64, 2), ROTARY_DIM=4), 0, 3 * 4 * 512),
    # 3 per element and 2 per row, 1 for the weight; the sum
    (
        launch("_rms_norm_kernel", {"h1_ptr": ROWS}, x_ptr=ROWS, w_ptr=T(8), N_COLS=8),
        0,
        4 * 32 + 2 * 4,
    ),
    (
        launch(
            "_rms_norm_add_kernel", {"h1_ptr": ROWS}, x_ptr=ROWS, y_ptr=ROWS, w_ptr=T(8), N_COLS=8
        ),
        0,
        5 * 32 + 2 * 4,
    ),
]


@pytest.mark.parametrize(
    ("launched", "macs", "other"), KERNELS, ids=lambda each: getattr(each, "operator", "")
)
def test_a_kernel_counts_the_arithmetic_of_its_source(
    launched: OpSignature, macs: int, other: int
) -> None:
    cost = compute_cost(launched)
    assert cost.state == "formula"
    assert (cost.cost.macs, cost.cost.flops) == (macs, 2 * macs + other)


@pytest.mark.parametrize("name", sorted({launched.op._opname for launched, _, _ in KERNELS}))
def test_a_kernel_of_the_same_name_with_other_parameters_is_unknown(name: str) -> None:
    other = launch(name, {"result": ROWS}, x=ROWS)
    assert compute_cost(other).state == "unknown"


@pytest.mark.parametrize("name", ["_layer_norm_fwd_1pass_kernel", "_layer_norm_bwd_kernel"])
def test_norms_of_two_inputs_are_unknown(name: str) -> None:
    other = launch(name, {"Y": ROWS, "DX": ROWS, "DX1": ROWS}, X=ROWS, N=8, HAS_X1=True)
    assert compute_cost(other).state == "unknown"


# -- layers of packages that are installed ---------------------------------------------------------


def test_layers_of_bitsandbytes() -> None:
    """4 rows of 64, 128 outputs; each of the 8,192 weights has a scale."""
    bnb: Any = pytest.importorskip("bitsandbytes")
    layer = bnb.nn.Linear4bit(64, 128, bias=False).to("cpu")
    x = torch.rand(4, 64)
    layer(x)  # packs the weights
    overall = crawl_module(layer, args=(x,), strict=True)["overall"]
    assert (overall["macs"], overall["flops"]) == (4 * 8192, 2 * 4 * 8192 + 8192)


def test_layers_of_torchao() -> None:
    """Its quantizers are composite: they count as the operators of torch that they consist of."""
    quantization: Any = pytest.importorskip("torchao.quantization")
    layer = nn.Sequential(nn.Linear(64, 128, bias=False))
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    overall = crawl_module(layer, args=(torch.rand(4, 64),), strict=True)["overall"]
    assert overall["macs"] == 4 * 8192


def test_layers_of_flash_linear_attention() -> None:
    """2 sequences of 256 positions, 4 heads with keys and values of 32, in chunks of 64."""
    layers: Any = pytest.importorskip("fla.layers")
    layer = layers.LinearAttention(hidden_size=128, num_heads=4).eval()
    overall = crawl_module(layer, args=(torch.rand(2, 256, 128),), strict=True)["overall"]
    projections = 4 * 512 * 128 * 128
    positions = 512 * 4
    features = 2 * 2 * positions * 32 * 32  # two maps for queries, two for keys
    states, outputs = positions * 32 * 32, positions * (32 * 32 + 2 * 64 * 32)
    assert overall["macs"] == projections + features + states + outputs
