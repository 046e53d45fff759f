"""Shapes of matrix products.

To tell them, torch's own functions import a computer algebra system and a compiler, 0.6 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchscan.recording.execution.layouts import meta_empty
from torchscan.torch_versions import OpOverload, aten


def mm(left: Tensor, right: Tensor) -> Tensor | None:
    """``[n, k] · [k, p] → [n, p]``."""
    if not left.dim() == right.dim() == 2:
        return None
    return _product(left, right)


def bmm(left: Tensor, right: Tensor) -> Tensor | None:
    """``[b, n, k] · [b, k, p] → [b, n, p]``."""
    if not left.dim() == right.dim() == 3:
        return None
    return _product(left, right)


def matmul(left: Tensor, right: Tensor) -> Tensor | None:
    """``[…, n, k] · […, k, p] → […, n, p]``."""
    if not left.dim() == right.dim() >= 2:
        return None
    return _product(left, right)


def addmm(bias: Tensor, left: Tensor, right: Tensor, **factors: Any) -> Tensor | None:
    """Return the product with a bias added to each row or element."""
    if any(isinstance(each, complex) for each in factors.values()):
        return None
    product = mm(left, right)
    if product is None or bias.dtype is not product.dtype:
        return None
    if bias.shape not in (product.shape, product.shape[1:]):
        return None
    return product if bias.is_contiguous() else None


def _product(left: Tensor, right: Tensor) -> Tensor | None:
    *batch, _, inner = left.shape
    *right_batch, right_inner, columns = right.shape
    if left.dtype is not right.dtype or inner != right_inner or batch != right_batch:
        return None
    return meta_empty((*left.shape[:-1], columns), left)


def linear(source: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """``[…, k] · [p, k] → […, p]``."""
    if weight.dim() != 2 or source.dim() == 0:
        return None
    out_features, in_features = weight.shape
    *rows, width = source.shape
    if width != in_features:
        return None
    if bias is not None and bias.shape != (out_features,):
        return None
    return meta_empty((*rows, out_features), source)


def grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the result of one product per group.

    torch's own shape function takes bfloat16 only, the operator other types too.
    """
    groups: tuple[int, ...]
    if left.dim() + right.dim() == 5:
        groups = ()
    elif offs is not None and left.dim() == 2:
        groups = (len(offs),)
    else:
        groups = (left.shape[0],)
    size = (*groups, left.shape[-2], right.shape[-1])
    return torch.empty(size, dtype=out_dtype or left.dtype, device="meta")


PRODUCT_RULES: Mapping[OpOverload, Callable[..., Tensor | None]] = {
    aten.mm.default: mm,
    aten.bmm.default: bmm,
    aten.matmul.default: matmul,
    aten.addmm.default: addmm,
    aten.linear.default: linear,
    aten._grouped_mm.default: grouped_mm,
}
