"""Matrix products of two operands, and their windows.

A product of an (m, k) and a (k, n) matrix takes ``m·n·k`` multiply-accumulates, for complex numbers
four times as many. A bias initializes the accumulator and costs nothing, but a scale (``alpha``,
``beta``) other than one costs a multiplication per element that it scales. Only the stored elements
of a sparse operand are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.windows import WHOLE, Looks, broadcast, broadcast_dims, here, look, reduced
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


def real_products(spec: TensorSpec) -> int:
    """Return the real multiply-accumulates in one of these numbers: 4 for complex ones, else 1."""
    return 4 if spec.dtype.is_complex else 1


@cost_of(aten.linear)
def linear(
    input: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *, out: TensorSpec
) -> Work:
    """MACs = numel(out) · in_features.

    A sparse weight multiplies each row by the elements that it stores.
    """
    if weight.sparsity is not None:
        rows = input.numel // max(input.shape[-1], 1)
        return Work(macs=rows * weight.sparsity.stored)
    macs = real_products(out) * out.numel * weight.shape[-1]
    return Work(macs=macs)


@cost_of(aten.linear_backward)
def linear_backward(
    self: TensorSpec,
    grad_output: TensorSpec,
    weight: TensorSpec,
    output_mask: Sequence[bool],
    *,
    out: object,
) -> Work:
    """Return the products of the forward pass for each gradient of input and weight.

    That of the bias is a sum over rows.
    """
    of_input, of_weight, of_bias = output_mask
    products = real_products(weight) * grad_output.numel * weight.shape[-1]
    macs = (of_input + of_weight) * products
    flops = of_bias * (grad_output.numel - weight.shape[0])
    return Work(macs=macs, other_flops=flops)


@window_of(
    aten.linear,
    aten.mkldnn_linear,
    "quantized::linear",
    "quantized::linear_relu",
    "quantized::linear_dynamic",
)
def linear_window(input: TensorSpec, *_: object, out: TensorSpec) -> Looks:
    """Read all elements along the last dimension."""
    return (look(out, *map(here, range(len(input.shape) - 1)), WHOLE),)


@window_of(aten.mm, aten.bmm, aten.matmul, aten.mv, aten.dot, aten.vdot, aten._int_mm)
def matmul_window(self: TensorSpec, other: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read a row of one and a column of the other."""
    has_rows, has_columns = len(self.shape) > 1, len(other.shape) > 1
    kept = [has_rows, has_columns].count(True)
    batch = out.shape[: len(out.shape) - kept]
    left = list(broadcast_dims(self.shape[:-2], batch))
    right = list(broadcast_dims(other.shape[:-2], batch))
    if has_rows:
        left.append(here(len(batch)))
    left.append(WHOLE)
    right.append(WHOLE)
    if has_columns:
        right.append(here(len(out.shape) - 1))
    return (look(out, *left), look(out, *right))


@window_of(aten.addmm, aten.baddbmm, aten.addmv, aten._addmm_activation)
def addmm_window(
    self: TensorSpec, left: TensorSpec, right: TensorSpec, *, out: TensorSpec
) -> Looks:
    """Return the windows of the product, and the place of the added tensor."""
    return (broadcast(self, out), *matmul_window(left, right, out=out))


@window_of(aten.linalg_vecdot)
def dot_along_window(
    x: TensorSpec, y: TensorSpec, *, dim: int = -1, out: TensorSpec
) -> Looks | None:
    """Read all elements along the dimension."""
    if x.shape != y.shape:
        return None
    return (reduced(x, dim, out), reduced(y, dim, out))


@window_of(aten.outer, aten.ger)
def outer_window(self: TensorSpec, vec2: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read one element of each."""
    return (look(out, here(0)), look(out, here(1)))


@cost_of(
    aten.mm,
    aten.bmm,
    aten.matmul,
    aten.mv,
    aten.dot,
    aten.vdot,
    aten._sparse_mm,
    aten._sparse_sparse_matmul,
)
def matmul(self: TensorSpec, other: TensorSpec, *, out: TensorSpec) -> Work:
    """MACs = numel(out) · k, with k the dimension that is summed over.

    If ``self`` is sparse, they are stored elements · columns.

    Of two sparse matrices the products depend on where stored elements meet: at least one for each
    that the result stores.
    """
    if self.sparsity is not None and other.sparsity is not None:
        stored = 0 if out.sparsity is None else out.sparsity.stored
        return Work(macs=real_products(out) * stored, is_lower_bound=True)
    return Work(macs=real_products(out) * _products(self, other, out))


def _products(left: TensorSpec, right: TensorSpec, out: TensorSpec) -> int:
    if left.sparsity is not None:
        return left.sparsity.stored * (right.shape[-1] if len(right.shape) > 1 else 1)
    if right.sparsity is not None:
        return right.sparsity.stored * left.shape[-2]
    return out.numel * left.shape[-1]


@cost_of(aten.addmm, aten.baddbmm, aten.addmv, aten._sparse_addmm, aten.sspaddmm)
def addmm(
    self: TensorSpec,
    left: TensorSpec,
    right: TensorSpec,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k.

    FLOPs + numel(out) if alpha ≠ 1, + numel(self) if beta is neither 0 nor 1.
    """
    macs = real_products(out) * _products(left, right, out)
    flops = _scaling(self, out, beta, alpha)
    return Work(macs=macs, other_flops=flops)


def _scaling(added: TensorSpec, out: TensorSpec, beta: float, alpha: float) -> int:
    """Return a product per scaled element; a complex one is 6 operations."""
    scaled = 0
    if alpha != 1:
        scaled += out.numel
    if beta not in (0, 1):
        scaled += added.numel
    return scaled * (6 if out.dtype.is_complex else 1)


@cost_of("aten::matmul_backward")
def matmul_backward(
    grad: TensorSpec, self: TensorSpec, other: TensorSpec, mask: Sequence[bool], *, out: object
) -> Work:
    """Return the MACs of the forward product once per computed gradient.

    Autograd calls this operator for nested tensors.
    """
    products = real_products(grad) * grad.numel * self.shape[-1]
    return Work(macs=mask.count(True) * products)


@cost_of("aten::_addmm_activation")
def addmm_with_activation(
    self: TensorSpec,
    left: TensorSpec,
    right: TensorSpec,
    *,
    use_gelu: bool = False,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k, then a relu (1 per element) or a gelu by tanh (14)."""
    macs = out.numel * left.shape[-1]
    flops = (14 if use_gelu else 1) * out.numel
    return Work(macs=macs, other_flops=flops)


@cost_of(aten.addbmm)
def addbmm(
    self: TensorSpec,
    batch1: TensorSpec,
    batch2: TensorSpec,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """MACs = b · numel(out) · k, summed over the batch; scaling as in addmm."""
    products = batch1.shape[0] * out.numel * batch1.shape[-1]
    macs = real_products(out) * products
    flops = _scaling(self, out, beta, alpha)
    return Work(macs=macs, other_flops=flops)


@cost_of(aten.addr)
def addr(
    self: TensorSpec,
    vec1: TensorSpec,
    vec2: TensorSpec,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """MACs = n · m; scaling as in addmm."""
    macs = real_products(out) * out.numel
    flops = _scaling(self, out, beta, alpha)
    return Work(macs=macs, other_flops=flops)


@cost_of("aten::sparse_sampled_addmm")
def sampled_addmm(
    self: TensorSpec, mat1: TensorSpec, mat2: TensorSpec, *, out: TensorSpec
) -> Work | None:
    """Return the MACs where ``self`` stores an element: stored elements · k."""
    if self.sparsity is None:
        return None
    macs = self.sparsity.stored * mat1.shape[-1]
    return Work(macs=macs)


@cost_of(aten._int_mm, of_integers=True)
def integer_product(self: TensorSpec, mat2: TensorSpec, *, out: TensorSpec) -> Work:
    """MACs = numel(out) · k, of 8-bit integers."""
    return Work(macs=out.numel * self.shape[-1])


@cost_of(aten.linalg_vecdot)
def dot_along(x: TensorSpec, y: TensorSpec, *, dim: int = -1, out: TensorSpec) -> Work:
    """MACs = numel(out) · k, with k the dimension that is summed over."""
    macs = real_products(out) * out.numel * x.shape[dim]
    return Work(macs=macs)


@cost_of(aten.outer, aten.ger)
def outer(self: TensorSpec, vec2: TensorSpec, *, out: TensorSpec) -> Work:
    """MACs = n · m: a product with k = 1."""
    return Work(macs=real_products(out) * out.numel)
