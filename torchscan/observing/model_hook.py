"""Global hooks that report calls of a model, at as little cost as possible.

A global hook costs a microsecond or more for each module call of the process. So there is none
from the start of a step that is not sampled until its gradients arrive. Nothing is stored on the
model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from torch import nn

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import modules_of
from torchscan.recording.running_modules import is_running, outermost_running
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
    """Receiver of all calls in a sampled step."""

    #: calls that have started and not ended, the outermost first; each begins with its module
    open_calls: list[tuple[nn.Module, Any]]

    def forget_open(self) -> None:
        """Forget calls that were interrupted."""

    def note_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the start of a call."""

    def note_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Note the end of a call."""


class ModelEntries:
    """The modules whose calls begin passes: the model, or parts of it until it is called."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        #: identities of entries: of all modules, until the first call shows which one is an entry
        self.identities = {id(module) for _, module in modules_of(model)}
        #: True once the model itself was called
        self._is_called = False
        #: the entry that was called last, and whether it is the model
        self._last: nn.Module | None = None
        self._is_last_model = False

    def is_model(self, module: nn.Module) -> bool:
        """Return whether a module is the model, or the compiled version of it."""
        if module is self._last:
            return self._is_last_model
        return module is self._model or (has_compiler() and compiled_from(module) is self._model)

    def has(self, module: nn.Module) -> bool:
        """Return whether this module is, or may be, called from outside the model."""
        return id(module) in self.identities

    def is_entry(self, module: nn.Module) -> bool:
        """Return whether a call of this module begins a pass, if no call of the model is open.

        If another model that has the module too calls it, the call belongs to that model.
        """
        if module is self._model:
            return True
        if not self.has(module):
            return has_compiler() and id(compiled_from(module)) in self.identities
        caller = outermost_running(module)
        if caller is None:
            return True
        return any(self.is_model(each) for _, each in modules_of(caller))

    def note(self, module: nn.Module, *, is_only: bool = False) -> None:
        """Note a module that was called from outside the model.

        Other parts are no longer entries if ``is_only``, or once the model itself is called.
        """
        if module is self._last and not is_only:
            return
        is_model = self.is_model(module)
        self._last, self._is_last_model = module, is_model
        if is_only or (is_model and not self._is_called):
            self.identities.clear()
        self._is_called = self._is_called or is_model
        self.identities |= {id(self._model), id(module)}


class ModelHook:
    """Observer of calls of the model, or of its parts if the model itself is never called.

    For example, the ``training_step`` of a LightningModule calls its parts.
    """

    def __init__(
        self,
        model: nn.Module,
        begin: Begin,
        note_backward: Callable[[], None],
        adapt_to_compiler: Callable[[], None] = lambda: None,
    ) -> None:
        """``adapt_to_compiler`` is called if the compiler is loaded after the hooks were made."""
        self._begin, self._note_backward = begin, note_backward
        self._adapt_to_compiler = adapt_to_compiler
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
        """Note a module that was called from outside the model.

        Once the model itself is called, its parts are no longer entries.
        """
        self._entries.note(module, is_only=is_first)

    # -- states ----------------------------------------------------------------------------------

    def await_call(self) -> None:
        """Report the next call of an entry; if the step is sampled, report all calls."""
        wanted: State = "waiting" if self._listener is None else "following"
        if self._state != wanted:
            self._become(wanted)

    def follow(self, listener: CallListener) -> None:
        """Start to report all calls to ``listener``."""
        self._listener = listener
        # torch calls it itself: a call in between would take time in each call of a module
        note_end = listener.note_end
        after = skip_in_compiler(note_end) if self._knows_compiler else note_end
        self._hooks["following"].replace_after(after)
        self.await_call()

    def forget_listener(self) -> None:
        """Stop reporting to the listener, which still gets ends of calls until the next state."""
        self._listener = None

    def sleep(self) -> None:
        """Remove the hooks until :meth:`await_call`."""
        self._become("closed")

    def await_result(self, module: nn.Module) -> None:
        """Report when gradients reach the result of this module, whose call is open."""
        self._awaited = module
        self._become("awaiting-result")

    def close(self) -> None:
        """Remove the hooks and forget the listener."""
        self._listener = None
        self._hooks["following"].replace_after(_ignore)
        self._become("closed")

    def pause(self) -> None:
        """Remove the hooks during a compilation, which would compile them in."""
        self._is_paused = True
        self._become(self._state)

    def go_on(self) -> None:
        """Restore the hooks after a pause."""
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
            self._note_result,
        ]
        self._knows_compiler = has_compiler()
        if self._knows_compiler:
            hooks = [skip_in_compiler(hook) for hook in hooks]
        before, before_followed, after = hooks
        listener = self._listener
        after_followed = _ignore if listener is None else skip_in_compiler(listener.note_end)
        self._hooks: dict[State, GlobalHooks] = {
            "waiting": GlobalHooks(before),
            "following": GlobalHooks(before_followed, after_followed, with_kwargs=True),
            "awaiting-result": GlobalHooks(after=after),
        }

    def _note_call(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._knows_compiler and has_compiler():
            self._adapt_to_compiler()
        if not self._entries.is_entry(module):
            return
        self._begin(module, args)
        if self._listener is not None:  # torch reports this call to new hooks when it ends
            self._listener.note_start(module, args)

    def _note_followed_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._knows_compiler and has_compiler():
            self._adapt_to_compiler()
        listener = self._listener
        if listener is not None and listener.open_calls:
            is_entry = id(module) in self._entries.identities
            if not is_entry or is_running(listener.open_calls[0][0]):
                listener.note_start(module, args)
                return
            listener.forget_open()
        if self._entries.is_entry(module):
            self._begin(module, args)
            listener = self._listener
        if listener is not None:
            listener.note_start(module, args)

    def _note_result(self, module: nn.Module, _: tuple[Any, ...], result: object) -> None:
        if module is not self._awaited:
            return
        self._awaited = None
        self._become("waiting")
        with without_torch_function():
            nodes = {tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None}
        for node in nodes:
            node.register_prehook(lambda *_: self._note_backward())


def _ignore(*_: object) -> None:
    """Do nothing: no listener follows calls yet."""
