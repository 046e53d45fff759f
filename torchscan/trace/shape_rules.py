"""Shapes of results that torch's own shape functions refuse to give, or give for some types only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


def _grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """One product per group. torch's own shape function takes bfloat16 only, the operator other types too."""
    groups = () if left.dim() + right.dim() == 5 else (len(offs) if offs is not None and left.dim() == 2 else left.shape[0],)
    size = (*groups, left.shape[-2], right.shape[-1])
    return torch.empty(size, dtype=out_dtype or left.dtype, device="meta")


SHAPE_RULES: Mapping[OpOverload, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm}
