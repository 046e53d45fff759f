"""Leaving no trace: whatever a forward pass changes is as before when the pass is over, also after an exception."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.trace.inventory import Inventory
from torchscan.trace.tensors import share_memory

_CONTAINERS = (dict, list, set, OrderedDict, deque)


@contextlib.contextmanager
def unchanged(inventory: Inventory, mode: str, arguments: Sequence[Tensor] = ()) -> Iterator[None]:
    """Run the body with the module in ``mode`` ("eval", "train" or "same") and put everything back after it."""
    modules = list(inventory.modules.values())
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process_state.kept())
        stack.enter_context(_same_attributes(modules))
        stack.enter_context(_same_tensors([*inventory.tensors, *arguments]))
        _bypass_compilation(modules)
        stack.enter_context(training_flags(modules, mode))
        yield


def original_of(module: nn.Module) -> nn.Module:
    """What ``torch.compile`` was given."""
    if "torch._dynamo" not in sys.modules:  # whoever never compiled anything does not pay for the import
        return module
    from torch._dynamo.eval_frame import OptimizedModule

    return original_of(module._orig_mod) if isinstance(module, OptimizedModule) else module


def _bypass_compilation(modules: Sequence[nn.Module]) -> None:
    """Put originals where compiled modules are; :func:`_same_attributes` takes that back."""
    for module in modules:
        for name, child in module._modules.items():
            if child is not None and original_of(child) is not child:
                module._modules[name] = original_of(child)


@contextlib.contextmanager
def training_flags(modules: Sequence[nn.Module], mode: str) -> Iterator[None]:
    """The flags are set one by one: an overridden ``train()`` may do what cannot be undone (merge adapters, say)."""
    before = [each.training for each in modules]
    try:
        if mode != "same":
            _set_flags(modules, [mode == "train"] * len(modules))
        yield
    finally:
        _set_flags(modules, before)


def _set_flags(modules: Sequence[nn.Module], flags: Sequence[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if module.training != flag:
            module.training = flag


@contextlib.contextmanager
def _same_attributes(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Models keep things for the next call: a mask, a position grid. From a shape-only pass such things would be hollow."""
    before = [_Attributes(module) for module in modules]
    try:
        yield
    finally:
        for attributes in before:
            attributes.restore()


class _Attributes:
    """The attributes of one module, and the items of those that are plain containers."""

    __slots__ = ("_containers", "_empty", "_values", "_vars")

    def __init__(self, module: nn.Module) -> None:
        self._vars = vars(module)
        self._values = dict(self._vars)
        containers = [value for value in self._values.values() if type(value) in _CONTAINERS]
        self._empty = [container for container in containers if not container]  # most hook tables are: no need to copy
        self._containers = [(container, container.copy()) for container in containers if container]

    def restore(self) -> None:
        if not _same_items(self._vars, self._values):
            self._vars.clear()
            self._vars.update(self._values)
        for container in self._empty:
            if container:
                container.clear()
        for container, items in self._containers:
            if not _same_items(container, items):
                container.clear()
                container.extend(items) if isinstance(container, list | deque) else container.update(items)


def _same_items(now: Any, before: Any) -> bool:
    """Identity, not equality: comparing tensors would compute."""
    if len(now) != len(before):
        return False
    if isinstance(now, set):
        return bool(now == before)
    pairs = zip(now, before, strict=True)
    if isinstance(now, dict):
        return all(one is other and now[one] is before[other] for one, other in pairs)
    return all(one is other for one, other in pairs)


@contextlib.contextmanager
def _same_tensors(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Tensors of the user's get back what a forward pass can assign: ``.data``, ``requires_grad``, version counters."""
    distinct = {id(tensor): tensor for tensor in tensors}.values()
    before = [(tensor, tensor.data, tensor.requires_grad, _version_of(tensor)) for tensor in distinct]
    try:
        yield
    finally:
        for tensor, data, requires_grad, version in before:
            if not share_memory(tensor, data) or tensor.shape != data.shape:
                tensor.data = data
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if _version_of(tensor) != version:  # an in-place operator counts it up before it can be redirected
                torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def _version_of(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class _ProcessState:
    """What belongs to the whole process is kept by the first of several simultaneous passes and put back by the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._restore = contextlib.ExitStack()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep it during the body."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._enter()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._restore.close()

    def _enter(self) -> None:
        self._restore.enter_context(_same_random_state())
        # Fused attention and encoder-layer kernels exist for some devices only, and hide operators.
        self._restore.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        # Compiled functions run as they were written. Whoever never compiled anything does not pay for the import.
        if "torch._dynamo" in sys.modules:
            self._restore.enter_context(torch.compiler.set_stance("force_eager"))


_process_state = _ProcessState()


@contextlib.contextmanager
def _same_random_state() -> Iterator[None]:
    """Python's, NumPy's and torch's generators, those of initialised CUDA devices included."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = numpy_random.get_state() if numpy_random else None
    python_state = random.getstate()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy_random is not None:
                numpy_random.set_state(numpy_state)
