"""Global hooks that report calls of a model, and as few other calls as possible.

A global hook costs a microsecond or more for each module call of the process. So there is none
from the start of a step that is not sampled until its gradients arrive. Nothing is stored on the
model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from torch import nn

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.call_tree import is_running, outermost_running
from torchscan.torch_versions import (
    GlobalHooks,
    compiled_from,
    has_compiler,
    skip_in_compiler,
    without_torch_function,
)

#: called with a module and its positional arguments
Begin = Callable[[nn.Module, tuple[Any, ...]], None]
State = Literal["closed", "waiting", "following", "awaiting-result"]


class CallListener(Protocol):
    """Follower of all calls of a step that is sampled."""

    #: calls that have started and not ended, each with its module first; the outermost comes first
    open_calls: list[tuple[nn.Module, Any]]

    def forget_open(self) -> None:
        """Forget calls that were interrupted."""

    def note_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the start of a call."""

    def note_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Note the end of a call."""


class ModelEntries:
    """The modules whose calls from outside begin passes: the model, or parts until it is called."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        #: identities of modules: of any module, until the first call tells
        self._identities = {id(module) for module in model.modules()}
        #: True once the model itself was called
        self._is_called = False

    def is_model(self, module: nn.Module) -> bool:
        """Return whether a module is the model, or the compiled version of it."""
        return module is self._model or (has_compiler() and compiled_from(module) is self._model)

    def has(self, module: nn.Module) -> bool:
        """Return whether this module was, or may be, called from outside."""
        return id(module) in self._identities

    def is_entry(self, module: nn.Module) -> bool:
        """Return whether a call of this module in no other call of the model begins a pass.

        A part that is called by another model that has it, too, belongs to that one.
        """
        if module is self._model:
            return True
        if not self.has(module):
            return has_compiler() and id(compiled_from(module)) in self._identities
        caller = outermost_running(module)
        if caller is None:
            return True
        return any(self.is_model(each) for each in caller.modules())

    def note(self, module: nn.Module, *, is_only: bool = False) -> None:
        """Note a module that was called from outside. Parts are no longer entries if ``is_only``.

        Nor are they once the model itself is called.
        """
        is_model = self.is_model(module)
        if is_only or (is_model and not self._is_called):
            self._identities.clear()
        self._is_called = self._is_called or is_model
        self._identities |= {id(self._model), id(module)}


class ModelHook:
    """Reports when the model is called, or a part of it where the model itself is not called.

    Lightning's ``training_step``, for example, calls parts of the module.
    """

    def __init__(self, model: nn.Module, begin: Begin, note_backward: Callable[[], None]) -> None:
        self._begin, self._note_backward = begin, note_backward
        self._entries = ModelEntries(model)
        #: the module whose result is awaited
        self._awaited: nn.Module | None = None
        self._listener: CallListener | None = None
        self._state: State = "closed"
        self._is_paused = False
        #: hooks that are on
        self._registered: GlobalHooks | None = None
        self._make_hooks()

    def is_model(self, module: nn.Module) -> bool:
        """Return whether a module is the model, or the compiled version of it."""
        return self._entries.is_model(module)

    def note_entry(self, module: nn.Module, *, is_first: bool) -> None:
        """Note a module that was called from outside.

        Once the model itself is called, its parts are no longer entries.
        """
        self._entries.note(module, is_only=is_first)

    # -- states ----------------------------------------------------------------------------------

    def await_call(self) -> None:
        """Report the next call of an entry, and of all calls if a step is sampled."""
        wanted: State = "waiting" if self._listener is None else "following"
        if self._state != wanted:
            self._become(wanted)

    def follow(self, listener: CallListener) -> None:
        """Report all calls to ``listener`` from now on."""
        self._listener = listener
        self.await_call()

    def forget_listener(self) -> None:
        """Report calls to no listener any more. Hooks stay as they are until the next state."""
        self._listener = None

    def sleep(self) -> None:
        """Report nothing until :meth:`await_call`."""
        self._become("closed")

    def await_result(self, module: nn.Module) -> None:
        """Report when gradients reach the result of this module, whose call has begun."""
        self._awaited = module
        self._become("awaiting-result")

    def close(self) -> None:
        """Report nothing any more."""
        self._listener = None
        self._become("closed")

    def pause(self) -> None:
        """Remove the hooks while something is compiled: they would be compiled, too."""
        self._is_paused = True
        self._become(self._state)

    def go_on(self) -> None:
        """End a pause."""
        self._is_paused = False
        self._become(self._state)

    def keep_compiler_out(self) -> None:
        """Replace the hooks by hooks that torch.compile does not trace."""
        self._make_hooks()
        self._become(self._state)

    def _become(self, state: State) -> None:
        self._state = state
        if self._registered is not None:
            self._registered.remove()
            self._registered = None
        if not self._is_paused and state != "closed":
            self._registered = self._hooks[state]
            self._registered.put_on()

    # -- hooks -----------------------------------------------------------------------------------

    def _make_hooks(self) -> None:
        hooks: list[Callable[..., None]] = [
            self._note_call,
            self._note_followed_start,
            self._note_followed_end,
            self._note_result,
        ]
        if has_compiler():
            hooks = [skip_in_compiler(hook) for hook in hooks]
        before, before_followed, after_followed, after = hooks
        self._hooks: dict[State, GlobalHooks] = {
            "waiting": GlobalHooks(before),
            "following": GlobalHooks(before_followed, after_followed, with_kwargs=True),
            "awaiting-result": GlobalHooks(after=after),
        }

    def _note_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._entries.is_entry(module):
            return
        self._begin(module, args)
        if self._listener is not None:  # torch reports this call to new hooks when it ends
            self._listener.note_start(module, args)

    def _note_followed_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        listener = self._listener
        if listener is not None and listener.open_calls:
            if not self._entries.has(module) or is_running(listener.open_calls[0][0]):
                listener.note_start(module, args)
                return
            listener.forget_open()
        if self._entries.is_entry(module):
            self._begin(module, args)
            listener = self._listener
        if listener is not None:
            listener.note_start(module, args)

    def _note_followed_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if self._listener is not None:
            self._listener.note_end(module, args, *rest)

    def _note_result(self, module: nn.Module, _: tuple[Any, ...], result: object) -> None:
        if module is not self._awaited:
            return
        self._awaited = None
        self._become("waiting")
        with without_torch_function():
            nodes = {tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None}
        for node in nodes:
            node.register_prehook(lambda *_: self._note_backward())
