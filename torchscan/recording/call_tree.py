"""The tree of module calls: which call runs, and which call owns a node of the backward pass.

The tree knows modules and autograd's sequence numbers, but no operators or tensors, so recording,
inspecting and watching share it. It stores nothing on the modules, returns nothing from its hooks
and holds no tensor.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from torchscan.recording.call_threads import (
    CallThread,
    CallThreads,
    ThreadPolicy,
    is_in_backward_pass,
)
from torchscan.recording.exception_origin import ExceptionOrigin
from torchscan.recording.module_calls import FAILED, AtEnd, AtRoot, AtStart, Call, Given
from torchscan.recording.running_modules import num_open_calls
from torchscan.torch_versions import current_node, forget_hooks, not_compiled

_is_grad_enabled = torch.is_grad_enabled


class CallTree:
    """The calls of the modules that ``path_of`` has a path for, while :meth:`watched`."""

    def __init__(
        self, path_of: Callable[[nn.Module], str | None], follows: ThreadPolicy | None = None
    ) -> None:
        self._path_of = path_of
        #: None: only the thread that made the tree is followed
        self._follows = follows
        self._home = threading.get_ident()
        self._at_end: AtEnd | None = None
        self._at_start: AtStart | None = None
        self._at_root: AtRoot | None = None
        #: those of torch's modules, while the calls are followed
        self._hooks: tuple[Callable[..., None], ...] = ()
        self._lock = threading.Lock()
        #: when torch last came to a hook of these: what it takes from then on is nobody's
        self.entered = 0
        #: where an exception came from
        self.origin = ExceptionOrigin()
        self._threads: CallThreads[Call] = CallThreads()
        #: returns the owner of a node, asked in the thread that runs the node
        self.owner_of = self._threads.owner_of
        #: returns the owner of a node, asked in the thread that created the node
        self.maker_of = self._threads.maker_of
        #: in the order in which they started
        self.calls: list[Call] = []
        #: paths of modules that ran in threads which are not followed
        self.unrecorded_modules: set[str] = set()
        self._invocations: dict[int, int] = {}

    def reset(self) -> None:
        """Forget all calls: a new step begins.

        The end of a call that is open now is not noticed.
        """
        self.calls = []
        self.unrecorded_modules = set()
        self._threads.clear()
        self._invocations = {}
        self.origin.forget()

    @property
    def root(self) -> Call:
        """The first call, which is the model's."""
        return self.calls[0]

    @property
    def current(self) -> Call | None:
        """The innermost call that is open in this thread."""
        thread = self._threads.get(threading.get_ident())
        return None if thread is None else thread.current

    @contextlib.contextmanager
    def watched(self, at_end: AtEnd | None = None) -> Iterator[None]:
        """Follow the calls in this context, by global hooks, and report the end of each."""
        try:
            self.start(at_end)
            yield
        finally:
            self.stop()

    def start(
        self,
        at_end: AtEnd | None = None,
        *,
        at_start: AtStart | None = None,
        at_root: AtRoot | None = None,
    ) -> None:
        """Follow the calls until :meth:`stop`."""
        self._at_end, self._at_start, self._at_root = at_end, at_start, at_root
        self._hooks = (self._before, self._after)
        self.go_on()

    def join(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Follow a call of a module, in whose hook the tree was started.

        Torch calls new hooks for the next call only.
        """
        self._before(module, arguments)

    def stop(self) -> None:
        """Follow no calls any more."""
        # The callbacks may hold an object that holds the tree.
        self._at_end = None
        self._at_start = None
        self._at_root = None
        forget_hooks(*self._hooks)
        self._hooks = ()

    def pause(self) -> None:
        """Remove the hooks, but remember the calls that are open."""
        forget_hooks(*self._hooks)

    def go_on(self) -> None:
        """Add the hooks again after a pause."""
        if self._hooks:
            before, after = self._hooks
            register_module_forward_pre_hook(before)
            register_module_forward_hook(after, with_kwargs=True, always_call=True)

    def keep_compiler_out(self) -> None:
        """Replace the hooks with ones that torch.compile does not trace."""
        self.pause()
        self._hooks = (not_compiled(self._before), not_compiled(self._after))
        self.go_on()

    def run(
        self,
        module: nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return what ``call`` makes of the arguments, followed as one call of the module.

        Torch's hooks miss what a class computes in its own ``__call__``, before and after that of
        ``nn.Module`` or in place of it.
        """
        path = self._path_of(module)
        if path is None or not self._hooks or not self._is_followed():
            return call(*args, **kwargs)
        thread = self._threads.this_thread()
        if thread.current is not None and thread.current.awaits_hooks_of(module):
            return call(*args, **kwargs)

        self._open(thread, module, path, args)
        thread = self._threads.this_thread()  # a new step may have begun
        current = thread.current
        if current is None or current.module is not module:
            # The callback at the root does not follow this call.
            return call(*args, **kwargs)
        current.is_run_here = True
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            self.origin.note(error, current, args)
            self._close(thread, current, FAILED, ())
            raise
        self._close(thread, current, (args, kwargs), result)
        return result

    def _is_followed(self) -> bool:
        """Return whether calls in this thread are followed."""
        if self._follows is None:
            return threading.get_ident() == self._home
        return self._follows()

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Make the model's call the current one, while a generator runs that it has returned."""
        thread = self._threads.this_thread()
        before = thread.current
        thread.current = self.root
        try:
            yield
        finally:
            thread.current = before

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.entered = perf_counter_ns()
        path = self._path_of(module)
        if path is None:  # what the model does not own (a slice of a Sequential) is its caller's
            return
        if not self._is_followed():
            self.unrecorded_modules.add(path)
            return
        thread = self._threads.this_thread()
        current = thread.current
        if current is not None and current.is_run_here and current.awaits_hooks_of(module):
            current.is_entered = True
        else:
            self._open(thread, module, path, arguments)

    def _after(self, module: nn.Module, arguments: tuple[Any, ...], *rest: Any) -> None:
        self.entered = perf_counter_ns()
        # Torch leaves out the kwargs when it calls a global hook because of an exception.
        *kwargs, result = rest
        thread = self._threads.get(threading.get_ident())
        call = None if thread is None else thread.current
        if thread is None or call is None or call.module is not module:
            return
        if call.is_run_here:
            call.is_entered = False
        elif result is None and sys.exception() is not call.handled:
            self.origin.note(sys.exception(), call, arguments)
            self._close(thread, call, FAILED, ())
        else:
            self._close(thread, call, (arguments, kwargs[0] if kwargs else {}), result)

    def _open(
        self, thread: CallThread[Call], module: nn.Module, path: str, arguments: tuple[Any, ...]
    ) -> None:
        if self.origin.error is not None:
            self.origin.forget_caught()
        if not path and thread.current is not None:
            self._forget_interrupted(thread, module)
        parent = thread.current
        if parent is None:
            if is_in_backward_pass():
                # A checkpoint runs the module again, for the call whose gradient is computed.
                parent = self._threads.owner_of(current_node()) or next(iter(self.calls), None)
            elif self._at_root is not None:
                is_followed = self._at_root(module)
                if not is_followed or not self._hooks:  # the callback may have stopped the tree
                    return
                thread = self._threads.this_thread()  # a step that begins forgets those of the last
                parent = thread.current
        with self._lock:  # autograd has a thread for each device
            invocation = self._invocations.get(id(module), 0)
            self._invocations[id(module)] = invocation + 1
            call = Call(module, path, invocation, len(self.calls), parent, thread.current)
            self.calls.append(call)
        thread.current = call
        if _is_grad_enabled():
            thread.assign_nodes_to(call)
        if self._at_start is not None:
            self._at_start(call, arguments)

    def _forget_interrupted(self, thread: CallThread[Call], module: nn.Module) -> None:
        """Close a call that was interrupted, because torch does not report that.

        It is noticed when the model is called again.
        """
        current = thread.current
        if current is None or current.is_run_here:
            return
        num_starting = 1 if current.module is module else 0
        if num_open_calls(current.module) <= num_starting:
            thread.current = None

    def _close(self, thread: CallThread[Call], call: Call, given: Given, result: object) -> None:
        call.handled = None
        try:
            if self._at_end is not None:
                self._at_end(call, given, result)
        finally:  # the callback may raise an error
            thread.current = call.outer
            if call.outer is not None and _is_grad_enabled():
                thread.assign_nodes_to(call.outer)
