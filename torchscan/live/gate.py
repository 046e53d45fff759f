"""Notices that a model is called, and that gradients come.

There is one global hook at a time, and it costs a comparison for each call of a module: before modules where a step may begin,
after them where one goes on that nobody looks at, until its result is there. Nothing is put on the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.torch_versions import compiled_from, has_compiler, not_compiled

#: a module is called, with these positional arguments
Begin = Callable[[nn.Module, tuple[Any, ...]], None]
State = Literal["open", "awaiting", "closed"]


class Gate:
    """Tells when the model is called; or a part of it, where the model itself is not, as in Lightning's ``training_step``."""

    def __init__(self, model: nn.Module, begin: Begin, note_backward: Callable[[], None]) -> None:
        self._model, self._begin, self._note_backward = model, begin, note_backward
        #: whose calls begin steps: any module's, until the first call tells
        self._entries = {id(module) for module in model.modules()}
        #: what goes on, unseen
        self._awaited: nn.Module | None = None
        self._state: State = "closed"
        self._is_paused = False
        self._handle: RemovableHandle | None = None
        self._make_hooks()

    def is_model(self, module: nn.Module) -> bool:
        """Whether a module is the model, or what a compiler has made of it."""
        return module is self._model or (has_compiler() and compiled_from(module) is self._model)

    def note_entry(self, module: nn.Module, *, is_first: bool) -> None:
        """A module was called by nobody else's: once the model is, its parts are no entries any more."""
        if self.is_model(module) or is_first:
            self._entries.clear()
        self._entries |= {id(self._model), id(module)}

    def open(self) -> None:
        """A step may begin."""
        if self._state != "open":
            self._become("open")

    def close_until_gradients(self, module: nn.Module) -> None:
        """The call of this module that has begun is not looked at; none that follows can begin a step until gradients come."""
        self._awaited = module
        self._become("awaiting")

    def close(self) -> None:
        """Tell nothing any more."""
        self._become("closed")

    def pause(self) -> None:
        """Have no hook for a while: something is compiled."""
        self._is_paused = True
        self._become(self._state)

    def go_on(self) -> None:
        """After a pause."""
        self._is_paused = False
        self._become(self._state)

    def keep_compiler_out(self) -> None:
        """Something is compiled from now on, and the hooks must not be."""
        self._make_hooks()
        self._become(self._state)

    def _become(self, state: State) -> None:
        self._state = state
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._is_paused or state == "closed":
            return
        if state == "open":
            self._handle = register_module_forward_pre_hook(self._before)
        else:
            self._handle = register_module_forward_hook(self._after, always_call=True)

    def _make_hooks(self) -> None:
        entries = self._entries

        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            if id(module) in entries:
                self._begin(module, args)

        def before_compiled(module: nn.Module, args: tuple[Any, ...]) -> None:
            if id(module) in entries or id(compiled_from(module)) in entries:
                self._begin(module, args)

        def after(module: nn.Module, _: tuple[Any, ...], result: object) -> None:
            if module is self._awaited:
                self._await_gradients(result)

        self._before = not_compiled(before_compiled) if has_compiler() else before
        self._after = not_compiled(after) if has_compiler() else after

    def _await_gradients(self, result: object) -> None:
        """Of the result of a pass that nobody looks at. If it has none, the next call may be of another pass."""
        self._awaited = None
        nodes = {tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None}
        self._become("closed" if nodes else "open")
        for node in nodes:
            node.register_prehook(lambda *_: self._note_backward())
