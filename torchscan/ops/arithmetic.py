"""Elementwise arithmetic: one operation for each add, multiply, compare, root, exponential.

A complex number costs what its two parts cost: 2 for a sum, 4 products and 2 sums for a product.
"""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import per_element, real_parts
from torchscan.ops.registry import cost_of, declare_costless, pointwise, window_of
from torchscan.ops.windows import WHOLE, Looks, look, same_dims
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

per_element(1, "aten::mul", "aten::multiply", complex_flops=6)
per_element(1, "aten::square", complex_flops=6)
per_element(
    1, "aten::div", "aten::divide", "aten::true_divide", complex_flops=11
)  # a product, |b|² and two divisions
per_element(1, "aten::reciprocal", complex_flops=6)
per_element(
    1,
    "aten::floor_divide",
    "aten::neg",
    "aten::negative",
    "aten::sign",
    "aten::signbit",
    "aten::heaviside",
    "aten::copysign",
)
per_element(1, "aten::sgn", complex_flops=6)
per_element(1, "aten::abs", "aten::absolute", complex_flops=4)  # two squares, a sum, a root
per_element(
    1,
    "aten::maximum",
    "aten::minimum",
    "aten::fmax",
    "aten::fmin",
    "aten::remainder",
    "aten::fmod",
    "aten::nextafter",
)
per_element(1, "aten::clamp_min", "aten::clamp_max")
per_element(2, "aten::clamp", "aten::clip")
per_element(
    1, "aten::floor", "aten::ceil", "aten::round", "aten::trunc", "aten::fix", "aten::conj_physical"
)
per_element(2, "aten::frac")
per_element(
    1,
    "aten::eq",
    "aten::ne",
    "aten::lt",
    "aten::le",
    "aten::gt",
    "aten::ge",
    "aten::isnan",
    "aten::isinf",
    "aten::isfinite",
)
per_element(1, "aten::isposinf", "aten::isneginf")
per_element(1, "aten::logical_not", "aten::logical_and", "aten::logical_or", "aten::logical_xor")
per_element(
    1,
    "aten::where.self",
    "aten::where.ScalarSelf",
    "aten::where.ScalarOther",
    "aten::where.Scalar",
    "aten::masked_fill",
)
per_element(3, "aten::nan_to_num")  # three comparisons
per_element(1, "aten::exp2", "aten::expm1", "aten::log2", "aten::log10", "aten::log1p")
per_element(1, "aten::exp", complex_flops=5)  # exp, cos, sin, two products
per_element(1, "aten::log", complex_flops=6)  # |x|, its logarithm, the angle
per_element(1, "aten::sqrt", "aten::rsqrt", "aten::pow", "aten::erf", "aten::erfc", "aten::erfinv")
per_element(
    1,
    "aten::sin",
    "aten::cos",
    "aten::tan",
    "aten::asin",
    "aten::acos",
    "aten::atan",
    "aten::atan2",
    "aten::sinh",
    "aten::cosh",
)
per_element(1, "aten::asinh", "aten::acosh", "aten::atanh", "aten::angle")
per_element(
    1,
    "aten::lgamma",
    "aten::digamma",
    "aten::polygamma",
    "aten::i0",
    "aten::special_i0e",
    "aten::special_i1",
    "aten::special_i1e",
)
per_element(
    1,
    "aten::special_erfcx",
    "aten::special_ndtri",
    "aten::special_log_ndtr",
    "aten::special_zeta",
    "aten::igamma",
    "aten::igammac",
)
per_element(1, "aten::deg2rad", "aten::rad2deg")
per_element(4, "aten::hypot")  # two squares, a sum, a root
per_element(4, "aten::polar")  # cos, sin, two products
per_element(3, "aten::sinc")  # x·π, its sine, the quotient
per_element(2, "aten::xlogy", "aten::special_xlog1py", "aten::special_entr", "aten::ldexp")
per_element(
    5, "aten::logaddexp", "aten::logaddexp2"
)  # a difference, its exponential, log(1 + ·), the larger, a sum
per_element(3, "aten::lerp")  # start + weight · (end - start)
per_element(3, "aten::logit")  # log(x / (1 - x))
per_element(2, "aten::_add_relu")
per_element(1, "aten::_conj_physical", "prims::add", "prims::sub", "prims::mul", "prims::div")

declare_costless(
    "aten::view_as_complex",
    "aten::view_as_real",
    "aten::complex",
    "aten::real",
    "aten::imag",
    "aten::frexp",
)
declare_costless(
    "aten::bitwise_and",
    "aten::bitwise_or",
    "aten::bitwise_xor",
    "aten::bitwise_not",
    "aten::bitwise_left_shift",
    "aten::bitwise_right_shift",
)


pointwise(
    "aten::complex",
    "aten::real",
    "aten::imag",
    "aten::frexp",
    "aten::addcmul",
    "aten::addcdiv",
    "aten::add",
    "aten::sub",
    "aten::subtract",
)
pointwise(
    "aten::rsub", "aten::bitwise_and", "aten::bitwise_or", "aten::bitwise_xor", "aten::bitwise_not"
)
pointwise("aten::bitwise_left_shift", "aten::bitwise_right_shift")


@window_of(aten.view_as_real, aten.view_as_complex)
def complex_parts_window(self: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read both parts, which are the last dimension of the real tensor."""
    both = min(len(self.shape), len(out.shape))
    parts = [WHOLE] * (len(self.shape) - both)
    return (look(out, *same_dims(both), *parts),)


@cost_of(aten.addcmul, aten.addcdiv)
def addcmul(self: TensorSpec, *, value: float = 1, out: TensorSpec) -> Work:
    """2 per element for ``self + value · t1 · t2`` (or t1 / t2), 3 if value ≠ 1.

    For complex numbers a sum is 2, a product 6.
    """
    products = 2 if value != 1 else 1
    per_element = 2 + 6 * products if out.dtype.is_complex else 1 + products
    return Work(other_flops=per_element * out.numel)


@cost_of(aten.add, aten.sub, aten.subtract, aten.rsub)
def add(self: TensorSpec, other: object, *, alpha: float = 1, out: TensorSpec) -> Work:
    """FLOPs = numel(out) for ``self ± alpha · other``, numel(other) more if alpha ≠ 1.

    Complex numbers have two parts.
    """
    operations = out.numel
    if alpha != 1:
        operations += other.numel if isinstance(other, TensorSpec) else 1
    return Work(other_flops=real_parts(out) * operations)
