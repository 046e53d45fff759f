"""Operators that do so much for each element of their result, counted by their definitions, and those that only move elements.

A comparison, a selection, a sum, a product, a quotient, a root and an elementary function count one each. So does what
docs/conventions.md fixes: a sigmoid is 4, a hyperbolic tangent 6.
"""

from __future__ import annotations

import pytest
import torch

from tests.ops.test_every_formula import C, Case, T
from tests.versions import skip_without
from torchscan.ops import compute_cost
from torchscan.types import TensorSpec

PER_ELEMENT = {
    1: """relu threshold mul div reciprocal neg sign signbit sgn abs maximum minimum fmax fmin fmod remainder clamp_min
       clamp_max floor ceil round trunc eq ne lt le gt ge isnan isinf isfinite isposinf isneginf logical_not logical_and
       logical_or logical_xor masked_fill where exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow erf erfc erfinv sin
       cos tan asin acos atan atan2 sinh cosh asinh acosh atanh deg2rad rad2deg floor_divide copysign heaviside angle lgamma
       digamma nll_loss_backward cummaxmin_backward value_selecting_reduction_backward""",
    # two comparisons; compare and select; x − ⌊x⌋; two products
    2: """relu6 hardtanh clamp hardshrink softshrink threshold_backward hardshrink_backward softshrink_backward frac
       native_dropout_backward _masked_scale xlogy ldexp dequantize quantized.add_scalar quantized.mul_scalar
       quantized.relu6""",
    # two comparisons and a selection; (1 − y)·y·g; (1 − y²)·g; sin(πx) / x; start + weight·(end − start); log(x / (1 − x))
    3: """hardtanh_backward leaky_relu_backward sigmoid_backward tanh_backward sinc lerp logit nan_to_num
       mse_loss_backward""",
    # two squares, a sum, a root; cosine, sine, two products; y·(g − Σ g·y); scale, round, two comparisons
    4: """leaky_relu prelu sigmoid hardsigmoid softplus rrelu hardsigmoid_backward _softmax_backward_data
       _log_softmax_backward_data hypot polar quantize_per_tensor quantized.leaky_relu quantized.sigmoid""",
    # a sigmoid and a product; compare, exponential, two products, select; a difference, exp, log1p, the larger, a sum
    5: """silu hardswish log_sigmoid softmax log_softmax _softmax _log_softmax glu elu_backward logaddexp
       smooth_l1_loss_backward huber_loss_backward quantized.hardswish quantized.softmax""",
    6: """elu selu celu tanh hardswish_backward softplus_backward log_sigmoid_backward fake_quantize_per_tensor_affine
       quantized.elu quantized.celu""",
    7: "binary_cross_entropy_backward logit_backward quantized.add quantized.mul quantized.add_relu quantized.mul_relu",
    9: "silu_backward",
    11: "mish",  # x·tanh(softplus(x))
    20: "mish_backward",
}
#: (a + bi)(c + di) is 6; divided by |c + di|², 11; a modulus 4; e^a·(cos b + i sin b) 5; log of the modulus and the angle 6
COMPLEX = {6: "mul square reciprocal sgn log", 11: "div", 4: "abs", 5: "exp", 2: "add sub"}
#: they copy, arrange or look
MOVE = """clone copy contiguous cat stack repeat tile flip roll rot90 tril triu constant_pad_nd reflection_pad1d
    replication_pad2d pixel_shuffle pixel_unshuffle channel_shuffle unfold_copy im2col max_unpool2d masked_select
    diag_embed diagonal_scatter select_scatter slice_scatter index_put scatter masked_scatter repeat_interleave
    view reshape transpose permute squeeze unsqueeze expand slice select narrow split chunk unbind diagonal as_strided detach
    real imag view_as_real view_as_complex upsample_nearest2d bitwise_and bitwise_or bitwise_xor bitwise_not _to_copy"""


def each_of(table: dict[int, str]) -> list[tuple[str, int]]:
    """Names with their numbers; most are of aten."""
    named = [(name, number) for number, names in table.items() for name in names.split()]
    return [(name if "." in name else f"aten.{name}", number) for name, number in named]


def flops(op: str, of: TensorSpec, out: TensorSpec) -> int:
    """Of a call with this tensor as each of its operands."""
    namespace, name = op.split(".")
    skip_without(f"ops.{op}")
    packet = getattr(getattr(torch.ops, namespace), name)
    found = (
        getattr(packet, each)
        for each in packet.overloads()
        if not each.endswith(("out", "output", "grad_input"))
    )
    overload = next(
        each for each in found if str(each._schema.arguments[0].type) in ("Tensor", "List[Tensor]")
    )
    values = [
        of if "Tensor" in str(each.type) else None
        for each in overload._schema.arguments
        if not each.kwarg_only
    ]
    if name in ("cat", "stack"):
        values[0] = (of, of)  # type: ignore[call-overload]
    priced = compute_cost(Case(f"{op}.{overload._overloadname}", tuple(values), out).signature())
    assert priced.state != "unknown"
    return priced.cost.flops


@pytest.mark.parametrize(("op", "each"), each_of(PER_ELEMENT))
def test_an_element_costs(op: str, each: int) -> None:
    x = T(30, dtype=torch.qint8) if op.startswith(("quantized", "aten.dequantize")) else T(2, 3, 5)
    assert flops(op, x, T(2, 3, 5)) == 30 * each


@pytest.mark.parametrize("name", ["quint8", "qint8", "qint32", "quint4x2", "quint2x4"])
def test_arithmetic_of_all_quantized_types_counts(name: str) -> None:
    """Compare 30 elements with 0; integers as such count only as traffic."""
    x = T(30, dtype=getattr(torch, name))
    assert flops("aten.relu", x, x) == 30
    integers = T(30, dtype=torch.int8)
    assert flops("aten.relu", integers, integers) == 0


@pytest.mark.parametrize(("op", "each"), each_of(COMPLEX))
def test_a_complex_element_costs(op: str, each: int) -> None:
    assert flops(op, C(2, 3, 5), C(2, 3, 5)) == 30 * each


@pytest.mark.parametrize("op", [f"aten.{name}" for name in MOVE.split()])
def test_moving_costs_no_arithmetic(op: str) -> None:
    assert flops(op, T(2, 3, 5), T(2, 3, 5)) == 0
