"""Restoring of gradients that the model assigns to ``.grad`` of its tensors.

A gradient is read only when this pass is about to change it: if another thread trains the same
model, torch crashes when gradients are read meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.overrides import get_default_nowrap_functions

from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.patches import replaced
from torchscan.recording.undo import Undo, is_recording
from torchscan.torch_versions import RUNS_BACKWARD, local_part, without_torch_function


class _Watched(property):
    """A property that looks like torch's own.

    Torch's compiler asks whose it is when it is imported.
    """

    __objclass__ = Tensor.__mro__[1]
    __name__ = "grad"


class KeptGradients:
    """The gradients of some leaves, kept from the moment that the model changes them."""

    def __init__(self, leaves: Iterable[Tensor]) -> None:
        self._leaves = {id(each): each for each in leaves}
        self._before: dict[int, Tensor | None] = {}
        #: the descriptor that is there, torch's own or another library's
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
        undo.enter(lambda: replaced(*RUNS_BACKWARD, self._keeping_all))

    def restore(self, table: TensorTable) -> None:
        """Restore the gradients that the pass has changed."""
        for number, gradient in self._before.items():
            tensor = self._leaves[number]
            is_changed = tensor.is_leaf and tensor.grad is not gradient
            if is_changed and _is_left_by_pass(tensor.grad, table):
                tensor.grad = gradient

    def _keep(self, tensor: Tensor) -> None:
        if is_recording() and id(tensor) in self._leaves and id(tensor) not in self._before:
            with without_torch_function():  # its own, not that of a substitute
                self._before[id(tensor)] = self._grad.__get__(tensor)

    def _keeping_all(self, run_backward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, accumulate_grad: bool = False, **kwargs: Any) -> Any:
            if accumulate_grad:
                for tensor in self._leaves.values():
                    self._keep(tensor)
            return run_backward(*args, accumulate_grad=accumulate_grad, **kwargs)

        return run


def _is_left_by_pass(gradient: Tensor | None, table: TensorTable) -> bool:
    """Return whether this pass left a gradient; with other threads, it may be theirs."""
    return (
        gradient is None
        or threading.active_count() == 1
        or gradient.is_meta
        or table.is_from_pass(local_part(gradient))
    )
