"""The tables in which torch keeps the hooks of modules, tensors and optimizers."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.optim import optimizer
from torch.utils.hooks import RemovableHandle

#: by their number; None if there never were any
TensorHooks = tuple[dict[int, Any] | None, dict[int, Any] | None]
_NO_HOOKS: TensorHooks = (None, None)
_CALL = nn.Module._call_impl.__code__
#: code that calls the hooks of modules
_CODES_OF_CALLS = frozenset({_CALL, *(each for each in _CALL.co_consts if type(each) is CodeType)})
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


def hooks_of(tensor: Tensor) -> TensorHooks:
    """Return the hooks that autograd calls with a tensor's gradient, and after accumulating it."""
    given: Any = tensor._backward_hooks
    added: Any = tensor._post_accumulate_grad_hooks
    if given is None and added is None:
        return _NO_HOOKS
    if given is not None:
        given = dict(given)
    if added is not None:
        added = dict(added)
    return given, added


def put_back_hooks(tensor: Tensor, before: TensorHooks) -> None:
    """Restore hooks that were read. Autograd keeps the dict that it got, so that is changed."""
    if hooks_of(tensor) == before:
        return
    for name, hooks in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), before, strict=True):
        now: Any = getattr(tensor, name)
        if now is not None:
            now.clear()
            now.update(hooks or {})
        if hooks is None:
            setattr(tensor, name, None)


def forget_hooks(*functions: Callable[..., object]) -> None:
    """Remove global hooks of modules, with their options.

    Torch keeps the options when a hook is removed by its handle.
    """
    module: Any = nn.modules.module
    for table in (module._global_forward_pre_hooks, module._global_forward_hooks):
        for number in [number for number, hook in list(table.items()) if hook in functions]:
            module._global_forward_hooks_with_kwargs.pop(number, None)
            module._global_forward_hooks_always_called.pop(number, None)
            table.pop(number, None)


def keyword_arguments(module: nn.Module) -> Mapping[str, Any]:
    """Return the keyword arguments of a module's call, for a global forward pre-hook.

    Torch passes them only to hooks after the call, which may have changed them in place.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _CODES_OF_CALLS:
        frame = frame.f_back
    if frame is None:
        return _NO_ARGUMENTS
    variables = frame.f_locals
    kwargs: Mapping[str, Any] = variables["kwargs"]
    return kwargs if variables["self"] is module else _NO_ARGUMENTS


class GlobalHooks:
    """Global hooks of all modules that are put on and removed again and again.

    A handle of torch costs several times as much, and leaves the options of its hook behind.
    """

    def __init__(
        self,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
        *,
        with_kwargs: bool = False,
    ) -> None:
        #: unique among all hooks
        self._number = RemovableHandle(OrderedDict()).id
        module: Any = nn.modules.module
        self._entries: list[tuple[dict[int, Any], Any]] = []
        if before is not None:
            self._entries.append((module._global_forward_pre_hooks, before))
        if after is not None:
            self._entries.append((module._global_forward_hooks, after))
            self._entries.append((module._global_forward_hooks_always_called, True))
        if with_kwargs:
            self._entries.append((module._global_forward_hooks_with_kwargs, True))

    def replace_after(self, after: Callable[..., None]) -> None:
        """Have another function called after each call of a module."""
        table, _ = self._entries[1]
        self._entries[1] = table, after
        if self._number in table:
            table[self._number] = after

    def put_on(self) -> None:
        """Have the hooks called behind those that are there."""
        for table, entry in self._entries:
            table[self._number] = entry

    def remove(self) -> None:
        """Have the hooks called no more."""
        for table, _ in self._entries:
            table.pop(self._number, None)


def strip_hooks(model: nn.Module) -> None:
    """Remove all hooks of modules, also the global ones, for a copy that must not call them."""
    module = nn.modules.module
    for hooks in (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
    ):
        hooks.clear()
    for each in model.modules():
        for hooks in (
            each._forward_hooks,
            each._forward_pre_hooks,
            each._backward_hooks,
            each._backward_pre_hooks,
        ):
            hooks.clear()


def optimizer_hooks() -> tuple[dict[int, Any], ...]:
    """Return the hooks that all optimizers call before and after their step."""
    return optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
