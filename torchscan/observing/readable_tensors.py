"""Checks of which tensors can be read: dense ones, and types that hold their own values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchscan.torch_versions import is_functorch_wrapped, is_sharded_type, is_transforming

_PLAIN = frozenset({Tensor, nn.Parameter})
_USUAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def is_readable(tensor: Tensor) -> bool:
    """Return whether a tensor can hold non-finite values and can be read."""
    is_usual = type(tensor) is Tensor and tensor.is_cpu and tensor.dtype in _USUAL
    if is_usual:
        return not is_functorch_wrapped(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if tensor.is_meta or is_functorch_wrapped(tensor):
        return False
    return type(tensor) in _PLAIN or keeps_values(type(tensor))


def keeps_values(kind: type) -> bool:
    """Return whether tensors of this type hold their own values.

    Others may have no memory, and reading it would crash the process.
    """
    overridden: Any = kind
    dispatches = overridden.__torch_dispatch__ is not Tensor.__torch_dispatch__
    is_function = overridden.__torch_function__ != Tensor.__torch_function__
    return is_sharded_type(kind) or not (dispatches or is_function)


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, in memory, and of a type that all kernels support."""
    if type(tensor) not in _PLAIN or tensor.dtype not in _USUAL:
        return False
    return tensor.layout is torch.strided and not (tensor.is_nested or is_transforming())
