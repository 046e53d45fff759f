"""Matrix products in 8 bits, with the operators of torchao, and their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchscan.recording.execution.block_scales import quantize_mx
from torchscan.recording.training.float8_casts import Casts, Quantized, quantize
from torchscan.torch_versions import aten, call_of, is_sharded_type, local_part, sharded_from


def _multiply(one: Quantized, other: Quantized, dtype: torch.dtype, *, is_fast: bool) -> Tensor:
    """Return the product. The kernel takes rows of the first matrix, and columns of the second."""
    placements = _placements_of_product(one.values, other.values)
    if placements is not None:
        parts = _multiply(one.to_local(), other.to_local(), dtype, is_fast=is_fast)
        sharded: Any = one.values
        return sharded_from(parts, sharded.device_mesh, placements)
    values, others = one.values, other.values
    if not _is_row_major(values):
        values = values.contiguous()
    if _is_row_major(others):
        others = others.t().contiguous().t()
    is_rowwise = one.scale.dim() > 0
    column_scale = other.scale
    if is_rowwise and not column_scale.dim():  # only this one may be of the complete matrix
        column_scale = column_scale.repeat(others.shape[1]).reshape(1, -1)
    scales = one.scale.reciprocal(), column_scale.reciprocal()
    out_dtype, after = dtype, None
    if is_rowwise and not is_fast:
        # This kernel is slow without fast accumulation, so torchao scales afterwards.
        after = scales[0] * scales[1]
        scales = (scales[0].new_ones(()), scales[1].new_ones(()))
    if is_rowwise and dtype != torch.bfloat16:
        out_dtype = torch.bfloat16  # the only one that it writes
    product: Tensor = aten._scaled_mm(
        values,
        others,
        scale_a=scales[0],
        scale_b=scales[1],
        out_dtype=out_dtype,
        use_fast_accum=is_fast,
    )
    if after is not None:
        product *= after
    return product.to(dtype)


def _placements_of_product(one: Any, other: Any) -> tuple[Any, ...] | None:
    """Return how the product of two sharded matrices is placed if each rank multiplies its parts.

    None: they are not sharded, or torch has to redistribute one of them.
    """
    if not (is_sharded_type(type(one)) and is_sharded_type(type(other))):
        return None
    from torch.distributed.tensor import Partial, Replicate, Shard

    alone = Replicate()
    by_operands: dict[tuple[Any, Any], Any] = {
        (alone, alone): alone,
        (Shard(0), alone): Shard(0),
        (alone, Shard(1)): Shard(1),
        (Shard(1), Shard(0)): Partial(),
    }
    pairs = zip(one.placements, other.placements, strict=True)
    placements = tuple(by_operands.get(pair) for pair in pairs)
    return None if None in placements else placements


def _is_row_major(matrix: Tensor) -> bool:
    outer, inner = matrix.stride()
    return outer > inner and inner == 1


class _Float8Product(torch.autograd.Function):
    """A product in 8 bits whose gradients are computed in 8 bits too."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        casts: Casts,
        gathered: Quantized | None,
        layer: Any,
        handed_over: Quantized | None,
    ) -> Tensor:
        """Return ``rows @ weight``.

        ``layer`` holds the gradient of the output, if that is all-gathered; ``handed_over`` has the
        rows, if they are in 8 bits already.
        """
        ctx.casts = casts
        ctx.gathered = gathered
        ctx.layer = layer
        rounds = casts.rounds_scales
        left = handed_over or quantize(rows, casts.inputs, -1, rounds_scale=rounds)
        ctx.save_for_backward(*(handed_over or (rows, None)), weight)
        if gathered is None:
            right = quantize(weight, casts.weight, 0, rounds_scale=rounds)
        else:
            right = gathered.t()
        return _multiply(left, right, rows.dtype, is_fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the rows and of the weight, as far as they are needed."""
        (gradient,) = gradients
        rows, scale, weight = ctx.saved_tensors
        operands = _Operands(gradient, ctx.layer.gradient, weight, ctx.gathered, ctx.casts)
        ctx.layer.gradient = None
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = operands.gradient_of_rows()
        if ctx.needs_input_grad[1]:
            cast = None if scale is None else Quantized(rows, scale)
            of_weight = operands.gradient_of_weight(rows, cast)
            # the weight is transposed before the call, unless it was all-gathered in 8 bits
            of_weight = of_weight.t() if ctx.gathered is None else of_weight
        return of_rows, of_weight, None, None, None, None


class _Operands(NamedTuple):
    """Operands of the two products of a backward pass."""

    gradient: Tensor
    #: the gradient and the weight, if they are in 8 bits already
    gathered_gradient: Quantized | None
    weight: Tensor
    gathered: Quantized | None
    casts: Casts

    def _gradient(self, dim: int) -> Quantized:
        if self.gathered_gradient is not None:
            return self.gathered_gradient
        rounds = self.casts.rounds_scales
        return quantize(self.gradient, self.casts.gradient, dim, rounds_scale=rounds)

    def gradient_of_rows(self) -> Tensor:
        left = self._gradient(-1)
        if self.gathered is None:
            rounds = self.casts.rounds_scales
            right = quantize(self.weight, self.casts.weight_again, -1, rounds_scale=rounds)
        else:
            right = self.gathered.t()
        return _multiply(left, right.t(), self.gradient.dtype, is_fast=False)

    def gradient_of_weight(self, rows: Tensor, cast: Quantized | None) -> Tensor:
        if self.casts.is_weight_gradient_wide:
            return torch.mm(self.gradient.t(), rows)
        rounds = self.casts.rounds_scales
        left = self._gradient(0)
        right = cast or quantize(rows, self.casts.inputs, 0, rounds_scale=rounds)
        return _multiply(left.t(), right, self.gradient.dtype, is_fast=False)


class _MxProduct(torch.autograd.Function):
    """A product of matrices with a scale for 32 numbers each, along the dimension of the sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        """Return ``rows @ weight``."""
        ctx.save_for_backward(rows, weight)
        return _multiply_blocks(rows, weight.t(), -1, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the rows and of the weight, as far as they are needed."""
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = _multiply_blocks(gradient, weight.t(), -1, 0)
        if ctx.needs_input_grad[1]:
            of_weight = _multiply_blocks(gradient, rows, 0, 0).t()
        return of_rows, of_weight


def _multiply_blocks(one: Tensor, other: Tensor, dim: int, other_dim: int) -> Tensor:
    """Return the product of two matrices over one dimension of each."""
    left = one if dim == -1 else one.t()
    right = other.t() if other_dim == -1 else other
    placements = _placements_of_product(left, right)
    if placements is not None:
        part = _multiply_blocks(local_part(one), local_part(other), dim, other_dim)
        sharded: Any = one
        return sharded_from(part, sharded.device_mesh, placements)
    values, scales = quantize_mx(one, dim)
    others, other_scales = quantize_mx(other, other_dim)
    product: Tensor = aten._scaled_mm(
        values, others.t(), scale_a=scales, scale_b=other_scales, out_dtype=one.dtype
    )
    return product


multiply_in_8_bits = call_of(_Float8Product)
multiply_blocks = call_of(_MxProduct)
