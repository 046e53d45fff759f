"""Copies of tensors that a pass may write to: arguments, converted models, lazy parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.tensor_layouts import (
    CONCRETE_INTEGERS,
    has_strides,
    is_plain,
    meta_copy,
    same_view,
)
from torchscan.torch_versions import WithoutData, is_fake_type

#: floating-point arguments up to this many elements keep their values in a pass on shapes alone
_GIVEN_FLOATS = 2**16


def own_copy(tensor: Tensor, *, on_meta: bool) -> Tensor:
    """Return a copy that may be written to.

    With ``on_meta``, it is a meta tensor, except for moderately sized integers on the CPU. A tensor
    with a device and no data stays one.
    """
    if is_fake_type(type(tensor)) and has_strides(tensor):
        without_data = WithoutData.of(tensor)
        if without_data is not None:
            made = without_data.tensor(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            return made.requires_grad_(tensor.requires_grad)
    if not is_plain(tensor):
        return tensor

    # Control flow may need the values of integers.
    are_integers = not tensor.is_floating_point() and not tensor.is_complex()
    is_known = are_integers and tensor.device.type == "cpu" and tensor.numel() <= CONCRETE_INTEGERS
    if on_meta and not is_known:
        made = meta_copy(tensor)
    else:
        made = _copy_with_strides(tensor.detach())
    vars(made).update(vars(tensor))
    if not tensor.requires_grad:
        return made
    with torch.enable_grad():
        leaf = made.requires_grad_()
        if tensor.is_leaf:
            return leaf
        return leaf.view_as(leaf)  # a tensor that is not a leaf may be written to


def _copy_with_strides(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides, unless it is a small part of a large storage."""
    storage = tensor.untyped_storage()
    if storage.nbytes() > 2 * tensor.numel() * tensor.element_size():
        return tensor.clone()
    return same_view(tensor, storage.clone())


def values_of(tensor: Tensor) -> Tensor | None:
    """Return a copy of an argument's values if a pass should compute with them, as with a mask."""
    if not is_plain(tensor) or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    if tensor.requires_grad or tensor.numel() > _GIVEN_FLOATS:
        return None
    return tensor.detach().clone()


def uninitialized(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a lazy parameter or buffer like this one on a device, also of another type."""
    kind: Any = nn.UninitializedBuffer
    if isinstance(tensor, nn.Parameter):
        kind = nn.UninitializedParameter
    made: Tensor = kind(
        requires_grad=tensor.requires_grad, device=device, dtype=dtype or tensor.dtype
    )
    return made
