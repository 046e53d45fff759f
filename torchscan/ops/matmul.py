"""Matrix products, and everything that is one in disguise.

A product of an (m, k) and a (k, n) matrix takes ``m·n·k`` multiply-accumulates, for complex numbers
four times as many. A bias initialises the accumulator and costs nothing, but a scale (``alpha``,
``beta``) other than one costs a multiplication per element that it scales. Only the stored elements
of a sparse operand are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchscan.ops.elementwise import per_element, per_input
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of, declare_costless, window_of
from torchscan.ops.windows import WHOLE, Looks, broadcast, broadcast_dims, here, look, reduced
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


def real_products(spec: TensorSpec) -> int:
    """Real multiply-accumulates in one multiply-accumulate of such numbers: complex ones take 4."""
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
    """Products as in the forward pass for each gradient of input and weight.

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
    """All elements along the last dimension."""
    return (look(out, *map(here, range(len(input.shape) - 1)), WHOLE),)


@window_of(aten.mm, aten.bmm, aten.matmul, aten.mv, aten.dot, aten.vdot, aten._int_mm)
def matmul_window(self: TensorSpec, other: TensorSpec, *, out: TensorSpec) -> Looks:
    """A row of one and a column of the other."""
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
    """All elements along the dimension."""
    if x.shape != y.shape:
        return None
    return (reduced(x, dim, out), reduced(y, dim, out))


@window_of(aten.outer, aten.ger)
def outer_window(self: TensorSpec, vec2: TensorSpec, *, out: TensorSpec) -> Looks:
    """One element of each."""
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
    """A product per scaled element; a complex one is 6 operations."""
    scaled = 0
    if alpha != 1:
        scaled += out.numel
    if beta not in (0, 1):
        scaled += added.numel
    return scaled * (6 if out.dtype.is_complex else 1)


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
    """Computed only where ``self`` stores an element: MACs = stored elements · k."""
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


@cost_of(aten.bilinear)
def bilinear(
    input1: TensorSpec,
    input2: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    *,
    out: TensorSpec,
) -> Work:
    """MACs = N·O·I·J for x1·W, N·O·J for x2.

    ``out[n, o] = Σ_j (Σ_i x1[n, i] W[o, i, j]) x2[n, j]``.
    """
    _, left, right = weight.shape
    macs = real_products(out) * out.numel * (left * right + right)
    return Work(macs=macs)


@cost_of(aten._trilinear)
def trilinear(
    i1: TensorSpec,
    i2: TensorSpec,
    i3: TensorSpec,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
    *,
    out: TensorSpec,
) -> Work:
    """Return the cost of ``Σ i1·i2·i3`` over ``sumdim``, slice by slice of ``unroll_dim``.

    Bilinear layers and their gradients call it. The first product, i1·i2, is summed over the
    dimensions that i3 lacks: a MAC for each combination of dimensions. Its result times i3 follows.
    """
    left = _expanded(i1.shape, expand1)
    middle = _expanded(i2.shape, expand2)
    right = _expanded(i3.shape, expand3)
    slices = max(left[unroll_dim], middle[unroll_dim], right[unroll_dim])
    for sizes in (left, middle, right):
        sizes[unroll_dim] = 1
    # A size of 0 stays, a size of 1 is stretched.
    pair = [max(sizes) if 0 not in sizes else 0 for sizes in zip(left, middle, strict=True)]
    summed = set(sumdim) & set(expand3)
    kept = [1 if dim in summed else size for dim, size in enumerate(pair)]
    together = [max(one, other) for one, other in zip(kept, right, strict=True)]
    macs = real_products(out) * slices * (math.prod(pair) + math.prod(together))
    return Work(macs=macs)


def _expanded(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Return the shape with a size of one inserted at each of ``dims``.

    These are positions in the result.
    """
    expanded = list(shape)
    for dim in sorted(dims):
        expanded.insert(dim, 1)
    return expanded


@cost_of(aten.linalg_multi_dot)
def multi_dot(tensors: Sequence[TensorSpec], *, out: TensorSpec) -> Work:
    """Return the MACs of the cheapest order, which the operator picks.

    ``m[i,j] = min_k m[i,k] + m[k+1,j] + d_i·d_{k+1}·d_{j+1}``.
    """
    sizes = [tensors[0].shape[0] if len(tensors[0].shape) == 2 else 1]
    sizes += [spec.shape[0] for spec in tensors[1:]]
    sizes.append(tensors[-1].shape[1] if len(tensors[-1].shape) == 2 else 1)
    return Work(macs=real_products(out) * _cheapest_chain(sizes))


def _cheapest_chain(sizes: list[int]) -> int:
    length = len(sizes) - 1
    best = [[0] * length for _ in range(length)]
    for span in range(1, length):
        for first in range(length - span):
            last = first + span
            counts = []
            for cut in range(first, last):
                product = sizes[first] * sizes[cut + 1] * sizes[last + 1]
                counts.append(best[first][cut] + best[cut + 1][last] + product)
            best[first][last] = min(counts)
    return best[0][-1]


# -- distances -------------------------------------------------------------------------------------


@cost_of(aten.cdist, aten._cdist_forward, aten._euclidean_dist)
def pairwise_distances(
    x1: TensorSpec, x2: TensorSpec, p: float = 2.0, *_: object, out: TensorSpec
) -> Work:
    """M differences per pair.

    Euclidean: their squares are multiply-accumulates, M per pair, and a root.

    Other norms only add: |d| summed or compared (p = 1, ∞: 2M per pair), d ≠ 0 counted (p = 0: 2M),
    or |d|^p summed and a root (3M + 1).
    """
    return _distances(out.numel, x1.shape[-1], p)


@cost_of(aten.pdist, aten._pdist_forward)
def distances_within(self: TensorSpec, p: float = 2.0, *, out: TensorSpec) -> Work:
    """The distance of each pair of rows: as above, for n (n − 1) / 2 pairs."""
    return _distances(out.numel, self.shape[-1], p)


def _distances(pairs: int, length: int, p: float) -> Work:
    if p == 2:
        flops = pairs * (length + 1)
        return Work(macs=pairs * length, other_flops=flops)
    if p in (0, 1, math.inf):
        return Work(other_flops=3 * pairs * length)
    return Work(other_flops=pairs * (4 * length + 1))


@cost_of(aten._cdist_backward)
def pairwise_distances_backward(
    grad: TensorSpec, x1: TensorSpec, x2: TensorSpec, p: float, *_: object, out: TensorSpec
) -> Work:
    """``g · d / distance`` summed over the other points.

    Euclidean: a difference and a multiply-accumulate per pair and coordinate, a quotient per pair.
    Other norms: a difference, a sign or power, two products, a sum per coordinate.
    """
    terms = grad.numel * x1.shape[-1]
    if p == 2:
        return Work(macs=terms, other_flops=terms + grad.numel)
    return Work(other_flops=5 * terms)


# -- quantised, packed and structured weights ------------------------------------------------------


@cost_of("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_product(
    self: TensorSpec, mat2: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k, in 8 or 4 bits; a product with the scales per output.

    Packed fp4 has two numbers per element.
    """
    packed = 2 if self.dtype == getattr(torch, "float4_e2m1fn_x2", None) else 1
    macs = out.numel * self.shape[-1] * packed
    return Work(macs=macs, other_flops=out.numel)


@cost_of("torchscan::quantize_mx")
def quantize_in_blocks(matrix: TensorSpec, *_: object, out: tuple[TensorSpec, ...]) -> Work:
    """Each element: absolute value, comparison, quotient; each block of 32: ÷, log2, ceil, exp2."""
    blocks = matrix.numel // 32
    flops = 2 * matrix.numel + (matrix.numel - blocks) + 4 * blocks
    return Work(other_flops=flops)


@cost_of(aten._weight_int8pack_mm)
def product_with_8_bit_weight(
    self: TensorSpec, mat2: TensorSpec, scales: TensorSpec, *, out: TensorSpec
) -> Work:
    """MACs = numel(out) · k; a product with the scale per output."""
    macs = out.numel * self.shape[-1]
    return Work(macs=macs, other_flops=out.numel)


@cost_of(
    aten._weight_int4pack_mm,
    "aten::_weight_int4pack_mm_for_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros",
)
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
    macs = out.numel * x.shape[-1]
    return Work(macs=macs, other_flops=math.prod(shape))


@cost_of("bitsandbytes::int8_scaled_mm", "bitsandbytes::int8_linear_matmul")
def product_of_8_bits(
    x: TensorSpec, weight: TensorSpec, *scales: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k; with scales of rows and columns, two products per output."""
    macs = out.numel * x.shape[-1]
    flops = 2 * out.numel if scales else 0
    return Work(macs=macs, other_flops=flops)


@cost_of("aten::_dyn_quant_matmul_4bit")
def dynamic_product_with_4_bit_weight(inp: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """MACs = numel(out) · k; each input is scaled and rounded (2), each output scaled (1)."""
    macs = out.numel * inp.shape[-1]
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
    macs = out.numel * input.shape[-1]
    return Work(macs=macs, other_flops=out.numel)


@cost_of("aten::_sparse_semi_structured_linear")
def semi_structured_linear(
    input: TensorSpec, weight: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """MACs = numel(out) · k / 2: two of four weights are stored, in a tensor k / 2 wide."""
    return Work(macs=out.numel * weight.shape[-1])


@cost_of("aten::_sparse_semi_structured_mm", "aten::_sparse_semi_structured_addmm")
def semi_structured_product(*operands: TensorSpec, out: TensorSpec, **_kwargs: object) -> Work:
    """MACs = numel(out) · k / 2, as in ``semi_structured_linear``.

    The stored matrix comes before the metadata with the positions of its elements.
    """
    stored = operands[-3]
    return Work(macs=out.numel * stored.shape[-1])


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
    macs = out.numel * x.shape[-1]
    return Work(macs=macs, other_flops=2 * out.numel)


@cost_of(aten.mkldnn_linear)
def prepacked_linear(x: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object) -> Work:
    """MACs = numel(out) · in_features."""
    return Work(macs=out.numel * x.shape[-1])


per_element(
    4, "aten::quantize_per_tensor", "aten::quantize_per_channel"
)  # scale, round, two comparisons
per_element(
    5, "aten::quantize_per_tensor_dynamic"
)  # and the extremes of all elements, one comparison each
per_element(2, "aten::dequantize")  # zero point, scale
for _library in ("bitsandbytes", "torchscan"):  # ours stand for theirs, without data
    # scales of the row and the column
    per_element(2, f"{_library}::int8_mm_dequant", mixes=True)
    # the scale of a block
    per_element(1, f"{_library}::dequantize_blockwise", mixes=True)
    # absolute value, comparison, scale, rounding
    per_input(4, f"{_library}::int8_vectorwise_quant")
per_element(1, "bitsandbytes::dequantize_4bit", mixes=True)  # the scale of a block


@cost_of("torchscan::dequantize_4bit")
def dequantize_4bit(*_: object, out: TensorSpec) -> Work:
    """1 per weight: the scale of its block."""
    return Work(other_flops=out.numel)


@cost_of("torchscan::product_of_4bit", "torchscan::transposed_product_of_4bit")
def product_that_dequantizes(x: TensorSpec, *_: object, out: TensorSpec) -> Work:
    """MACs = numel(out) · k; two operations per weight (zero point, scale) to unpack it."""
    columns, inner = out.shape[-1], x.shape[-1]
    flops = 2 * columns * inner
    return Work(macs=out.numel * inner, other_flops=flops)


per_element(
    6, "aten::fake_quantize_per_tensor_affine", "aten::fake_quantize_per_channel_affine"
)  # both
per_element(
    6,
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::fake_quantize_per_channel_affine_cachemask",
)
per_element(6, "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
#: quantisation-aware training: the least and the largest element are sought, then as above
per_element(6 + 2, "aten::_fused_moving_avg_obs_fq_helper", "aten::fused_moving_avg_obs_fake_quant")
per_element(1, "aten::fake_quantize_per_tensor_affine_cachemask_backward")
per_element(1, "aten::fake_quantize_per_channel_affine_cachemask_backward")
per_element(
    7, "quantized::add", "quantized::mul", "quantized::add_relu", "quantized::mul_relu"
)  # two unpacked, one packed
per_element(2, "quantized::add_scalar", "quantized::mul_scalar", "quantized::relu6")
per_element(4, "quantized::leaky_relu", "quantized::sigmoid")
per_element(5, "quantized::hardswish")
per_element(5, "quantized::softmax", mixes=True)
per_element(6, "quantized::elu", "quantized::celu")
declare_costless(
    "aten::int_repr",
    "aten::q_scale",
    "aten::q_zero_point",
    "quantized::cat",
    "quantized::linear_prepack",
)
declare_costless("aten::_convert_weight_to_int4pack", "aten::_convert_weight_to_int4pack_for_cpu")
declare_costless(
    "aten::_make_per_tensor_quantized_tensor",
    "aten::_make_per_channel_quantized_tensor",
    "aten::_empty_affine_quantized",
)
