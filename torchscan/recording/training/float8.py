"""Linear layers that train in 8 bits, with the operators that torchao's ``Float8Linear`` runs.

The operands of each matrix product are cast: the largest absolute value of a tensor, or of each of
its rows, gives a scale, and the scaled and saturated values are stored in 8 bits. The backward pass
keeps the input and the weight in 16 bits, and casts them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.recording.execution.block_scales import MX_BLOCK, quantize_mx
from torchscan.torch_versions import (
    aten,
    import_compiler,
    is_sharded_type,
    local_part,
    sharded_from,
    take_wide_gradients,
)

#: the recipes of torchao, by their names there; "mx": blocks of 32 with scales of 8 bits
Float8 = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp", "mx"]
#: sizes of weights must be multiples of this
_ALIGNED = 16
#: the attribute of an input that is in 8 bits already, as tensor parallelism gathers it
HANDED_OVER = "_torchscan_in_8_bits"
#: the smallest divisor of a scale
_EPSILON = 1e-12


class _Cast(NamedTuple):
    """The way in which an operand is cast to 8 bits."""

    #: True if each row, or column, has a scale
    is_rowwise: bool = False
    dtype: torch.dtype = torch.float8_e4m3fn


class _Casts(NamedTuple):
    """The casts of a recipe. A matrix product whose casts are None runs in 16 bits."""

    inputs: _Cast
    weight: _Cast
    gradient: _Cast
    #: weight of the product that gives the gradient of the input
    weight_again: _Cast
    #: operands of the product that gives the gradient of the weight
    is_weight_gradient_wide: bool = False
    #: True if scales are powers of two
    rounds_scales: bool = False


#: the casts with one scale for a tensor
TENSORWISE = _Casts(_Cast(), _Cast(), _Cast(dtype=torch.float8_e5m2), _Cast())
_ROWWISE = _Cast(is_rowwise=True)
_CASTS: Mapping[str, _Casts] = {
    "tensorwise": TENSORWISE,
    "rowwise": _Casts(_ROWWISE, _ROWWISE, _ROWWISE, _ROWWISE, rounds_scales=True),
    "rowwise_with_gw_hp": _Casts(
        _ROWWISE,
        _ROWWISE,
        _ROWWISE,
        _Cast(),
        is_weight_gradient_wide=True,
        rounds_scales=True,
    ),
}


def required_multiple(recipe: Float8) -> int:
    """Return what the sizes of an 8-bit product are multiples of."""
    return MX_BLOCK if recipe == "mx" else _ALIGNED


def convert_to_float8(
    module: nn.Module,
    recipe: Float8,
    *,
    skip: Collection[str] = ("lm_head",),
    all_gather: bool = False,
) -> list[Float8Linear]:
    """Replace linear layers of a copy of a model in place, and return the new layers.

    A layer stays as it is if its path contains a name of ``skip``, or if a size of its weight is
    not a multiple of 16 (for "mx": 32), which 8-bit products need. With ``all_gather``, FSDP
    gathers their weights in 8 bits.
    """
    # An import within a pass would keep the frames of the pass alive, and their tensors.
    import_compiler()
    multiple = required_multiple(recipe)
    converted: dict[int, Float8Linear] = {}
    for parent, name, layer in _linear_layers(module, skip, multiple):
        if id(layer) not in converted:
            converted[id(layer)] = Float8Linear(layer, recipe, is_gathered=all_gather)
        setattr(parent, name, converted[id(layer)])
    if not converted:
        raise InputError(
            Argument("float8"),
            f" is {recipe!r}, and no layer can be converted: give a model with linear layers "
            f"(torch.nn.Linear) whose sizes are multiples of {multiple}",
        )
    return list(converted.values())


def _linear_layers(
    module: nn.Module, skipped: Collection[str], multiple: int
) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Return the layers to convert, with their parents and their names in these."""
    found = []
    for path, parent in module.named_modules():
        for name, child in parent._modules.items():
            is_skipped = any(each in f"{path}.{name}" for each in skipped)
            # a subclass may compute something else
            if type(child) is not nn.Linear or is_skipped:
                continue
            if not any(size % multiple for size in child.weight.shape):
                found.append((parent, name, child))
    return found


class Float8Linear(nn.Linear):
    """A linear layer whose three matrix products run in 8 bits."""

    def __init__(self, base: nn.Linear, recipe: Float8, *, is_gathered: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features = base.in_features
        self.out_features = base.out_features
        self.weight = base.weight
        self.bias = base.bias
        self.recipe = recipe
        #: True if FSDP all-gathers the weight in 8 bits
        self.is_gathered = is_gathered
        #: the weight and its scale as they were all-gathered in 8 bits, or None
        self.gathered: Quantized | None = None
        #: the gradient of the output as it was all-gathered in 8 bits, or None
        self.gradient: Quantized | None = None
        self.train(base.training)

    def forward(self, states: Tensor) -> Tensor:
        """Return ``states @ weight.T + bias``."""
        handed_over: Quantized | None = getattr(states, HANDED_OVER, None)
        if torch.is_autocast_enabled():
            states = states.to(torch.get_autocast_dtype("cuda"))
        rows = states.reshape(-1, states.shape[-1])
        self._require_aligned(rows.shape[0])
        multiply: Any = _Float8Product.apply
        if self.recipe == "mx":
            multiply = _MxProduct.apply
            product = multiply(rows, self.weight.t())
        else:
            weight = self.weight.t() if self.gathered is None else self.weight
            if self.gathered is not None:
                take_wide_gradients(self.weight, rows.dtype)
            product = multiply(rows, weight, _CASTS[self.recipe], self.gathered, self, handed_over)
        output: Tensor = product.reshape(*states.shape[:-1], product.shape[-1])
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def _require_aligned(self, num_rows: int) -> None:
        """Raise unless the gradient of the weight, a sum over rows, can be computed in 8 bits."""
        multiple = required_multiple(self.recipe)
        is_wide = self.recipe == "rowwise_with_gw_hp" or not self.weight.requires_grad
        if num_rows % multiple and not is_wide:
            raise ValueError(
                f"8-bit products need a multiple of {multiple} rows (sequences × tokens), and "
                f"there are {num_rows}: change the batch size or the length"
            )


class Quantized(NamedTuple):
    """Values in 8 bits, and their scale."""

    values: Tensor
    scale: Tensor

    def t(self) -> Quantized:
        """Return the transposed matrix."""
        return Quantized(self.values.t(), self.scale.t() if self.scale.dim() else self.scale)

    def to_local(self) -> Quantized:
        """Return this rank's part of a matrix that is sharded by tensor parallelism."""
        return Quantized(local_part(self.values), local_part(self.scale))


def quantize(tensor: Tensor, cast: _Cast, dim: int, *, rounds_scale: bool = False) -> Quantized:
    """Return the tensor in 8 bits. With a scale for each row, it is reduced along ``dim``."""
    magnitude = torch.abs(tensor)
    if cast.is_rowwise:
        largest = torch.amax(magnitude, dim=dim, keepdim=True)
    else:
        largest = torch.max(magnitude)
    scale = scale_of(largest, cast.dtype)
    if rounds_scale:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return Quantized(cast_scaled(tensor, scale, cast.dtype), scale)


def scale_of(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale that maps the largest absolute value to that of the type."""
    limit = torch.finfo(dtype).max
    divisor = torch.clamp(largest.to(torch.float64), min=_EPSILON)
    return (limit / divisor).to(torch.float32)


def cast_scaled(tensor: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scaled tensor in 8 bits, saturated."""
    limit = torch.finfo(dtype).max
    scaled = tensor.to(torch.float32) * scale
    return scaled.clamp(min=-limit, max=limit).to(dtype)


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
    is_rowwise = one.scale.dim() > 0 or other.scale.dim() > 0
    scales = _inverse_scales(one, other)
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


def _inverse_scales(one: Quantized, other: Quantized) -> tuple[Tensor, Tensor]:
    """Return the factor of the product: both scales are numbers, or both are of rows."""
    first, second = one.scale, other.scale
    if first.dim() and not second.dim():
        second = second.repeat(other.values.shape[1]).reshape(1, -1)
    elif second.dim() and not first.dim():
        first = first.repeat(one.values.shape[0]).reshape(-1, 1)
    return first.reciprocal(), second.reciprocal()


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
        casts: _Casts,
        gathered: Quantized | None,
        layer: Float8Linear,
        handed_over: Quantized | None,
    ) -> Tensor:
        """Return ``rows @ weight``; ``handed_over``: the rows, if they are in 8 bits already."""
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
    casts: _Casts

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
