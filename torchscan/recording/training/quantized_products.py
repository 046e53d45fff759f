"""Matrix products with frozen weights in 4 or 8 bits, by the operators of their libraries.

The operators are defined here without values, so the libraries need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.torch_versions import aten, call_of

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define(
    "dequantize_4bit(Tensor packed, Tensor[] scales, int[] shape, ScalarType dtype) -> Tensor"
)
_library.define("dequantize_blockwise(Tensor packed, Tensor scales, Tensor code) -> Tensor")
_library.define("int8_vectorwise_quant(Tensor rows) -> (Tensor, Tensor)")
_library.define(
    "int8_mm_dequant(Tensor product, Tensor row_scales, Tensor column_scales) -> Tensor"
)
_library.define("product_of_4bit(Tensor x, Tensor packed, Tensor[] scales, int width) -> Tensor")
_library.define(
    "transposed_product_of_4bit(Tensor x, Tensor packed, Tensor[] scales, int width) -> Tensor"
)


class _Dequantized(torch.autograd.Function):
    """A matrix product whose weight is dequantized for it, and again for the gradient."""

    @staticmethod
    def forward(
        context: Any, given: Tensor, packed: Tensor, dequantize: Callable[[], Tensor]
    ) -> Tensor:
        """Keep the packed weight alone."""
        context.save_for_backward(packed)
        context.dequantize = dequantize
        return nn.functional.linear(given, dequantize())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradient of the input."""
        weight = context.dequantize().to(gradient.dtype)
        return torch.matmul(gradient, weight), None, None


class _Fused(torch.autograd.Function):
    """A matrix product whose kernel dequantizes the weight in registers."""

    @staticmethod
    def forward(
        context: Any, given: Tensor, packed: Tensor, scales: list[Tensor], width: int
    ) -> Tensor:
        """Keep the packed weight alone."""
        context.save_for_backward(packed, *scales)
        context.width = given.shape[-1]
        rows = given.reshape(-1, given.shape[-1])
        product: Tensor = torch.ops.torchscan.product_of_4bit(rows, packed, scales, width)
        return product.reshape(*given.shape[:-1], width)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradient of the input."""
        packed, *scales = context.saved_tensors
        width = context.width
        rows = gradient.reshape(-1, gradient.shape[-1])
        product = torch.ops.torchscan.transposed_product_of_4bit(rows, packed, scales, width)
        return product.reshape(*gradient.shape[:-1], width), None, None, None


class _Int8Product(torch.autograd.Function):
    """A product of rows and a weight in 8 bits, whose input is kept as it is."""

    @staticmethod
    def forward(context: Any, given: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        """Quantize rows, multiply in 8 bits, and scale the sums of 32 bits."""
        context.save_for_backward(given, weight, scales)
        rows = given.reshape(-1, given.shape[-1]).to(torch.float16)
        packed, row_scales = torch.ops.torchscan.int8_vectorwise_quant(rows)
        sums = aten._int_mm.default(packed, weight.t())
        product: Tensor = torch.ops.torchscan.int8_mm_dequant(sums, row_scales, scales)
        return product.to(given.dtype).reshape(*given.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradient of the input, by the dequantized weight."""
        given, weight, scales = context.saved_tensors
        dequantized = weight.to(given.dtype, copy=True)
        dequantized.mul_(scales.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(gradient, dequantized.to(gradient.dtype)), None, None


multiply_dequantized = call_of(_Dequantized)
multiply_fused = call_of(_Fused)
multiply_8_bits = call_of(_Int8Product)


@torch.library.impl(_library, "dequantize_4bit", "CompositeExplicitAutograd")
def make_weight(packed: Tensor, _scales: object, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Return the dequantized weight, without values."""
    return packed.new_empty(shape, dtype=dtype)


@torch.library.impl(_library, "dequantize_blockwise", "CompositeExplicitAutograd")
def make_scales(packed: Tensor, scales: Tensor, _code: object) -> Tensor:
    """Return the dequantized scales, without values."""
    return scales.new_empty(packed.shape)


@torch.library.impl(_library, "int8_vectorwise_quant", "CompositeExplicitAutograd")
def make_rows_of_8_bits(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in 8 bits and a scale for each, without values."""
    scales = rows.new_empty(rows.shape[0], dtype=torch.float32)
    return rows.new_empty(rows.shape, dtype=torch.int8), scales


@torch.library.impl(_library, "int8_mm_dequant", "CompositeExplicitAutograd")
def make_product_of_16_bits(sums: Tensor, *_: object) -> Tensor:
    """Return the scaled product, without values."""
    return sums.new_empty(sums.shape, dtype=torch.float16)


@torch.library.impl(_library, "product_of_4bit", "CompositeExplicitAutograd")
@torch.library.impl(_library, "transposed_product_of_4bit", "CompositeExplicitAutograd")
def make_product(rows: Tensor, _packed: object, _scales: object, width: int) -> Tensor:
    """Return the product with a packed weight, without values."""
    return rows.new_empty(rows.shape[0], width)
