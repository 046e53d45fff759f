"""What a real run holds in memory: a dispatch mode that knows every block of memory and sees it go."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
#: Python numbers that become tensors, which a record does not list
_BOOKKEEPING = {aten.lift_fresh.default, aten.scalar_tensor.default}


class StorageCounter(TorchDispatchMode):
    """Counts the bytes alive after each operator call, from those of ``standing`` on."""

    def __init__(self, standing: Iterable[Tensor]) -> None:
        super().__init__()
        self.alive: int = 0
        self.history: list[int] = []
        self._watches: dict[int, weakref.ref[Any]] = {}
        for tensor in standing:
            self._see(tensor)

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        if func not in _BOOKKEEPING and func.namespace != "profiler":
            self.history.append(self.alive)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._watches:
            return

        def gone(_: object) -> None:
            self.alive -= size
            del self._watches[key]

        self.alive += size
        self._watches[key] = weakref.ref(storage, gone)


def count_inference(model: nn.Module, x: Tensor) -> list[int]:
    """Bytes alive after each operator of an inference."""
    model.eval()
    counter = StorageCounter([*model.parameters(), *model.buffers(), x])
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(
        False
    )  # it hides operators, so a record is made without
    try:
        with torch.no_grad(), counter:
            _ = model(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return counter.history


def count_step(
    model: nn.Module,
    x: Tensor,
    loss: Callable[[Any], Tensor],
    make: Callable[[list[Tensor]], Optimizer] | None = None,
    *,
    accumulate: bool = False,
    holds_output: bool = False,
    autocast: torch.dtype | None = None,
) -> list[int]:
    """Bytes alive after each operator of a training step, the second one if there is an optimizer."""
    model.train()
    optimizer = (
        None if make is None else make([each for each in model.parameters() if each.requires_grad])
    )
    if optimizer is not None:
        loss(model(x)).backward()
        optimizer.step()
        _forget_gradients([*model.parameters(), x])
    gc.collect()
    state = (
        []
        if optimizer is None
        else [
            each for each in tree_leaves(list(optimizer.state.values())) if isinstance(each, Tensor)
        ]
    )
    counter = StorageCounter([*model.parameters(), *model.buffers(), x, *state])
    with counter:
        for _ in range(1 + accumulate):
            output = value = None
            with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
                output = model(x)
                value = loss(output)
            if not holds_output:
                output = None
            value.backward()
        if optimizer is not None:
            optimizer.step()
    _forget_gradients([*model.parameters(), x])
    return counter.history


def _forget_gradients(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.grad = None
