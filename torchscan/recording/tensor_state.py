"""The state of a tensor that an assignment can change, kept before a pass and restored after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.containers import has_same_items, refill
from torchscan.recording.bookkeeping.tensor_layouts import has_strides
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.torch_versions import hooks_of, put_back_hooks, set_version, share_memory


class TensorState:
    """The state of a tensor that an assignment can change, without its elements."""

    __slots__ = (
        "_attributes",
        "_data",
        "_hooks",
        "_requires_grad",
        "_version",
        "is_leaf",
        "tensor",
    )

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._data = tensor.data
        self._requires_grad = tensor.requires_grad
        self._version = _version_of(tensor)
        self.is_leaf = tensor.is_leaf
        self._hooks = hooks_of(tensor)
        self._attributes: dict[str, Any] = {}
        if getattr(tensor, "__dict__", None):
            self._attributes = dict(vars(tensor))

    def restore(self, table: TensorTable) -> None:
        """Restore what has changed."""
        tensor, data = self.tensor, self._data
        if not share_memory(tensor, data) or not _has_same_layout(tensor, data):
            tensor.data = data
        if self.is_leaf and not tensor.is_leaf:  # written to with something that has a gradient
            tensor.detach_()
        if tensor.requires_grad != self._requires_grad and tensor.is_leaf == self.is_leaf:
            tensor.requires_grad_(self._requires_grad)

        attributes = vars(tensor)
        has_attributes = attributes or self._attributes
        if has_attributes and not has_same_items(attributes, self._attributes):
            refill(attributes, self._attributes)
        put_back_hooks(tensor, self._hooks)
        # An operator counts the version up wherever it writes: here, only what the pass wrote.
        if _version_of(tensor) != self._version and table.was_written(tensor):
            set_version(tensor, self._version)


def _version_of(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # a tensor of inference mode has none
        return 0


def _has_same_layout(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have elements in the same places of their memory."""
    are_strided = tensor.layout is other.layout is torch.strided
    if not are_strided or tensor.is_nested or other.is_nested:
        return has_strides(tensor) == has_strides(other)
    if tensor.shape != other.shape or tensor.stride() != other.stride():
        return False
    return tensor.storage_offset() == other.storage_offset()
