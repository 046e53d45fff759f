"""Shapes of matrix products: torch's own functions import a computer algebra system and a compiler to tell them, 0.6 s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchscan.torch_versions import OpOverload, aten


def mm(left: Tensor, right: Tensor) -> Tensor | None:
    """``[n, k] · [k, p] → [n, p]``."""
    return _product(left, right) if left.dim() == right.dim() == 2 else None


def bmm(left: Tensor, right: Tensor) -> Tensor | None:
    """``[b, n, k] · [b, k, p] → [b, n, p]``."""
    return _product(left, right) if left.dim() == right.dim() == 3 else None


def matmul(left: Tensor, right: Tensor) -> Tensor | None:
    """``[…, n, k] · […, k, p] → […, n, p]``."""
    return _product(left, right) if left.dim() == right.dim() >= 2 else None


def addmm(bias: Tensor, left: Tensor, right: Tensor, **factors: Any) -> Tensor | None:
    """Return the product with a bias added to each row or element."""
    is_real = not any(isinstance(each, complex) for each in factors.values())
    return _with(bias, mm(left, right)) if is_real else None


def _with(bias: Tensor, product: Tensor | None) -> Tensor | None:
    fits = (
        product is not None
        and bias.dtype is product.dtype
        and bias.shape in (product.shape, product.shape[1:])
    )
    return product if fits and bias.is_contiguous() else None


def _product(left: Tensor, right: Tensor) -> Tensor | None:
    fits = (
        left.dtype is right.dtype
        and left.shape[-1] == right.shape[-2]
        and left.shape[:-2] == right.shape[:-2]
    )
    return (
        torch.empty((*left.shape[:-1], right.shape[-1]), dtype=left.dtype, device="meta")
        if fits
        else None
    )


PRODUCT_RULES: Mapping[OpOverload, Callable[..., Tensor | None]] = {
    aten.mm.default: mm,
    aten.bmm.default: bmm,
    aten.matmul.default: matmul,
    aten.addmm.default: addmm,
}
