"""Products in 8 bits, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.versions import before, needs
from torchscan.recording.training.float8_casts import CASTS, quantize
from torchscan.recording.training.float8_products import multiply_blocks, multiply_in_8_bits

WIDTH = 272


def multiply(rows: Tensor, weight: Tensor, recipe: str, **options: Any) -> Any:
    layer = SimpleNamespace(gradient=options.get("gradient"))
    return multiply_in_8_bits(rows, weight, CASTS[recipe], None, layer, None), layer


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """16 rows of ones, and 16 columns of 271 ones and a two: numbers that 8 bits have exactly."""
    rows = torch.ones(16, WIDTH, dtype=dtype)
    weight = torch.ones(WIDTH, 16, dtype=dtype)
    weight[0] = 2
    return rows, weight


@before("2.13", "_scaled_mm does not run on a CPU, or takes scales of tensors only")
@pytest.mark.parametrize(
    ("recipe", "expected"),
    [("tensorwise", 273), ("rowwise", 272), ("rowwise_with_gw_hp", 272)],
)
def test_the_kernel_with_scales_of_rows_writes_16_bits(recipe: str, expected: float) -> None:
    """273 needs nine bits, of which bfloat16 has eight: it rounds to 272, as an even number."""
    product, _ = multiply(*operands(torch.float32), recipe)
    assert product.dtype == torch.float32
    assert product.unique().tolist() == [pytest.approx(expected, rel=1e-5)]


@before("2.13", "_scaled_mm does not run on a CPU, or takes scales of tensors only")
@pytest.mark.parametrize("recipe", CASTS)
@pytest.mark.parametrize(("of_rows", "of_weight"), [(True, False), (False, True), (True, True)])
def test_gradients_are_computed_as_far_as_they_are_needed(
    recipe: str, of_rows: bool, of_weight: bool
) -> None:
    """Of the sum, that of a row is the sum of each row of the weight; of the weight, of 16 ones."""
    rows, weight = operands(torch.bfloat16)
    rows.requires_grad_(of_rows)
    weight.requires_grad_(of_weight)
    product, _ = multiply(rows, weight, recipe)
    product.sum().backward()
    assert (rows.grad is not None, weight.grad is not None) == (of_rows, of_weight)
    if rows.grad is not None:
        assert rows.grad[:, 0].unique().tolist() == [32]
        assert rows.grad[:, 1:].unique().tolist() == [16]
    if weight.grad is not None:
        assert weight.grad.unique().tolist() == [16]


@before("2.13", "_scaled_mm does not run on a CPU, or takes scales of tensors only")
def test_a_gradient_in_8_bits_is_not_cast_again() -> None:
    """The layer has one of twos where the step's own is of ones."""
    rows, weight = (each.requires_grad_() for each in operands(torch.bfloat16))
    casts = CASTS["tensorwise"]
    product, layer = multiply(rows, weight, "tensorwise")
    layer.gradient = quantize(2 * torch.ones(16, 16, dtype=torch.bfloat16), casts.gradient, -1)
    product.sum().backward()
    assert rows.grad is not None
    assert weight.grad is not None
    assert rows.grad[0, :2].tolist() == [64, 32]
    assert weight.grad.unique().tolist() == [32]
    assert layer.gradient is None, "it is of one backward pass"


@needs("float4_e2m1fn_x2")
@pytest.mark.parametrize(("of_rows", "of_weight"), [(True, False), (False, True), (True, True)])
def test_gradients_of_blocks_are_computed_as_far_as_they_are_needed(
    of_rows: bool, of_weight: bool
) -> None:
    """On shapes alone: a CPU has no products of blocks."""
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": "meta"}
    rows = torch.empty(32, 64, requires_grad=of_rows, **options)
    weight = torch.empty(64, 96, requires_grad=of_weight, **options)
    product = multiply_blocks(rows, weight)
    assert (product.shape, product.dtype) == ((32, 96), torch.bfloat16)
    product.sum().backward()
    assert (rows.grad is not None, weight.grad is not None) == (of_rows, of_weight)
