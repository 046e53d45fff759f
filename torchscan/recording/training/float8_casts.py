"""Casts of tensors to 8 bits, with a scale for each tensor or for each of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.torch_versions import local_part

#: the smallest divisor of a scale
_EPSILON = 1e-12


class Cast(NamedTuple):
    """The way in which an operand is cast to 8 bits."""

    #: True if each row, or column, has a scale
    is_rowwise: bool = False
    dtype: torch.dtype = torch.float8_e4m3fn


class Casts(NamedTuple):
    """The casts of a recipe. A matrix product whose casts are None runs in 16 bits."""

    inputs: Cast
    weight: Cast
    gradient: Cast
    #: weight of the product that gives the gradient of the input
    weight_again: Cast
    #: operands of the product that gives the gradient of the weight
    is_weight_gradient_wide: bool = False
    #: True if scales are powers of two
    rounds_scales: bool = False


#: the casts with one scale for a tensor
TENSORWISE = Casts(Cast(), Cast(), Cast(dtype=torch.float8_e5m2), Cast())
_ROWWISE = Cast(is_rowwise=True)
CASTS: Mapping[str, Casts] = {
    "tensorwise": TENSORWISE,
    "rowwise": Casts(_ROWWISE, _ROWWISE, _ROWWISE, _ROWWISE, rounds_scales=True),
    "rowwise_with_gw_hp": Casts(
        _ROWWISE,
        _ROWWISE,
        _ROWWISE,
        Cast(),
        is_weight_gradient_wide=True,
        rounds_scales=True,
    ),
}


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


def quantize(tensor: Tensor, cast: Cast, dim: int, *, rounds_scale: bool = False) -> Quantized:
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
