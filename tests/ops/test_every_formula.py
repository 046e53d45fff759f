"""Each formula on one call, built by hand, against a count derived by hand: the arithmetic stands in the line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

import tests.torchvision_cpu  # noqa: F401 - defines torchvision's operators
import torchscan.recording.execution.block_scales
import torchscan.recording.expert_rows
import torchscan.recording.training.fused_losses
import torchscan.recording.training.quantized_linear  # noqa: F401 - these define operators
from tests.versions import lacks, skip_without
from torchscan.ops import compute_cost, registry
from torchscan.trace.events import Sparsity
from torchscan.types import OpSignature, TensorSpec

#: the type of the scales of blocks, or one of the same size
SCALES = torch.uint8 if lacks("float8_e8m0fnu") else torch.float8_e8m0fnu


def T(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:  # noqa: N802 - a tensor, as short as can be
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return TensorSpec(shape, dtype, tuple(strides))


def I(*shape: int) -> TensorSpec:  # noqa: N802, E743 - a tensor of integers
    return T(*shape, dtype=torch.int64)


def C(*shape: int) -> TensorSpec:  # noqa: N802 - of complex numbers
    return T(*shape, dtype=torch.complex64)


@dataclass
class Case:
    op: str
    args: tuple[Any, ...]
    out: TensorSpec | tuple[TensorSpec, ...] = ()
    macs: int = 0
    #: FLOPs besides two per multiply-accumulate
    other: int = 0
    read: int | None = None
    written: int | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def overload(self) -> OpOverload:
        namespace, packet, *rest = self.op.split(".")
        found = getattr(getattr(torch.ops, namespace), packet)
        return getattr(found, rest[0] if rest else "default")

    def signature(self) -> OpSignature:
        outputs = self.out if isinstance(self.out, tuple) else (self.out,)
        arguments = self.overload._schema.arguments
        written = [
            spec
            for argument, value in zip(arguments, self.args, strict=False)
            if argument.alias_info and argument.alias_info.is_write and not outputs
            for spec in (value if isinstance(value, tuple) else (value,))
            if spec is not None
        ]
        return OpSignature(
            op=self.overload,
            args=self.args,
            kwargs=self.kwargs,
            outputs=outputs,
            is_view=False,
            written=tuple(written),
        )


def case(op: str, *args: Any, **rest: Any) -> Case:
    names = {"out", "macs", "other", "read", "written"}
    return Case(
        op,
        args,
        **{k: v for k, v in rest.items() if k in names},
        kwargs={k: v for k, v in rest.items() if k not in names},
    )


SPARSE = TensorSpec((4, 6), torch.float32, (), Sparsity(stored=7, index_bytes=7 * 2 * 8))
X = T(2, 3, 5)  # 30 elements
MASK3 = (True, True, True)
IMAGE = T(2, 4, 8, 8)  # 512 elements
ADAM = {
    "lr": 0.1,
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.0,
    "eps": 1e-8,
    "amsgrad": False,
    "maximize": False,
}
SGD = {
    "weight_decay": 0.1,
    "momentum": 0.9,
    "lr": 0.1,
    "dampening": 0.0,
    "nesterov": True,
    "maximize": False,
}
PLAIN = {"momentum": 0.0, "nesterov": False}
LIST = (T(4), T(2, 3))  # 10 elements

MATMUL = [
    case(
        "aten.linear",
        T(2, 3),
        T(5, 3),
        T(5),
        out=T(2, 5),
        macs=2 * 5 * 3,
        read=6 + 15 + 5,
        written=10,
    ),
    # 2 x 5 gradients: 3 products for each, for both operands or one of them
    case(
        *("aten.matmul_backward", T(2, 5), T(2, 3), T(3, 5), [True, True]),
        out=(T(2, 3), T(3, 5)),
        macs=2 * 30,
    ),
    case(
        *("aten.matmul_backward", T(2, 5), T(2, 3), T(3, 5), [False, True]),
        out=(T(3, 5),),
        macs=30,
    ),
    # 2 rows of 5 gradients: as many products for the input as for the weight; the bias' are summed, 2 numbers once
    case(
        "aten.linear_backward",
        T(2, 3),
        T(2, 5),
        T(5, 3),
        MASK3,
        out=(T(2, 3), T(5, 3), T(5)),
        macs=2 * 30,
        other=5,
    ),
    case("aten.mm", T(2, 3), T(3, 5), out=T(2, 5), macs=2 * 5 * 3),
    case(
        "aten.mm", C(2, 3), C(3, 5), out=C(2, 5), macs=4 * 2 * 5 * 3
    ),  # a complex product is 4 real ones
    case("aten.addmm", T(5), T(2, 3), T(3, 5), out=T(2, 5), macs=30, other=10 + 5, alpha=2, beta=3),
    case(
        "aten._addmm_activation",
        T(5),
        T(2, 3),
        T(3, 5),
        out=T(2, 5),
        macs=30,
        other=14 * 10,
        use_gelu=True,
    ),
    case("aten.addbmm", T(2, 5), T(4, 2, 3), T(4, 3, 5), out=T(2, 5), macs=4 * 2 * 5 * 3),
    case("aten.addr", T(2, 5), T(2), T(5), out=T(2, 5), macs=2 * 5, other=10, alpha=2),
    # of 4·6 only 7 are stored: 7 products with 3 columns, a 3 numbers long sum at 7 places
    case("aten.mm", SPARSE, T(6, 3), out=T(4, 3), macs=7 * 3, read=7 + 18),
    case("aten.linear", T(2, 6), SPARSE, out=T(2, 4), macs=2 * 7),
    case("aten.sparse_sampled_addmm", SPARSE, T(4, 3), T(3, 6), out=SPARSE, macs=7 * 3),
    case(
        "aten._int_mm",
        T(2, 3, dtype=torch.int8),
        T(3, 5, dtype=torch.int8),
        out=T(2, 5, dtype=torch.int32),
        macs=30,
    ),
    case("aten.linalg_vecdot", T(4, 3), T(4, 3), out=T(4), macs=4 * 3),
    case("aten.linalg_vecdot", T(2, 4, 3), T(2, 4, 3), out=T(2, 4), macs=8 * 3),
    case(
        "quantized.add",
        T(30, dtype=torch.qint8),
        T(30, dtype=torch.qint8),
        1.0,
        0,
        out=T(30, dtype=torch.qint8),
        other=7 * 30,
    ),
    # ten rows for four experts, where torch has no grouped product
    case(
        "transformers.grouped_mm_fallback",
        T(10, 8),
        T(4, 8, 16),
        I(4),
        out=T(10, 16),
        macs=10 * 8 * 16,
    ),
    case(
        *("transformers.grouped_mm_fallback_backward", T(10, 8), T(4, 8, 16), I(4), T(10, 16)),
        out=(T(10, 8), T(4, 8, 16)),
        macs=2 * 10 * 8 * 16,
        written=10 * 8 + 4 * 8 * 16,
    ),
    case("aten.outer", T(2), T(3), out=T(2, 3), macs=2 * 3),
    case(
        "aten.bilinear", T(2, 3), T(2, 4), T(5, 3, 4), out=T(2, 5), macs=2 * 5 * 3 * 4 + 2 * 5 * 4
    ),
    # the same call as the kernel sees it: (N,1,I,1) · (1,O,I,J) · (N,1,1,J), summed over I and J
    case(
        *("aten._trilinear", T(2, 3), T(5, 3, 4), T(2, 4), [1, 3], [0], [1, 2], [2, 3]),
        out=T(2, 5),
        macs=2 * 5 * 3 * 4 + 2 * 5 * 4,
    ),
    # the gradient of its first input, for each of 2 outputs: the other two by elements, then with the weight
    case(
        *("aten._trilinear", T(5, 2), T(2, 3, 4), T(5, 4), [2, 3], [0], [1, 2], [1, 3]),
        out=T(5, 3),
        macs=2 * (5 * 3 * 4 + 5 * 3 * 4),
    ),
    # (10×100 · 100×5) · 5×50; the other order takes 75,000
    case(
        "aten.linalg_multi_dot", (T(10, 100), T(100, 5), T(5, 50)), out=T(10, 50), macs=5000 + 2500
    ),
    # 6 · 7 pairs of points with 4 coordinates: 4 squares are summed, after 4 differences, then a root
    case("aten.cdist", T(6, 4), T(7, 4), out=T(6, 7), macs=42 * 4, other=42 * (4 + 1)),
    case(
        "aten.cdist", T(6, 4), T(7, 4), 1.0, out=T(6, 7), other=42 * 3 * 4
    ),  # difference, absolute value, sum
    case(
        "aten.cdist", T(6, 4), T(7, 4), 3.0, out=T(6, 7), other=42 * (4 * 4 + 1)
    ),  # and a power, and a root at the end
    case(
        "aten._pdist_forward", T(6, 4), 2.0, out=T(15), macs=15 * 4, other=15 * 5
    ),  # 6 · 5 / 2 pairs
    case(
        "aten._cdist_backward",
        T(6, 7),
        T(6, 4),
        T(7, 4),
        2.0,
        T(6, 7),
        out=T(6, 4),
        macs=42 * 4,
        other=42 * 4 + 42,
    ),
    case(
        "aten._cdist_backward",
        T(6, 7),
        T(6, 4),
        T(7, 4),
        1.0,
        T(6, 7),
        out=T(6, 4),
        other=5 * 42 * 4,
    ),
    case("aten._scaled_mm", T(2, 3), T(3, 5), T(), T(), out=T(2, 5), macs=30, other=10),
    # 5 · 64 weights, two to a byte, and a scale for each 64
    case(
        "torchscan.dequantize_4bit",
        T(160, 1, dtype=torch.uint8),
        (T(5),),
        [5, 64],
        torch.bfloat16,
        out=T(5, 64, dtype=torch.bfloat16),
        other=320,
        read=160 + 5,
        written=320,
    ),
    # the zero point and the scale of each of 5 · 64 weights
    case(
        "torchscan.product_of_4bit",
        T(2, 64),
        T(8, 5, dtype=torch.int32),
        (T(1, 5),),
        5,
        out=T(2, 5),
        macs=2 * 5 * 64,
        other=2 * 5 * 64,
    ),
    # of 64 numbers: |x|, x ÷ scale, 31 comparisons in each of 2 blocks; ÷ 448, log2, ceil, exp2 of each block
    case(
        "torchscan.quantize_mx",
        T(2, 32),
        -1,
        out=(T(2, 32, dtype=torch.float8_e4m3fn), T(512, dtype=SCALES)),
        other=2 * 64 + 2 * 31 + 2 * 4,
    ),
    case(
        "aten._weight_int8pack_mm",
        T(2, 3),
        T(5, 3, dtype=torch.int8),
        T(5),
        out=T(2, 5),
        macs=30,
        other=10,
    ),
    # 5 columns of 32 weights: zero point and scale of each
    case(
        "aten._weight_int4pack_mm",
        T(2, 32),
        I(1, 1, 1, 1),
        32,
        T(1, 5, 2),
        out=T(2, 5),
        macs=2 * 5 * 32,
        other=2 * 5 * 32,
    ),
    case(
        "aten._dyn_quant_matmul_4bit",
        T(2, 32),
        I(80),
        32,
        32,
        5,
        out=T(2, 5),
        macs=2 * 5 * 32,
        other=2 * 64 + 10,
    ),
    case(
        "aten._mixed_dtypes_linear",
        T(2, 3),
        T(3, 5, dtype=torch.uint8),
        T(5),
        out=T(2, 5),
        macs=30,
        other=10,
    ),
    # of every 4 weights 2 are stored: 8 of 16
    case(
        "aten._sparse_semi_structured_linear",
        T(2, 16),
        T(5, 8),
        I(5, 1),
        out=T(2, 5),
        macs=2 * 5 * 8,
    ),
    case(
        "aten._sparse_semi_structured_mm", T(5, 8), I(5, 1), T(16, 2), out=T(5, 2), macs=5 * 2 * 8
    ),
    case(
        "aten._sparse_semi_structured_addmm",
        T(5),
        T(5, 8),
        I(5, 1),
        T(16, 2),
        out=T(5, 2),
        macs=5 * 2 * 8,
    ),
    case(
        "quantized.linear_dynamic",
        T(2, 3),
        (T(5, 3, dtype=torch.qint8),),
        out=T(2, 5),
        macs=30,
        other=2 * 10,
    ),
    # two comparisons for the range, then scaled, shifted, rounded, clamped twice, and all back: 8 for each of 30
    case(
        *(
            "aten._fused_moving_avg_obs_fq_helper",
            X,
            I(1),
            I(1),
            T(1),
            T(1),
            T(1),
            I(1),
            0.01,
            0,
            255,
            -1,
        ),
        out=(X, T(2, 3, 5, dtype=torch.bool)),
        other=(2 + 6) * 30,
    ),
    case("aten.mkldnn_linear", T(2, 3), T(5, 3), None, out=T(2, 5), macs=30),
    case(
        "aten._grouped_mm", T(6, 3), T(2, 3, 5), I(2), out=T(6, 5), macs=6 * 5 * 3
    ),  # each of 6 rows meets one expert
    case(
        "aten._grouped_mm", T(4, 6), T(6, 5), I(2), out=T(2, 4, 5), macs=4 * 5 * 6
    ),  # the 6 summed over are shared out
    case("torchscan.all_rows", T(3, 8), 5, out=T(5, 8), read=0, written=0),
    case(
        "aten._scaled_grouped_mm",
        T(6, 3),
        T(2, 3, 5),
        T(6),
        T(2, 5),
        out=T(6, 5),
        macs=6 * 5 * 3,
        other=30,
    ),
    case(
        "aten._foreach_mm",
        (T(2, 3), T(4, 5)),
        (T(3, 6), T(5, 7)),
        out=(T(2, 6), T(4, 7)),
        macs=2 * 6 * 3 + 4 * 7 * 5,
    ),
    case(
        "aten.einsum", "bik,bkj->bij", (T(4, 2, 3), T(4, 3, 5)), out=T(4, 2, 5), macs=4 * 2 * 3 * 5
    ),
    case("aten.einsum", "i,j->ij", (T(2), T(3)), out=T(2, 3), macs=2 * 3),
    case(
        "aten.einsum", "...ij,...jk", (T(4, 2, 3), T(4, 3, 5)), out=T(4, 2, 5), macs=4 * 2 * 3 * 5
    ),
    case("aten.einsum", "ij,jk->ik", (T(3, 0), T(0, 4)), out=T(3, 4), macs=0),
    # an index of one element is none: what it meets is summed before, 12 numbers to 4, then multiplied
    case("aten.einsum", "ij,jk->ik", (T(2, 1), T(3, 4)), out=T(2, 4), macs=2 * 4, other=12 - 4),
    case(
        "aten.einsum", "ij->i", (T(2, 3),), out=T(2), other=6 - 2
    ),  # no product: 3 numbers are summed twice
    # x·A first, (b i j), then the result with y, (b j)
    case(
        "aten.einsum",
        "bi,bij,bj->b",
        (T(2, 3), T(2, 3, 4), T(2, 4)),
        out=T(2),
        macs=2 * 3 * 4 + 2 * 4,
    ),
    # k occurs in the first operand only: it is summed up before, 2·3·4 − 2·3
    case(
        "aten.einsum",
        "ijk,jl->il",
        (T(2, 3, 4), T(3, 5)),
        out=T(2, 5),
        macs=2 * 3 * 5,
        other=24 - 6,
    ),
    # the last two first, as the path says: 4·5·6, then 2·4·6
    case(
        "aten.einsum",
        "ij,jk,kl->il",
        (T(2, 4), T(4, 5), T(5, 6)),
        path=[1, 2, 0, 1],
        out=T(2, 6),
        macs=120 + 48,
    ),
]

CONVOLUTION = [
    # 2·4·6·6 outputs, windows of 3·3·3; as many reads, weights, bias
    case(
        "aten.conv2d",
        T(2, 3, 8, 8),
        T(4, 3, 3, 3),
        T(4),
        out=T(2, 4, 6, 6),
        macs=288 * 27,
        read=288 * 27 + 108 + 4,
        written=288,
    ),
    case(
        "aten.conv2d", C(2, 3, 8, 8), C(4, 3, 3, 3), out=C(2, 4, 6, 6), macs=3 * 288 * 27
    ),  # as three real ones
    case(
        "aten.cudnn_convolution_relu",
        T(2, 3, 8, 8),
        T(4, 3, 3, 3),
        T(4),
        [1],
        [0],
        [1],
        1,
        out=T(2, 4, 6, 6),
        macs=288 * 27,
        other=288,
    ),
    case(
        *(
            "aten.cudnn_convolution_add_relu",
            T(2, 3, 8, 8),
            T(4, 3, 3, 3),
            T(2, 4, 6, 6),
            2.0,
            T(4),
            [1],
            [0],
            [1],
            1,
        ),
        out=T(2, 4, 6, 6),
        macs=288 * 27,
        other=3 * 288,
    ),
    case("aten.conv_transpose1d", T(1, 4, 5), T(4, 3, 2), out=T(1, 3, 6), macs=1 * 4 * 5 * 3 * 2),
    case(
        "aten.convolution",
        T(1, 4, 5),
        T(4, 3, 2),
        None,
        [1],
        [0],
        [1],
        True,
        [0],
        1,
        out=T(1, 3, 6),
        macs=20 * 3 * 2,
    ),
    case("aten.conv_tbc", T(8, 2, 3), T(3, 3, 4), T(4), 0, out=T(6, 2, 4), macs=6 * 2 * 4 * 3 * 3),
    # both gradients take the products of the forward pass, 288 · 27; that of the bias sums 288 gradients to 4
    case(
        *(
            "aten.convolution_backward",
            T(2, 4, 6, 6),
            T(2, 3, 8, 8),
            T(4, 3, 3, 3),
            [4],
            [1],
            [0],
            [1],
            False,
            [0],
            1,
            MASK3,
        ),
        out=(T(2, 3, 8, 8), T(4, 3, 3, 3), T(4)),
        macs=2 * 288 * 27,
        other=288 - 4,
        read=(288 * 27 + 108) + (288 * 27 + 288) + 288,
    ),
    case(
        *(
            "aten._slow_conv2d_backward.output_mask",
            T(2, 4, 6, 6),
            T(2, 3, 8, 8),
            T(4, 3, 3, 3),
            [3, 3],
            [1, 1],
            [0, 0],
        ),
        (False, True, False),
        out=(T(4, 3, 3, 3),),
        macs=288 * 27,
    ),
    case(
        "aten.conv_tbc_backward",
        T(6, 2, 4),
        T(8, 2, 3),
        T(3, 3, 4),
        T(4),
        0,
        out=(X, X, X),
        macs=2 * 48 * 9,
        other=48 - 4,
    ),
    case(
        *(
            "aten._convolution_double_backward",
            T(2, 3, 8, 8),
            None,
            None,
            T(2, 4, 6, 6),
            T(4, 3, 3, 3),
            T(2, 3, 8, 8),
        ),
        *([1], [0], [1], False, [0], 1, MASK3),
        out=(T(2, 4, 6, 6),),
        macs=2 * 288 * 27,
    ),
    # samples: 2 images · 3 channels · 9 taps · 36 positions = 1944, of 7; places 2 · 9 · 36 = 648, of 14
    case(
        *(
            "torchvision.deform_conv2d",
            T(2, 3, 8, 8),
            T(4, 3, 3, 3),
            T(2, 18, 6, 6),
            T(2, 9, 6, 6),
            T(4),
        ),
        *(1, 1, 0, 0, 1, 1, 1, 1, True),
        out=T(2, 4, 6, 6),
        macs=288 * 27,
        other=1944 * 8 + 648 * 14,
        read=4 * 1944 + 288 * 27 + 4 * 27 + 2 * 18 * 36 + 4 + 2 * 9 * 36,
        written=288,
    ),
    # again 7 for each sample, 8 to spread it over its neighbours, 14 for its offset
    case(
        *(
            "torchvision._deform_conv2d_backward",
            T(2, 4, 6, 6),
            T(2, 3, 8, 8),
            T(4, 3, 3, 3),
            T(2, 18, 6, 6),
            T(2, 9, 6, 6),
        ),
        *(T(4), 1, 1, 0, 0, 1, 1, 1, 1, True),
        out=(T(2, 3, 8, 8), T(4, 3, 3, 3)),
        macs=2 * 288 * 27,
        other=29 * 1944 + 14 * 648,
    ),
    case(
        "quantized.conv2d.new",
        T(2, 3, 8, 8),
        (T(4, 3, 3, 3), T(4)),
        1.0,
        0,
        out=T(2, 4, 6, 6),
        macs=288 * 27,
        other=2 * 288,
    ),
    case(
        "quantized.conv_transpose1d",
        T(1, 4, 5),
        (T(4, 3, 2),),
        1.0,
        0,
        out=T(1, 3, 6),
        macs=20 * 6,
        other=2 * 18,
    ),
]

Q, K, V = T(2, 8, 5, 4), T(2, 2, 7, 4), T(2, 2, 7, 6)  # 8 query heads share 2 of keys and values
SCORES = 2 * 8 * 5 * 7
ATTENTION = [
    case(
        "aten.scaled_dot_product_attention",
        Q,
        K,
        V,
        out=T(2, 8, 5, 6),
        macs=SCORES * (4 + 6),
        other=6 * SCORES,
    ),
    case(
        "aten._scaled_dot_product_flash_attention_for_cpu",
        Q,
        K,
        V,
        0.1,
        out=(T(2, 8, 5, 6),),
        macs=SCORES * 10,
        other=8 * SCORES,
    ),
    case(
        "aten._scaled_dot_product_efficient_attention",
        Q,
        K,
        V,
        T(5, 7),
        False,
        out=(T(2, 8, 5, 6),),
        macs=SCORES * 10,
        other=7 * SCORES,
    ),
    case(
        "aten._scaled_dot_product_flash_attention",
        Q,
        K,
        V,
        out=(T(2, 8, 5, 6),),
        macs=SCORES * 10,
        other=6 * SCORES,
    ),
    case(
        "aten._scaled_dot_product_cudnn_attention",
        Q,
        K,
        V,
        None,
        False,
        out=(T(2, 8, 5, 6),),
        macs=SCORES * 10,
        other=6 * SCORES,
    ),
    case(
        "aten._triton_scaled_dot_attention.out", Q, Q, Q, out=Q, macs=2 * 8 * 25 * 8, other=6 * 400
    ),
    # 3 operators on each score
    case(
        "torchscan.flex_attention",
        Q,
        K,
        V,
        3,
        out=(T(2, 8, 5, 6),),
        macs=SCORES * 10,
        other=(6 + 3) * SCORES,
    ),
    case(
        "torchscan.flex_attention_backward",
        Q,
        K,
        V,
        3,
        out=(Q, K, V),
        macs=SCORES * 24,
        other=(6 + 6) * SCORES + 12 * 80,
    ),
    # a sink for each of 8 heads, and a soft cap
    case(
        *("torchscan.fused_attention", Q, K, V, T(8), None, True, None, 50.0),
        out=T(2, 8, 5, 6),
        macs=SCORES * 10,
        other=9 * SCORES + 2 * 80,
    ),
    # each of 5 queries sees 2 of 7 keys, so the first is not read
    case(
        *("torchscan.fused_attention", Q, K, V, None, T(5, 7), True, 2),
        out=T(2, 8, 5, 6),
        macs=2 * 80 * 10,
        other=7 * 2 * 80,
        read=2 * 8 * 5 * 4 + 2 * 2 * 6 * (4 + 6) + 5 * 7,
    ),
    # latents of 6 numbers, and 4 that are rotated
    case(
        *("torchscan.latent_attention", T(2, 8, 5, 6), Q, T(2, 1, 7, 6), T(2, 1, 7, 4)),
        out=T(2, 8, 5, 6),
        macs=SCORES * (6 + 4 + 6),
        other=6 * SCORES,
    ),
    # (samples, length, heads, width)
    case(
        *(
            "aten._flash_attention_forward",
            T(2, 5, 8, 4),
            T(2, 7, 8, 4),
            T(2, 7, 8, 6),
            None,
            None,
            5,
            7,
            0.0,
            False,
            False,
        ),
        out=(T(2, 5, 8, 6),),
        macs=SCORES * 10,
        other=6 * SCORES,
    ),
    # 3 samples in a row, none longer than 5 and 7: 3 · 8 heads · 5 · 7 scores
    case(
        *(
            "aten._flash_attention_forward",
            T(11, 8, 4),
            T(15, 8, 4),
            T(15, 8, 4),
            I(4),
            I(4),
            5,
            7,
            0.0,
            False,
            False,
        ),
        out=(T(11, 8, 4),),
        macs=840 * 8,
        other=6 * 840,
    ),
    case(
        *(
            "aten._flash_attention_forward_no_dropout_inplace",
            T(2, 5, 8, 4),
            T(2, 5, 8, 4),
            T(2, 7, 8, 4),
            T(2, 7, 8, 4),
        ),
        *(None, None, 5, 7, 0.0, False, False),
        out=(T(2, 8, 5),),
        macs=SCORES * 8,
        other=6 * SCORES,
    ),
    case(
        *(
            "aten._efficient_attention_forward",
            T(2, 5, 8, 4),
            T(2, 7, 8, 4),
            T(2, 7, 8, 6),
            T(5, 7),
            None,
            None,
            5,
            7,
            0.0,
            0,
        ),
        out=(T(2, 5, 8, 6),),
        macs=SCORES * 10,
        other=7 * SCORES,
    ),
    # cuDNN's takes heads before lengths
    case(
        *(
            "aten._cudnn_attention_forward",
            T(2, 8, 5, 4),
            T(2, 8, 7, 4),
            T(2, 8, 7, 6),
            None,
            None,
            None,
            5,
            7,
            False,
        ),
        out=(T(2, 8, 5, 6),),
        macs=SCORES * 10,
        other=6 * SCORES,
    ),
    case(
        *(
            "aten._cudnn_attention_backward",
            T(2, 8, 5, 6),
            T(2, 8, 5, 4),
            T(2, 8, 7, 4),
            T(2, 8, 7, 6),
            T(2, 8, 5, 6),
            T(2, 8, 5),
        ),
        *(I(), I(), None, None, None, 5, 7, 0.0, False),
        out=(Q, K, V),
        macs=SCORES * 24,
        other=6 * SCORES + 12 * 80,
    ),
    # five products: scores 4, ∂V 6, ∂P 6, ∂Q 4, ∂K 4; D = Σ O·∂O, 2 · 6 for each of 2 · 8 · 5 queries
    case(
        *(
            "aten._scaled_dot_product_flash_attention_for_cpu_backward",
            T(2, 8, 5, 6),
            Q,
            K,
            V,
            T(2, 8, 5, 6),
            T(2, 8, 5),
            0.0,
            False,
        ),
        out=(Q, K, V),
        macs=SCORES * (3 * 4 + 2 * 6),
        other=6 * SCORES + 12 * 80,
    ),
    case(
        *(
            "aten._flash_attention_backward",
            T(2, 5, 8, 6),
            T(2, 5, 8, 4),
            T(2, 7, 8, 4),
            T(2, 7, 8, 6),
            T(2, 5, 8, 6),
            T(2, 8, 5),
        ),
        *(None, None, 5, 7, 0.0, False, I(2), I()),
        out=(Q, K, V),
        macs=SCORES * 24,
        other=6 * SCORES + 12 * 80,
    ),
    case(
        *(
            "aten._efficient_attention_backward",
            T(2, 5, 8, 6),
            T(2, 5, 8, 4),
            T(2, 7, 8, 4),
            T(2, 7, 8, 6),
            None,
            T(2, 5, 8, 6),
        ),
        *(None, None, 5, 7, T(2, 8, 5), 0.0, I(), I(), 0, False),
        out=(Q, K, V),
        macs=SCORES * 24,
        other=6 * SCORES + 12 * 80,
    ),
    # 2 samples of 5 tokens, 16 wide, 4 heads: q, k, v, output; 2 · 4 · 25 scores of 4 + 4
    case(
        *(
            "aten._native_multi_head_attention",
            T(2, 5, 16),
            T(2, 5, 16),
            T(2, 5, 16),
            16,
            4,
            T(48, 16),
            T(48),
            T(16, 16),
            T(16),
        ),
        out=(T(2, 5, 16),),
        macs=10 * 4 * 16 * 16 + 200 * 8,
        other=6 * 200,
    ),
    # and two products with 32 hidden units; two norms of 8 per element and 2 per row, two sums, a gelu
    case(
        *(
            "aten._transformer_encoder_layer_fwd",
            T(2, 5, 16),
            16,
            4,
            T(48, 16),
            T(48),
            T(16, 16),
            T(16),
            True,
            False,
            1e-5,
        ),
        *(T(16), T(16), T(16), T(16), T(32, 16), T(32), T(16, 32), T(16)),
        out=T(2, 5, 16),
        macs=10 * 4 * 256 + 200 * 8 + 10 * 2 * 16 * 32,
        other=6 * 200 + 2 * (8 * 160 + 2 * 10) + 2 * 160 + 5 * 10 * 32,
    ),
    case("aten._transform_bias_rescale_qkv", T(2, 5, 48), T(48), 4, out=(X, X, X), other=480 + 160),
]

LSTM_WEIGHTS = (T(12, 7), T(12, 3), T(12), T(12))  # 7 inputs, 3 units, 4 gates
SECOND_LSTM_WEIGHTS = (T(12, 3), T(12, 3), T(12), T(12))
GRU_WEIGHTS = (T(9, 7), T(9, 3), T(9), T(9))
RECURRENT = [
    # 5 steps · 2 samples
    case(
        *(
            "aten.lstm.input",
            T(5, 2, 7),
            (T(1, 2, 3), T(1, 2, 3)),
            LSTM_WEIGHTS,
            True,
            1,
            0.0,
            False,
            False,
            False,
        ),
        out=(T(5, 2, 3), T(1, 2, 3), T(1, 2, 3)),
        macs=10 * (12 * 7 + 12 * 3),
        other=10 * 3 * 32,
    ),
    # two directions
    case(
        *(
            "aten.lstm.input",
            T(5, 2, 7),
            (T(2, 2, 3), T(2, 2, 3)),
            LSTM_WEIGHTS * 2,
            True,
            1,
            0.0,
            False,
            True,
            False,
        ),
        out=(T(5, 2, 6), T(2, 2, 3), T(2, 2, 3)),
        macs=2 * 10 * (12 * 7 + 12 * 3),
        other=2 * 10 * 3 * 32,
    ),
    # 3 gates
    case(
        *("aten.gru.input", T(5, 2, 7), T(1, 2, 3), GRU_WEIGHTS),
        *(True, 1, 0.0, False, False, False),
        out=(T(5, 2, 3), T(1, 2, 3)),
        macs=10 * (9 * 7 + 9 * 3),
        other=10 * 3 * 21,
    ),
    # sequences of 5 and 2 steps, packed
    case(
        *("aten.gru.data", T(7, 7), I(5), T(1, 2, 3), GRU_WEIGHTS),
        *(True, 1, 0.0, False, False),
        out=(T(7, 3), T(1, 2, 3)),
        macs=7 * (9 * 7 + 9 * 3),
        other=7 * 3 * 21,
    ),
    case(
        "aten.gru_cell",
        T(2, 7),
        T(2, 3),
        T(9, 7),
        T(9, 3),
        T(9),
        T(9),
        out=T(2, 3),
        macs=2 * (63 + 27),
        other=2 * 3 * 21,
    ),
    case(
        "aten._thnn_fused_lstm_cell",
        T(2, 12),
        T(2, 12),
        T(2, 3),
        out=(T(2, 3), T(2, 3), T(2, 12)),
        other=2 * 3 * 32,
    ),
    case(
        "aten._thnn_fused_lstm_cell_backward_impl",
        None,
        T(2, 3),
        T(2, 3),
        T(2, 3),
        T(2, 12),
        True,
        out=(T(2, 12),),
        other=2 * 3 * 24,
    ),
    case(
        *(
            "aten._cudnn_rnn",
            T(5, 2, 7),
            LSTM_WEIGHTS,
            4,
            None,
            T(1, 2, 3),
            T(1, 2, 3),
            2,
            3,
            0,
            1,
            False,
            0.0,
            False,
            False,
            [],
            None,
        ),
        out=(T(5, 2, 3),),
        macs=10 * 120,
        other=10 * 3 * 32,
    ),
    # two directions
    case(
        *("aten._cudnn_rnn", T(5, 2, 7), LSTM_WEIGHTS * 2, 4, None, T(2, 2, 3), T(2, 2, 3)),
        *(2, 3, 0, 1, False, 0.0, False, True, [], None),
        out=(T(5, 2, 6),),
        macs=2 * 10 * 120,
        other=2 * 10 * 3 * 32,
    ),
    # two layers, of which the second has a matrix of 12 · 3 for its input; in training, dropout
    # multiplies each of the 5 · 2 · 3 elements between them by a mask and a scale
    case(
        *("aten._cudnn_rnn", T(5, 2, 7), (*LSTM_WEIGHTS, *SECOND_LSTM_WEIGHTS), 4, None),
        *(T(2, 2, 3), T(2, 2, 3), 2, 3, 0, 2, False, 0.5, True, False, [], None),
        out=(T(5, 2, 3),),
        macs=10 * (120 + 72),
        other=2 * 10 * 3 * 32 + 2 * 30,
    ),
    case(
        *(
            "aten._cudnn_rnn_backward",
            T(5, 2, 7),
            LSTM_WEIGHTS,
            4,
            T(144),
            T(1, 2, 3),
            T(1, 2, 3),
            T(5, 2, 3),
            T(5, 2, 3),
            None,
            None,
        ),
        *(2, 3, 0, 1, False, 0.0, True, False, [], None, T(9), (True, True, True, True)),
        out=(T(5, 2, 7),),
        macs=2 * 10 * 120,
        other=10 * 3 * 24,
    ),
    case(
        *(
            "aten._cudnn_rnn_backward",
            T(5, 2, 7),
            LSTM_WEIGHTS * 2,
            4,
            T(288),
            T(2, 2, 3),
            T(2, 2, 3),
            T(5, 2, 6),
            T(5, 2, 6),
        ),
        *(None, None, 2, 3, 0, 1, False, 0.0, True, True, [], None, T(9), (True, True, True, True)),
        out=(T(5, 2, 7),),
        macs=2 * 2 * 10 * 120,
        other=2 * 10 * 3 * 24,
    ),
    case(
        *(
            "aten.mkldnn_rnn_layer",
            T(5, 2, 7),
            *LSTM_WEIGHTS,
            T(1, 2, 3),
            T(1, 2, 3),
            False,
            [],
            2,
            3,
            1,
            True,
            False,
            False,
            False,
        ),
        out=(T(5, 2, 3),),
        macs=10 * 120,
        other=10 * 3 * 32,
    ),
    case(
        *(
            "aten.mkldnn_rnn_layer_backward",
            T(5, 2, 7),
            *LSTM_WEIGHTS,
            T(1, 2, 3),
            T(1, 2, 3),
            T(5, 2, 3),
            T(1, 2, 3),
            T(1, 2, 3),
        ),
        *(T(5, 2, 3), None, None, False, 2, 3, 1, True, True, False, [], False, T(9)),
        out=(T(5, 2, 7),),
        macs=2 * 10 * 120,
        other=10 * 3 * 24,
    ),
    case(
        *(
            "aten.quantized_lstm.input",
            T(5, 2, 7),
            (T(1, 2, 3), T(1, 2, 3)),
            ((T(12, 7), T(12, 3), T(12), T(12)),),
        ),
        *(True, 1, 0.0, False, False, False),
        out=(T(5, 2, 3),),
        macs=10 * 120,
        other=10 * 3 * 32,
    ),
]

NORMALIZATION = [
    case(
        "aten.batch_norm", T(0), None, None, T(0), T(0), True, 0.1, 1e-5, True, out=T(0)
    ),  # of nothing: nothing
    # 512 elements, 4 channels: 2 per element, 2 per channel, 2 more for weight and bias
    case(
        "aten.batch_norm",
        IMAGE,
        T(4),
        T(4),
        T(4),
        T(4),
        False,
        0.1,
        1e-5,
        False,
        out=IMAGE,
        other=4 * 512 + 8,
    ),
    case(
        "aten.native_batch_norm",
        IMAGE,
        T(4),
        T(4),
        T(4),
        T(4),
        True,
        0.1,
        1e-5,
        out=(IMAGE,),
        other=4 * 512 + 8 + 4 * 512 + 24,
    ),
    case(
        "aten._native_batch_norm_legit.no_stats",
        IMAGE,
        None,
        None,
        True,
        0.1,
        1e-5,
        out=(IMAGE,),
        other=2 * 512 + 8 + 4 * 512,
    ),
    case(
        "aten._native_batch_norm_legit_no_training",
        IMAGE,
        T(4),
        T(4),
        T(4),
        T(4),
        0.1,
        1e-5,
        out=(IMAGE,),
        other=4 * 512 + 8,
    ),
    case(
        "aten._batch_norm_with_update",
        IMAGE,
        None,
        None,
        T(4),
        T(4),
        0.1,
        1e-5,
        out=(IMAGE,),
        other=2 * 512 + 8 + 4 * 512 + 24,
    ),
    case(
        "aten.layer_norm", T(2, 5, 16), [16], T(16), T(16), out=T(2, 5, 16), other=8 * 160 + 2 * 10
    ),
    case(
        "aten.native_layer_norm",
        T(2, 5, 16),
        [16],
        T(16),
        None,
        1e-5,
        out=(T(2, 5, 16),),
        other=7 * 160 + 2 * 10,
    ),
    case(
        "aten.group_norm", IMAGE, 2, None, None, out=IMAGE, other=6 * 512 + 2 * 4
    ),  # 2 samples · 2 groups
    case(
        "aten.native_group_norm",
        IMAGE,
        T(4),
        T(4),
        2,
        4,
        64,
        2,
        1e-5,
        out=(IMAGE,),
        other=8 * 512 + 2 * 4,
    ),
    case(
        "aten.instance_norm",
        IMAGE,
        None,
        None,
        None,
        None,
        True,
        0.1,
        1e-5,
        False,
        out=IMAGE,
        other=6 * 512 + 2 * 8,
    ),
    case(
        "aten.instance_norm",
        IMAGE,
        None,
        None,
        T(4),
        T(4),
        True,
        0.1,
        1e-5,
        False,
        out=IMAGE,
        other=6 * 512 + 2 * 8 + 6 * 4,
    ),
    case("aten.rms_norm", T(2, 5, 16), [16], T(16), out=T(2, 5, 16), other=4 * 160 + 2 * 10),
    case(
        "aten._fused_rms_norm",
        T(2, 5, 16),
        [16],
        None,
        None,
        out=(T(2, 5, 16), T(2, 5, 1)),
        other=3 * 160 + 2 * 10,
    ),
    # x̂ 2, two sums 3, combined 5, the weight's product 1; ∂weight 2, ∂bias 1
    case(
        "aten.native_layer_norm_backward",
        X,
        X,
        [5],
        T(2, 3, 1),
        T(2, 3, 1),
        T(5),
        T(5),
        MASK3,
        out=(X, T(5), T(5)),
        other=14 * 30,
    ),
    case(
        "aten.native_layer_norm_backward",
        X,
        X,
        [5],
        T(2, 3, 1),
        T(2, 3, 1),
        None,
        None,
        (True, False, False),
        out=(X,),
        other=10 * 30,
    ),
    case(
        "aten.native_group_norm_backward",
        IMAGE,
        IMAGE,
        T(2, 2),
        T(2, 2),
        T(4),
        2,
        4,
        64,
        2,
        MASK3,
        out=(IMAGE,),
        other=14 * 512,
    ),
    case(
        "aten.native_batch_norm_backward",
        IMAGE,
        IMAGE,
        T(4),
        None,
        None,
        T(4),
        T(4),
        True,
        1e-5,
        MASK3,
        out=(IMAGE,),
        other=14 * 512,
    ),
    # stored statistics: ∂x = g · w / σ, 2; ∂w = Σ g·x̂, 4; ∂b, 1
    case(
        "aten.native_batch_norm_backward",
        IMAGE,
        IMAGE,
        T(4),
        T(4),
        T(4),
        None,
        None,
        False,
        1e-5,
        MASK3,
        out=(IMAGE,),
        other=7 * 512,
    ),
    case(
        "aten.cudnn_batch_norm_backward",
        IMAGE,
        IMAGE,
        T(4),
        None,
        None,
        T(4),
        T(4),
        1e-5,
        T(0),
        out=(IMAGE,),
        other=14 * 512,
    ),
    case(
        "aten.batch_norm_backward",
        IMAGE,
        IMAGE,
        T(4),
        None,
        None,
        T(4),
        T(4),
        True,
        1e-5,
        MASK3,
        T(0),
        out=(IMAGE,),
        other=14 * 512,
    ),
    # x̂ 1, its sum 2, combined 3, the weight 1; ∂weight 2
    case(
        "aten._fused_rms_norm_backward",
        X,
        X,
        [5],
        T(2, 3, 1),
        T(5),
        (True, True),
        out=(X, T(5)),
        other=9 * 30,
    ),
    case("aten._weight_norm_interface", T(5, 3), T(5, 1), out=(T(5, 3), T(5, 1)), other=3 * 15),
    case(
        "aten._weight_norm_interface_backward",
        T(5, 3),
        T(5, 3),
        T(5, 1),
        T(5, 1),
        0,
        out=(T(5, 3), T(5, 1)),
        other=5 * 15,
    ),
]

POINTWISE = [
    case("aten.addcmul", C(4), C(4), C(4), out=C(4), other=(6 + 2) * 4),
    case("aten.relu", X, out=X, other=30, read=30, written=30),
    case(
        "aten.mul.Tensor", C(4), C(4), out=C(4), other=6 * 4
    ),  # 4 products, a sum and a difference
    case("aten.add.Tensor", X, X, alpha=2, out=X, other=2 * 30),
    case("aten.add.Tensor", C(4), C(4), out=C(4), other=2 * 4),
    case("aten.abs", C(4), out=T(4), other=4 * 4),
    case("aten.addcmul", X, X, X, value=2, out=X, other=3 * 30),
    *(
        case(f"aten.{name}", X, X, out=X, other=2 * 30)
        for name in ("xlogy.Tensor", "special_xlog1py", "ldexp.Tensor")
    ),
    case("aten.special_entr", X, out=X, other=2 * 30),
    case("aten.gelu", X, approximate="tanh", out=X, other=14 * 30),
    case("aten.gelu_backward", X, X, out=X, other=11 * 30),
    case("aten.gelu_backward", X, X, approximate="tanh", out=X, other=23 * 30),
    case("aten._prelu_kernel_backward", X, X, X, out=(X, X), other=5 * 30),
    case("aten.glu_backward", T(4), T(8), 0, out=T(8), other=9 * 4),
    case("aten.dropout", X, 0.5, True, out=X, other=2 * 30),
    case("aten.native_dropout", X, 0.5, True, out=(X, X), other=2 * 30),
    case("aten._fused_dropout", X, 0.5, out=(X, X), other=2 * 30),
    case("aten.threshold_backward", X, X, 0, out=X, other=2 * 30),
    case("aten._softmax_backward_data", X, X, -1, torch.float32, out=X, other=4 * 30),
    case("aten.silu_backward", X, X, out=X, other=9 * 30),
    case("aten.fake_quantize_per_tensor_affine", X, 0.1, 0, 0, 255, out=X, other=6 * 30),
]

POOLING = [
    case("aten.max_pool2d", IMAGE, [2, 2], out=T(2, 4, 4, 4), other=3 * 128, read=4 * 128),
    case("aten.avg_pool2d", IMAGE, [2, 2], out=T(2, 4, 4, 4), other=4 * 128, read=4 * 128),
    # 8 into 3 bins: 0–3, 2–6, 5–8, 10 in all per axis
    case("aten.adaptive_avg_pool2d", IMAGE, [3, 3], out=T(2, 4, 3, 3), other=8 * 100, read=8 * 100),
    case(
        "aten.adaptive_max_pool2d", IMAGE, [1, 1], out=(T(2, 4, 1, 1), I(2, 4, 1, 1)), other=8 * 63
    ),
    # each gradient: a division and 4 sums
    case(
        "aten.avg_pool2d_backward",
        T(2, 4, 4, 4),
        IMAGE,
        [2, 2],
        [2, 2],
        [0, 0],
        False,
        True,
        None,
        out=IMAGE,
        other=5 * 128,
    ),
    # 8 bins of 64 elements: each is added, and each bin divided
    case("aten._adaptive_avg_pool2d", IMAGE, [1, 1], out=T(2, 4, 1, 1), other=512),
    case("aten._adaptive_avg_pool3d", T(2, 2, 4, 4, 4), [1, 1, 1], out=T(2, 2, 1, 1, 1), other=256),
    case("aten._adaptive_avg_pool2d_backward", T(2, 4, 1, 1), IMAGE, out=IMAGE, other=8 + 512),
    case(
        *(
            "aten.max_pool2d_with_indices_backward",
            T(2, 4, 4, 4),
            IMAGE,
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            I(2, 4, 4, 4),
        ),
        out=IMAGE,
        other=128,
    ),
    # 7 boxes · 4 channels · 3 · 3 outputs of 2 · 2 samples; 7 · 9 · 4 places
    case(
        "torchvision.roi_align",
        IMAGE,
        T(7, 5),
        1.0,
        3,
        3,
        2,
        False,
        out=T(7, 4, 3, 3),
        other=8 * 4 * 252 + 14 * 252,
    ),
    case(
        "torchvision.ps_roi_align",
        IMAGE,
        T(7, 5),
        1.0,
        2,
        2,
        2,
        out=(T(7, 1, 2, 2), I(7, 1, 2, 2)),
        other=8 * 4 * 28 + 14 * 112,
    ),
    case(
        *(
            "torchvision._roi_align_backward",
            T(7, 4, 3, 3),
            T(7, 5),
            1.0,
            3,
            3,
            2,
            4,
            8,
            8,
            2,
            False,
        ),
        out=IMAGE,
        other=(1 + 8 * 4) * 252 + 14 * 252,
    ),
    # 5 boxes: sorted with 3 comparisons each, 3 for each area, 10 pairs of 13
    case("torchvision.nms", T(5, 4), T(5), 0.5, out=I(3), other=15 + 15 + 130),
]

RESIZE = [
    case("aten.upsample_bilinear2d", IMAGE, [16, 16], False, out=T(2, 4, 16, 16), other=7 * 2048),
    case("aten.mish_backward", X, X, out=X, other=20 * 30),
    case("aten.upsample_linear1d", T(2, 4, 8), [16], False, out=T(2, 4, 16), other=3 * 128),
    case(
        "aten.upsample_linear1d_backward",
        T(2, 4, 16),
        [16],
        [2, 4, 8],
        False,
        out=T(2, 4, 8),
        other=2 * 2 * 128,
    ),
    case(
        "aten.upsample_trilinear3d_backward",
        T(1, 2, 4, 4, 4),
        [4] * 3,
        [1, 2, 2, 2, 2],
        False,
        out=T(1, 2, 2, 2, 2),
        other=8 * 2 * 128,
    ),
    case(
        "aten.upsample_bicubic2d_backward",
        T(2, 4, 16, 16),
        [16, 16],
        [2, 4, 8, 8],
        False,
        out=IMAGE,
        other=16 * 3 * 2048,
    ),
    *(
        case(f"aten.{name}", X, out=X, other=30)
        for name in ("lgamma", "digamma", "i0", "special_i0e", "special_i1", "special_i1e")
    ),
    case(
        "aten.upsample_bilinear2d_backward",
        T(2, 4, 16, 16),
        [16, 16],
        [2, 4, 8, 8],
        False,
        out=IMAGE,
        other=8 * 2048,
    ),
    # 8 to 4: neighbours up to 2 away from 1, 3, 5, 7: 3 + 4 + 4 + 3 = 14, 2 · 14 − 4 operations; 64 rows, then 32 columns
    case(
        "aten._upsample_bilinear2d_aa",
        IMAGE,
        [4, 4],
        False,
        out=T(2, 4, 4, 4),
        other=24 * 64 + 24 * 32,
    ),
    case(
        "aten._upsample_bilinear2d_aa_backward",
        T(2, 4, 4, 4),
        [4, 4],
        [2, 4, 8, 8],
        False,
        out=IMAGE,
        other=3 * 8 * 14 * 14,
    ),
    # a width that stays: two neighbours of all but the last, 15
    case(
        "aten._upsample_bilinear2d_aa_backward",
        T(2, 4, 4, 8),
        [4, 8],
        [2, 4, 8, 8],
        False,
        out=IMAGE,
        other=3 * 8 * 14 * 15,
    ),
    # 4 neighbours, 7 each; 2 · 9 places: 3 + 2 per axis, a product per neighbour
    case(
        "aten.grid_sampler_2d",
        IMAGE,
        T(2, 3, 3, 2),
        0,
        0,
        False,
        out=T(2, 4, 3, 3),
        other=7 * 72 + 14 * 18,
    ),
    case(
        "aten.cudnn_grid_sampler", IMAGE, T(2, 3, 3, 2), out=T(2, 4, 3, 3), other=7 * 72 + 14 * 18
    ),
    case(
        *(
            "aten.grid_sampler_2d_backward",
            T(2, 4, 3, 3),
            IMAGE,
            T(2, 3, 3, 2),
            0,
            0,
            False,
            (True, True),
        ),
        out=(IMAGE, T(2, 3, 3, 2)),
        other=4 * 8 * 72 + 10 * 18,
    ),
    case(
        "aten.affine_grid_generator",
        T(2, 2, 3),
        [2, 4, 8, 8],
        False,
        out=T(2, 8, 8, 2),
        macs=2 * 64 * 2 * 3,
    ),
    case(
        "aten.affine_grid_generator_backward",
        T(2, 8, 8, 2),
        [2, 4, 8, 8],
        False,
        out=T(2, 2, 3),
        macs=2 * 64 * 2 * 3,
    ),
]

REDUCTION = [
    case("aten.sum", X, out=T(), other=29),
    case("aten.mean.dim", X, [2], out=T(2, 3), other=30),
    case("aten.var.correction", X, [2], out=T(2, 3), other=4 * 30),
    case("aten.sum.dim_IntList", C(2, 5), [1], out=C(2), other=2 * (10 - 2)),
    case("aten.max.dim", X, 2, out=(T(2, 3), I(2, 3)), other=30 - 6),
    case("aten.cumsum", X, 2, out=X, other=30 - 6),
    case("aten.cumprod", C(2, 5), 1, out=C(2, 5), other=6 * (10 - 2)),
    case("aten.prod", C(5), out=C(), other=6 * 4),
    case("aten.logcumsumexp", X, 2, out=X, other=5 * (30 - 6)),
    case("aten._cummax_helper", X, X, I(2, 3, 5), 2, other=30 - 6),
    case(
        "aten.sort", X, 2, out=(X, I(2, 3, 5)), other=30 * 3
    ),  # rows of 5: 3 comparisons per element
    case("aten.topk", T(4, 100), 2, out=(T(4, 2), I(4, 2)), other=400 * 2),
    case("aten._unique2", T(8), out=(T(8), I(0), I(0)), other=8 * 3),
    case("aten.median", T(9), out=T(), other=2 * 9),
    case("aten.searchsorted.Tensor", T(100), T(3), out=I(3), other=3 * 7),
    case("aten.bucketize.Tensor", T(3), T(100), out=I(3), other=3 * 7),
    case("aten.isin.Tensor_Tensor", T(7), T(3), out=T(7), other=7 * 3),
    case("aten.isin.Tensor_Tensor", T(7), T(25), out=T(7), other=32 * 5),
    case("aten.bincount", I(9), T(9), out=T(4), other=9),
    case("aten.multinomial", T(2, 10), 3, out=I(2, 3), other=2 * 20 + 6 * 4),
    case("aten.nonzero", T(9), out=I(4, 1), read=9, written=4),
]

INDEXING = [
    case("aten.embedding", T(100, 4), I(6), out=T(6, 4), read=6 + 24, written=24),
    # 3 bags of 6 rows: 24 numbers become 12
    case(
        "aten._embedding_bag",
        T(100, 4),
        I(6),
        I(3),
        out=(T(3, 4), I(6), I(3), I(3)),
        other=24 - 12,
        read=24 + 6 + 3,
    ),
    case(
        "aten._embedding_bag", T(100, 4), I(6), I(3), False, 1, out=(T(3, 4),), other=24 - 12 + 12
    ),  # and 12 divisions
    case("aten.embedding_dense_backward", T(6, 4), I(6), 100, -1, False, out=T(100, 4), other=24),
    case("aten.embedding_sparse_backward", T(6, 4), I(6), 100, -1, False, out=T(100, 4)),
    case(
        "aten._embedding_bag_dense_backward",
        T(3, 4),
        I(6),
        I(6),
        I(3),
        I(3),
        100,
        False,
        0,
        None,
        out=T(100, 4),
        other=24,
    ),
    case(
        "aten._embedding_bag_per_sample_weights_backward",
        T(3, 4),
        T(100, 4),
        I(6),
        I(3),
        I(6),
        0,
        out=T(6),
        macs=24,
    ),
    case(
        "aten.embedding_renorm_", T(100, 4), I(6), 1.0, 2.0, out=T(100, 4), other=3 * 24, written=24
    ),
    case("aten.gather", X, 2, I(2, 3, 2), out=T(2, 3, 2), read=12 + 12, written=12),
    case("aten.index_select", X, 2, I(3), out=T(2, 3, 3), read=18 + 3, written=18),
    case("aten.index.Tensor", X, (I(4), I(4)), out=T(4, 5), read=20 + 8, written=20),
    case("aten.take", X, I(4), out=T(4), read=8, written=4),
    case("aten.take_along_dim", X, I(4), out=T(4), read=8, written=4),
    case(
        "aten._unsafe_masked_index",
        X,
        T(4, dtype=torch.bool),
        (I(4), I(4), I(4)),
        0.0,
        out=T(4),
        other=4,
    ),
    # 4 rows of 5 are put, or added
    case("aten.index_put_", X, (I(4), I(4)), T(4, 5), out=X, read=8 + 20, written=20),
    case(
        "aten.index_put_",
        X,
        (I(4), I(4)),
        T(4, 5),
        True,
        out=X,
        other=20,
        read=8 + 20 + 20,
        written=20,
    ),
    # what a mask and an index name, of 4 · 6; a mask of two dimensions alone; whole numbers are put like others
    case(
        "aten.index_put_",
        T(4, 6),
        (T(4, dtype=torch.bool), I(2)),
        T(),
        out=T(4, 6),
        read=4 + 2 + 1,
        written=2,
    ),
    case(
        "aten.index_put_",
        T(4, 6),
        (T(4, dtype=torch.bool), I()),
        T(),
        out=T(4, 6),
        read=4 + 1 + 1,
        written=4,
    ),
    case(
        "aten.index_put_",
        T(4, 6),
        (T(4, dtype=torch.bool),),
        T(2, 6),
        out=T(4, 6),
        read=4 + 12,
        written=12,
    ),
    case(
        "aten.index_put_",
        T(4, 6),
        (T(4, 6, dtype=torch.bool),),
        T(),
        out=T(4, 6),
        read=24 + 1,
        written=24,
    ),
    case(
        "aten.index_put_",
        T(4, 6),
        (T(4, 6, dtype=torch.bool),),
        T(1),
        out=T(4, 6),
        read=24 + 1,
        written=24,
    ),
    case(
        "aten.index_put_",
        T(4, 6),
        (T(4, 6, dtype=torch.bool),),
        T(7),
        out=T(4, 6),
        read=24 + 7,
        written=7,
    ),
    case(
        "aten.index_put_",
        T(4, 6, 5),
        (T(4, 6, dtype=torch.bool),),
        T(),
        out=T(4, 6, 5),
        read=24 + 1,
        written=120,
    ),
    case("aten.index_put_", I(100, 6), (I(2),), I(), out=I(100, 6), read=3, written=12),
    case("aten.scatter_.src", X, 2, I(2, 3, 2), T(2, 3, 2), out=X, read=24, written=12),
    case("aten.scatter_add_", X, 2, I(2, 3, 2), T(2, 3, 2), out=X, other=12, read=36, written=12),
    case(
        "aten.scatter_add", X, 2, I(2, 3, 2), T(2, 3, 2), out=X, other=12, read=30 + 24, written=30
    ),
    case("aten.index_add_", X, 1, I(2), T(2, 2, 5), out=X, other=20, read=2 + 20 + 20, written=20),
    case("aten.index_add", X, 1, I(2), T(2, 2, 5), alpha=2, out=X, other=40, written=30),
    case("aten.index_copy_", X, 1, I(2), T(2, 2, 5), out=X, read=2 + 20, written=20),
    case("aten.index_fill_.int_Scalar", X, 1, I(2), 0.0, out=X, read=2, written=20),
    case("aten.put_", X, I(4), T(4), True, out=X, other=4, read=12, written=4),
]

MOVEMENT = [
    case("aten.clone", X, out=X, read=30, written=30),
    case("aten.empty.memory_format", [30], out=T(30), read=0, written=0),
    case("aten.zeros", [30], out=T(30), read=0, written=30),
    case("aten.copy_", X, T(5), out=X, read=30, written=30),
    case(
        "aten.col2im",
        T(2, 36, 36),
        [8, 8],
        [3, 3],
        [1, 1],
        [0, 0],
        [1, 1],
        out=IMAGE,
        other=2 * 36 * 36,
    ),  # each is added
]

LOSS = [
    # difference, square, and 29 sums and a division
    case("aten.mse_loss", X, X, out=T(), other=2 * 30 + 30),
    case("aten.mse_loss", X, X, 0, out=X, other=2 * 30),
    case("aten.mse_loss", X, X, 2, out=T(), other=2 * 30 + 29),
    case("aten.mse_loss", T(1), T(1), 2, out=T(), other=2),  # there is nothing to add up
    # compare, |x|, exponential, a sum, a quotient, a product
    case("aten.log_sigmoid_backward", X, X, X, out=X, other=6 * 30),
    # y log x + (1 − y) log(1 − x): two logarithms, their bounds, two products, three sums
    case("aten.binary_cross_entropy", X, X, out=T(), other=(2 + 2 + 2 + 3) * 30 + 30),
    case(
        "aten.binary_cross_entropy_with_logits", X, X, X, T(5), out=T(), other=(8 + 1 + 4) * 30 + 30
    ),
    case("aten.nll_loss_forward", T(7, 10), I(7), T(10), 1, -100, out=(T(), T()), other=7 * 2 + 7),
    case(
        "aten.nll_loss_backward",
        T(),
        T(7, 10),
        I(7),
        T(10),
        1,
        -100,
        T(),
        out=T(7, 10),
        other=70,
        read=18,
    ),
    # 12 steps, 2 samples, 2 · 4 + 1 states
    case(
        "aten._ctc_loss",
        T(12, 2, 5),
        I(2, 4),
        [12, 12],
        [4, 4],
        out=(T(2), T(2, 12, 9)),
        other=13 * 12 * 2 * 9,
    ),
    case(
        *(
            "aten._ctc_loss_backward",
            T(2),
            T(12, 2, 5),
            I(2, 4),
            [12, 12],
            [4, 4],
            T(2),
            T(2, 12, 9),
            0,
        ),
        out=T(12, 2, 5),
        other=13 * 12 * 2 * 9 + 5 * 120,
    ),
    # of each logit a maximum, a difference, an exponential and a sum, and 3 for its gradient
    case(
        "torchscan.liger_cross_entropy",
        T(2, 30),
        T(2),
        I(2),
        other=7 * 60,
        read=2 * 60 + 2,
        written=60 + 2,
    ),
    case("torchscan.unsloth_cross_entropy", T(2, 30), I(2), out=(T(2), T(2)), other=4 * 60),
    # a difference, an exponential, and the product with the gradient of the row
    case(
        "torchscan.unsloth_cross_entropy_backward",
        T(2),
        T(2, 30),
        T(2),
        I(2),
        other=3 * 60,
        written=60,
    ),
    # silu, and the product
    case("torchscan.swiglu", T(3, 8), T(3, 8), out=T(3, 8), other=24 * (5 + 1)),
    # the product with the other tensor, silu_backward, and two products for its gradient
    case(
        "torchscan.swiglu_backward",
        T(3, 8),
        T(3, 8),
        T(3, 8),
        other=24 * (1 + 9 + 2),
        written=2 * 24,
    ),
    # four products and two sums for each pair
    case("torchscan.rotate_", T(3, 8), T(3, 8), T(3, 8), other=12 * 6, written=24),
]

FFT = [
    case("aten._fft_c2c", C(3, 8), [1], 0, True, out=C(3, 8), other=3 * 5 * 8 * 3),
    case("aten._fft_c2c", C(4, 8), [0, 1], 0, True, out=C(4, 8), other=5 * 32 * (2 + 3)),
    case("aten._fft_r2c", T(3, 8), [1], 0, True, out=C(3, 5), other=3 * 60),  # half of 5·8·3
    # 4 real rows of 8, then 5 complex columns of 4
    case("aten._fft_r2c", T(4, 8), [0, 1], 0, True, out=C(4, 5), other=4 * 60 + 5 * (5 * 4 * 2)),
    case("aten._fft_c2r", C(4, 5), [0, 1], 0, 8, out=T(4, 8), other=4 * 60 + 5 * 40),
    # 8 real rows of 8; along both others 40 complex elements: 20 columns of 2, 10 of 4
    case(
        "aten._fft_c2r",
        C(2, 4, 5),
        [0, 1, 2],
        0,
        8,
        out=T(2, 4, 8),
        other=8 * 60 + 5 * 40 * (1 + 2),
    ),
]

LINALG = [
    case("aten.linalg_cholesky_ex", T(2, 6, 6), out=(T(2, 6, 6), I(2)), other=2 * 72),  # n³ / 3
    case("aten.linalg_inv_ex", T(6, 6), out=(T(6, 6), I()), other=2 * 216),
    case("aten.linalg_inv_ex", C(6, 6), out=(C(6, 6), I()), other=4 * 2 * 216),
    case("aten.linalg_lu_factor_ex", T(6, 6), out=(T(6, 6), I(6), I()), other=144),  # 2n³ / 3
    case(
        "aten._linalg_solve_ex",
        T(6, 6),
        T(6, 2),
        out=(T(6, 2), T(6, 6), I(6), I()),
        other=144 + 2 * (36 + 36),
    ),
    case("aten.linalg_solve_triangular", T(6, 6), T(6, 2), upper=True, out=T(6, 2), other=36 * 2),
    case("aten.cholesky_solve", T(6, 2), T(6, 6), out=T(6, 2), other=2 * 36 * 2),
    case("aten.linalg_qr", T(6, 3), out=(T(6, 3), T(3, 3)), other=2 * (2 * 6 * 9 - 18)),
    case("aten.geqrf", T(6, 3), out=(T(6, 3), T(3)), other=2 * 6 * 9 - 18),
    case("aten._linalg_svd", T(6, 3), out=(T(6, 3), T(3), T(3, 3)), other=14 * 6 * 9 + 8 * 27),
    case("aten.linalg_pinv", T(6, 3), out=T(3, 6), other=14 * 6 * 9 + 8 * 27 + 2 * 6 * 9),
    case(
        "aten.linalg_lstsq",
        T(6, 3),
        T(6, 2),
        out=(T(3, 2),),
        other=2 * 6 * 9 - 18 + 2 * (4 * 18 - 9),
    ),
    case("aten._linalg_eigh", T(6, 6), out=(T(6), T(6, 6)), other=9 * 216),
    case("aten.linalg_eig", T(6, 6), out=(C(6), C(6, 6)), other=25 * 216),
    case("aten._linalg_eigvals", T(6, 6), out=C(6), other=10 * 216),
    case("aten.linalg_cross", T(4, 3), T(4, 3), out=T(4, 3), other=3 * 12),
    # a polynomial of degree 18 takes 5 products of n³ multiply-accumulates, for each of 3 matrices
    case("aten.linalg_matrix_exp", T(3, 4, 4), out=T(3, 4, 4), other=3 * 5 * 2 * 64),
]

OPTIMIZER = [
    case("aten._foreach_mul_.Scalar", LIST, 2.0, other=10, read=10, written=10),
    case("aten._foreach_pow.ScalarAndTensor", 0.9, LIST, out=LIST, other=10),
    case("aten._foreach_add_.List", LIST, LIST, alpha=2, other=20, read=20, written=10),
    case("aten._foreach_addcmul_.Scalar", LIST, LIST, LIST, other=20, read=30, written=10),
    case("aten._foreach_addcdiv_.Scalar", LIST, LIST, LIST, 2.0, other=30, read=30, written=10),
    case("aten._foreach_zero_", LIST, read=0, written=10),
    # moments 3 + 4, the step 6, of 10 elements
    case(
        "aten._fused_adam_",
        LIST,
        LIST,
        LIST,
        LIST,
        (),
        (T(), T()),
        **ADAM,
        other=13 * 10,
        read=42,
        written=40,
    ),
    case(
        "aten._fused_adam_",
        LIST,
        LIST,
        LIST,
        LIST,
        (),
        (T(), T()),
        **(ADAM | {"weight_decay": 0.1}),
        other=15 * 10,
    ),
    case(
        "aten._fused_adamw_",
        LIST,
        LIST,
        LIST,
        LIST,
        (),
        (T(), T()),
        **(ADAM | {"weight_decay": 0.1}),
        other=14 * 10,
    ),
    case("aten._fused_sgd_", LIST, LIST, LIST, **(SGD | PLAIN), is_first_step=False, other=4 * 10),
    # 2, weight decay 2, momentum 3, nesterov 2
    case("aten._fused_sgd_", LIST, LIST, LIST, **SGD, is_first_step=False, other=9 * 10),
    case(
        "aten._fused_adagrad_",
        LIST,
        LIST,
        LIST,
        (T(), T()),
        lr=0.1,
        lr_decay=0.0,
        weight_decay=0.0,
        eps=0.1,
        maximize=False,
        other=70,
    ),
    # Adam with weight decay, of 512 elements
    case(
        "torchscan.optimizer_update_32bit",
        "adam",
        *(T(512), T(512), T(512), T(512)),
        other=14 * 512,
        read=4 * 512,
        written=3 * 512,
    ),
    # and of each state a product, an absolute value, a comparison, a quotient and a rounding
    case(
        "torchscan.optimizer_update_8bit_blockwise",
        "lion",
        *(T(512), T(512), T(512, dtype=torch.uint8), None, T(2), None),
        other=(10 + 5) * 512,
        read=3 * 512 + 2,
        written=2 * 512 + 2,
    ),
    case("aten._amp_foreach_non_finite_check_and_unscale_", LIST, T(), T(), other=20),
    case("aten._amp_update_scale_", T(), I(), T(), 2.0, 0.5, 2000, out=T(), other=2),
]

ALL = [
    *(
        MATMUL
        + CONVOLUTION
        + ATTENTION
        + RECURRENT
        + NORMALIZATION
        + POINTWISE
        + POOLING
        + RESIZE
        + REDUCTION
    ),
    *(INDEXING + MOVEMENT + LOSS + FFT + LINALG + OPTIMIZER),
]


@pytest.mark.parametrize("case", ALL, ids=[f"{each.op}-{index}" for index, each in enumerate(ALL)])
def test_count(case: Case) -> None:
    skip_without(f"ops.{case.op}")
    priced = compute_cost(case.signature())
    assert priced.state != "unknown"
    assert (priced.cost.macs, priced.cost.flops) == (case.macs, 2 * case.macs + case.other)
    if case.read is not None:
        assert priced.cost.elements_read == case.read
    if case.written is not None:
        assert priced.cost.elements_written == case.written
        sizes = {spec.dtype.itemsize for spec in _specs_in(case.out)}
        assert len(sizes) != 1 or priced.cost.bytes_written == case.written * sizes.pop()


def _specs_in(out: Any) -> Iterator[TensorSpec]:
    yield from out if isinstance(out, tuple) else (out,)


#: counted in test_packages.py, test_liger.py and test_flash_attention.py
OF_OTHER_PACKAGES = (
    *("triton.", "flash_attn", "bitsandbytes.", "torchao.", "float8_sparse.", "xformer"),
    "DaoAILab.",
)


def test_no_formula_is_without_a_count() -> None:
    """Formulas made by one function for several operators (one price per element, say) are told by that function."""
    counted = {
        _code_of(entry.formula)
        for each in ALL
        if not lacks(f"ops.{each.op}")
        and (entry := registry._find(registry._entries, each.overload)) is not None
    }
    ours = {
        _code_of(entry.formula)
        for name, entry in registry._entries.items()
        if "torchscan.ops" in entry.formula.__module__
        and not lacks(f"ops.{name}")
        and not name.startswith(OF_OTHER_PACKAGES)
    }
    assert sorted(code.co_qualname for code in ours - counted) == []


def _code_of(formula: Any) -> Any:
    return inspect.unwrap(formula).__code__


@pytest.mark.parametrize(
    "case",
    [
        case("aten.special_bessel_j0", X, out=X),
    ],
    ids=["nobody has counted it"],
)
def test_what_cannot_be_told_is_unpriced(case: Case) -> None:
    assert compute_cost(case.signature()).state == "unknown"


@pytest.mark.parametrize(
    "case",
    [
        # 7 boxes · 4 channels · 3 · 3 outputs of a sample each, at 7 · 9 places
        case(
            "torchvision.roi_align",
            IMAGE,
            T(7, 5),
            1.0,
            3,
            3,
            0,
            False,
            out=T(7, 4, 3, 3),
            other=8 * 252 + 14 * 63,
        ),
        case(
            "torchvision.roi_align", IMAGE, T(7, 5), 1.0, 3, 3, -1, True, out=T(7, 4, 3, 3)
        ),  # an empty box takes none
        case(
            "torchvision.ps_roi_align",
            IMAGE,
            T(7, 5),
            1.0,
            2,
            2,
            0,
            out=(T(7, 1, 2, 2), I(7, 1, 2, 2)),
        ),
        case(
            *(
                "torchvision._roi_align_backward",
                T(7, 4, 3, 3),
                T(7, 5),
                1.0,
                3,
                3,
                2,
                4,
                8,
                8,
                0,
                False,
            ),
            out=IMAGE,
            other=(1 + 8) * 252 + 14 * 63,
        ),
        # each of the 7 elements that the result stores is a product, or the sum of several
        case("aten._sparse_mm", SPARSE, SPARSE, out=SPARSE, macs=7),
        case("aten._sparse_sparse_matmul", SPARSE, SPARSE, out=SPARSE, macs=7),
    ],
    ids=[
        "boxes",
        "aligned boxes",
        "position-sensitive boxes",
        "their gradient",
        "sparse products",
        "of sparse matrices",
    ],
)
def test_what_depends_on_values_has_a_lower_bound(case: Case) -> None:
    priced = compute_cost(case.signature())
    assert priced.state == "unknown"
    assert not priced.cost.is_complete
    assert (priced.cost.macs, priced.cost.flops) == (case.macs, 2 * case.macs + case.other)
