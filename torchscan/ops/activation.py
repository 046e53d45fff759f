"""Activation functions, softmax, dropout, and their derivatives.

They have the fixed table of docs/conventions.md.

The backward operators count what they compute from the gradient ``g`` and what was saved (the input
``x`` or the output ``y``).
"""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import Output, first_output, per_element, per_input
from torchscan.ops.registry import cost_of, pointwise, window_of
from torchscan.ops.windows import HERE, Along, Look, Looks, Way, broadcast, here, mixed, shifted
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

per_element(1, aten.relu, aten.threshold)
per_element(2, aten.relu6, aten.hardtanh)
per_element(4, aten.leaky_relu, aten._prelu_kernel)
per_element(4, aten.prelu, mixes=True)
per_element(6, aten.elu, aten.selu, aten.celu)
per_element(4, aten.sigmoid, aten.hardsigmoid, aten.softplus)
per_element(6, aten.tanh)
per_element(5, aten.silu, aten.hardswish, aten.log_sigmoid, aten.log_sigmoid_forward)
per_element(5, aten.softmax, aten._softmax, aten._safe_softmax, aten._masked_softmax, mixes=True)
per_element(5, aten.log_softmax, aten._log_softmax, mixes=True)
per_element(11, aten.mish)
per_element(2, aten.hardshrink, aten.softshrink)  # compare, select (subtract)
per_element(5, aten.glu, mixes=True)  # a sigmoid of one half, times the other
per_element(4, aten.rrelu, aten.rrelu_with_noise)

per_element(
    2, aten.threshold_backward, aten.hardshrink_backward, aten.softshrink_backward
)  # compare, select
per_element(3, aten.hardtanh_backward)  # two comparisons, select
per_element(
    3, aten.leaky_relu_backward, aten.rrelu_with_noise_backward
)  # compare, slope · g, select
per_element(5, aten.elu_backward)  # compare, exponential, two products, select
per_element(3, aten.sigmoid_backward, aten.tanh_backward)  # g · (1 − y) · y; g · (1 − y²)
per_element(9, aten.silu_backward)  # s = sigmoid(x), 4; g · s · (1 + x · (1 − s)), 5
per_element(5 + 1, "torchscan::swiglu")  # and the product
# g · u, silu_backward of it, and g · x · s
per_input(1 + 9 + 2, "torchscan::swiglu_backward")
per_input(3, "torchscan::rotate_")  # four products and two sums for each pair
per_element(4, aten.hardsigmoid_backward)  # two comparisons, a product, select
per_element(6, aten.hardswish_backward)  # two comparisons, x/3 + ½, its product with g, select
per_element(6, aten.softplus_backward)  # z = exp(β·x), 2; g · z / (z + 1), 3; compare
per_element(6, aten.log_sigmoid_backward)  # compare, |x|, exponential, a sum, a quotient, a product
per_element(
    20, aten.mish_backward
)  # tanh(softplus(x)), 10; sigmoid(x), 4; g · (t + x · s · (1 − t²)), 6
per_element(7, aten.logit_backward)
per_element(4, aten._softmax_backward_data, mixes=True)  # y · (g − Σ g·y)
per_element(4, aten._log_softmax_backward_data, mixes=True)  # g − exp(y) · Σ g
per_element(4, aten._masked_softmax_backward, mixes=True)
per_element(2, aten.native_dropout_backward, aten._masked_scale)  # g · mask · scale

pointwise(
    aten.gelu, aten.dropout, aten.feature_dropout, aten.alpha_dropout, aten.feature_alpha_dropout
)
pointwise(aten.native_dropout, aten._fused_dropout)


@window_of(aten.softmax, aten._softmax, aten._safe_softmax, aten.log_softmax, aten._log_softmax)
def softmax_window(self: TensorSpec, dim: int, *_: object, out: TensorSpec) -> Looks:
    """Read all elements along the dimension."""
    return (mixed(self, dim, out),)


@window_of(aten.prelu)
def prelu_window(self: TensorSpec, weight: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read the input at the same place, and the weight as a whole."""
    return (broadcast(self, out),)


@window_of(aten.glu)
def glu_window(self: TensorSpec, dim: int = -1, *, out: TensorSpec) -> Looks:
    """Read the element at the same place of each half."""
    rank = len(self.shape)
    dim %= rank
    dims = [here(at) for at in range(rank)]
    ways = []
    for half in (HERE, shifted(out.shape[dim])):
        dims[dim] = Along(dim, half)
        ways.append(Way((Look(tuple(dims), out.shape),)))
    return (tuple(ways),)


_GELU = {"none": 5, "tanh": 14}
# cdf = ½ (1 + erf(x/√2)), 4; pdf = c · exp(−½ x²), 4; g · (cdf + x · pdf), 3
# by tanh: its argument, 5; tanh, 6; the derivatives of both, 6; the rest of the product rule, 6
_GELU_BACKWARD = {"none": 11, "tanh": 23}


@cost_of(aten.gelu)
def gelu(self: TensorSpec, *, approximate: str = "none", out: TensorSpec) -> Work:
    """FLOPs = 5 per element by the error function, 14 by the hyperbolic tangent."""
    return Work(other_flops=_GELU[approximate] * out.numel)


@cost_of(aten.gelu_backward)
def gelu_backward(
    grad: TensorSpec, self: TensorSpec, *, approximate: str = "none", out: TensorSpec
) -> Work:
    """FLOPs = 11 per element by the error function, 23 by the hyperbolic tangent."""
    return Work(other_flops=_GELU_BACKWARD[approximate] * out.numel)


@cost_of(aten._prelu_kernel_backward)
def prelu_backward(grad: TensorSpec, self: TensorSpec, weight: TensorSpec, *, out: Output) -> Work:
    """5 per element: a comparison, and two products and two selections for input and weight."""
    return Work(other_flops=5 * self.numel)


@cost_of(aten.glu_backward)
def glu_backward(grad: TensorSpec, self: TensorSpec, dim: int, *, out: TensorSpec) -> Work:
    """A sigmoid, ``g·s`` and ``g·a·s·(1 − s)`` for each element of one half: 9 each."""
    return Work(other_flops=9 * grad.numel)


@cost_of(aten.dropout, aten.feature_dropout, aten.alpha_dropout, aten.feature_alpha_dropout)
def dropout(input: TensorSpec, p: float, train: bool, *, out: TensorSpec) -> Work:
    """FLOPs = 2 per element in training (draw, scale); it does not run in evaluation."""
    return Work(other_flops=2 * out.numel if train else 0)


@cost_of(aten.native_dropout)
def native_dropout(
    input: TensorSpec, p: float, train: bool | None, *, out: tuple[TensorSpec, ...]
) -> Work:
    """FLOPs = 2 per element in training, the default (draw, scale).

    The mask is written, too.
    """
    return Work(other_flops=0 if train is False else 2 * out[0].numel)


@cost_of(aten._fused_dropout)
def fused_dropout(self: TensorSpec, *_: object, out: Output) -> Work:
    """FLOPs = 2 per element (draw, scale): this operator runs in training only."""
    return Work(other_flops=2 * first_output(out).numel)
