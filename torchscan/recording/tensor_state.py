"""The state of a tensor that an assignment can change, kept before a pass and restored after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_default_nowrap_functions

from torchscan.recording.bookkeeping.containers import has_same_items, refill
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES, has_strides
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.patches import substituted
from torchscan.recording.undo import Undo, is_recording
from torchscan.torch_versions import (
    RUNS_BACKWARD,
    hooks_of,
    local_part,
    put_back_hooks,
    set_version,
    share_memory,
    without_torch_function,
)


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
        if not _has_same_elements(tensor, data):
            tensor.data = data
        if self.is_leaf and not tensor.is_leaf:  # written to with something that has a gradient
            tensor.detach_()
        if tensor.requires_grad != self._requires_grad and tensor.is_leaf == self.is_leaf:
            tensor.requires_grad_(self._requires_grad)

        attributes = vars(tensor)
        if (attributes or self._attributes) and not has_same_items(attributes, self._attributes):
            refill(attributes, self._attributes)
        if hooks_of(tensor) is not self._hooks:  # most tensors have none
            put_back_hooks(tensor, self._hooks)
        # An operator counts the version up wherever it writes: here, only what the pass wrote.
        if _version_of(tensor) != self._version and table.was_written(tensor):
            set_version(tensor, self._version)


def _version_of(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # a tensor of inference mode has none
        return 0


def _has_same_elements(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have their elements in the same places of the same memory."""
    if type(tensor) in PLAIN_TYPES and not tensor.is_meta:
        try:
            return tensor.is_set_to(other)
        except RuntimeError:  # sparse, for example
            pass
    if not share_memory(tensor, other):
        return False
    are_strided = tensor.layout is other.layout is torch.strided
    if not are_strided or tensor.is_nested or other.is_nested:
        return has_strides(tensor) == has_strides(other)
    if tensor.shape != other.shape or tensor.stride() != other.stride():
        return False
    return tensor.storage_offset() == other.storage_offset()


# -- gradients -------------------------------------------------------------------------------------


class _Watched(property):
    """A property that looks like torch's own.

    When torch's compiler is imported, it reads the owner of the property.
    """

    __objclass__ = Tensor.__mro__[1]
    __name__ = "grad"


class KeptGradients:
    """The gradients of some leaves, kept from the moment that the model changes them.

    A gradient is read only when this pass is about to change it: if another thread trains the same
    model, torch crashes when gradients are read meanwhile.
    """

    def __init__(self, leaves: Iterable[Tensor]) -> None:
        self._leaves = {id(each): each for each in leaves}
        #: by the id of a leaf, the gradient that it had before the pass changed it
        self.changed: dict[int, Tensor | None] = {}
        #: the existing descriptor, torch's own or another library's
        self._grad: Any = Tensor.grad

    def watch(self, undo: Undo) -> None:
        """Keep a gradient before the model assigns to it, and all before it computes any."""

        def assign(tensor: Tensor, gradient: Tensor | None) -> None:
            self._keep(tensor)
            self._grad.__set__(tensor, gradient)

        def delete(tensor: Tensor) -> None:
            self._keep(tensor)
            self._grad.__delete__(tensor)

        ours: Any = _Watched(self._grad.__get__, assign, delete)
        was_replaced = "grad" in vars(Tensor)

        def unwatch() -> None:
            # The descriptor that was there before may be another library's.
            get_default_nowrap_functions().discard(ours.__get__)
            if was_replaced:
                Tensor.grad = self._grad
            elif "grad" in vars(Tensor):
                del Tensor.grad

        undo.push(unwatch)
        # Torch returns the gradient of a subclass as it is, and does not convert it.
        get_default_nowrap_functions().add(ours.__get__)
        Tensor.grad = ours
        owner, name = RUNS_BACKWARD
        run_backward = partial(self._keep_all_before, getattr(owner, name))
        undo.enter(partial(substituted, owner, name, run_backward))

    def restore(self, table: TensorTable) -> None:
        """Restore the gradients that the pass has changed."""
        for number, gradient in self.changed.items():
            tensor = self._leaves[number]
            is_changed = tensor.is_leaf and tensor.grad is not gradient
            if is_changed and _is_left_by_pass(tensor.grad, table):
                tensor.grad = gradient

    def _keep(self, tensor: Tensor) -> None:
        if is_recording() and id(tensor) in self._leaves and id(tensor) not in self.changed:
            with without_torch_function():  # its own, not that of a substitute
                self.changed[id(tensor)] = self._grad.__get__(tensor)

    def _keep_all_before(
        self,
        run_backward: Callable[..., Any],
        /,
        *args: Any,
        accumulate_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run a backward pass; keep all gradients before it adds to any."""
        if accumulate_grad:
            for tensor in self._leaves.values():
                self._keep(tensor)
        return run_backward(*args, accumulate_grad=accumulate_grad, **kwargs)


def _is_left_by_pass(gradient: Tensor | None, table: TensorTable) -> bool:
    """Return whether this pass left a gradient; with other threads, it may be theirs."""
    return (
        gradient is None
        or threading.active_count() == 1
        or gradient.is_meta
        or table.is_from_pass(local_part(gradient))
    )
