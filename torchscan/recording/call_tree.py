"""The tree of module calls: which call runs, and which call owns a node of the backward pass.

The tree knows modules and autograd's sequence numbers, but no operators or tensors, so recording,
inspecting and watching share it. It stores nothing on the modules, returns nothing from its hooks
and holds no tensor.

Autograd numbers the nodes of a graph as they are created, per thread. A node that is created
between two numbers, read when modules start and end, belongs to the innermost module that is open
then:

    owner(node) = the last call noted before the node, of those in the thread that created it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import FrameType
from typing import Any

from torch import nn
from torch.autograd.graph import Node
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from torchscan.recording.call_threads import (
    CallThread,
    ThreadPolicy,
    is_in_backward_pass,
    only_this_thread,
)
from torchscan.torch_versions import (
    current_node,
    forget_hooks,
    not_compiled,
)


class Call:
    """One call of a module."""

    __slots__ = (
        "children",
        "depth",
        "handled",
        "index",
        "invocation",
        "is_entered",
        "is_run_here",
        "module",
        "outer",
        "parent",
        "path",
    )

    def __init__(
        self,
        module: nn.Module,
        path: str,
        invocation: int,
        index: int,
        parent: Call | None,
        outer: Call | None,
    ) -> None:
        self.module = module
        self.path = path
        #: 0 for the first call of this module, 1 for the second, …
        self.invocation = invocation
        self.index = index
        #: the call that it belongs to
        self.parent = parent
        #: the call that goes on in its thread when it ends; it differs from the parent where a
        #: checkpoint runs a module again during the backward pass
        self.outer = outer
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: list[int] = []
        #: the exception that was being handled when it started
        self.handled = sys.exception()
        #: True if :meth:`CallTree.run` began it, and ends it
        self.is_run_here = False
        #: True while the part of such a call goes on that torch's hooks enclose
        self.is_entered = False

    @property
    def outermost(self) -> Call:
        """The model's call that it is in."""
        if self.parent is None:
            return self
        return self.parent.outermost


#: told when a module has ended: the call, its positional and keyword arguments, its result
AtEnd = Callable[[Call, "Given", object], None]
Given = tuple[tuple[Any, ...], dict[str, Any]]
#: a call that has begun: the module, its positional arguments
Begun = tuple[nn.Module, tuple[Any, ...]]
#: what a call was given that an exception has left, as far as torch tells
FAILED: Given = ((), {})
#: told when a module has started: the call, its positional arguments
AtStart = Callable[[Call, tuple[Any, ...]], None]
#: called when a module starts that is in no other; False: this call is not followed
AtRoot = Callable[[nn.Module], bool]


_CALL = nn.Module._call_impl.__code__


def _calls_of(module: nn.Module) -> int:
    """Return the number of calls of a module that are open in this thread."""
    frame, number = sys._getframe(1).f_back, 0
    while frame is not None:
        if frame.f_code is _CALL and frame.f_locals.get("self") is module:
            number += 1
        frame = frame.f_back
    return number


def is_open(module: nn.Module) -> bool:
    """Return whether a call of the module is open in this thread, besides the one that starts."""
    return _calls_of(module) > 1


def is_running(module: nn.Module) -> bool:
    """Return whether a call of the module is open in this thread."""
    return _calls_of(module) > 0


def outermost_running(module: nn.Module) -> nn.Module | None:
    """Return the outermost module with an open call in this thread, or None if it is this one."""
    frame: FrameType | None = sys._getframe(1)
    outermost: nn.Module | None = None
    while frame is not None:
        if frame.f_code is _CALL:
            outermost = frame.f_locals.get("self")
        frame = frame.f_back
    return None if outermost is module else outermost


class CallTree:
    """The calls of the modules that ``path_of`` has a path for, while :meth:`watched`."""

    def __init__(
        self, path_of: Callable[[nn.Module], str | None], follows: ThreadPolicy | None = None
    ) -> None:
        self._path_of = path_of
        self._follows = follows or only_this_thread()
        self._at_end: AtEnd | None = None
        self._at_start: AtStart | None = None
        self._at_root: AtRoot | None = None
        self._home = threading.get_ident()
        #: those of torch's modules, while the calls are followed
        self._hooks: tuple[Callable[..., None], ...] = ()
        self._lock = threading.Lock()
        #: when torch last came to a hook of these: what it takes from then on is nobody's
        self.entered = 0
        self.reset()

    def reset(self) -> None:
        """Forget all calls: a new step begins.

        The end of a call that is open now is not noticed.
        """
        #: in the order in which they started
        self.calls: list[Call] = []
        #: paths of modules that ran in threads which are not followed
        self.unrecorded_modules: set[str] = set()
        self._threads: dict[int, CallThread[Call]] = {}
        self._invocations: dict[int, int] = {}
        self._origin: tuple[BaseException, Call, tuple[Any, ...]] | None = None

    @property
    def root(self) -> Call:
        """The first call, which is the model's."""
        return self.calls[0]

    @property
    def current(self) -> Call | None:
        """The innermost call that is open in this thread."""
        thread = self._threads.get(threading.get_ident())
        return None if thread is None else thread.current

    # -- the backward pass -------------------------------------------------------------------------

    def owner_of(self, node: Node | None) -> Call | None:
        """Return the call that made a node of the graph, asked in the thread that runs the node.

        It is None for leaves, and for nodes from before the first call. Those that the model's
        caller makes of its result, for example a loss, are the model's.
        """
        thread = self._current_thread()
        if not thread.runs_its_own_nodes():
            thread = self._threads.get(self._home, thread)
        return thread.owner_of(node)

    def maker_of(self, node: Node) -> Call | None:
        """Return the owner of a node, asked in the thread that created the node."""
        return self._current_thread().owner_of(node)

    # -- exceptions --------------------------------------------------------------------------------

    def origin_of(self, error: BaseException) -> Call | None:
        """Return the first call that an exception left, or None if it left none."""
        if self._origin is None:
            return None
        origin, call, _ = self._origin
        return call if origin is error else None

    @property
    def given_to_origin(self) -> tuple[Any, ...]:
        """The positional arguments of that call."""
        if self._origin is None:
            return ()
        _, _, arguments = self._origin
        return arguments

    def forget_caught(self) -> None:
        """Release an exception that was caught: its frames hold tensors."""
        if self._origin is not None and sys.exception() is not self._origin[0]:
            self._origin = None

    def forget_exception(self) -> None:
        """Release the exception that left a call."""
        self._origin = None

    # -- modules -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watched(
        self,
        at_end: AtEnd | None = None,
        *,
        at_start: AtStart | None = None,
        at_root: AtRoot | None = None,
    ) -> Iterator[None]:
        """Follow the calls in this context, by global hooks, and report each to the callbacks."""
        try:
            self.start(at_end, at_start=at_start, at_root=at_root)
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
        self.pause()
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
        if path is None or not self._hooks or not self._follows() or self._awaits_hooks(module):
            return call(*args, **kwargs)

        self._open(self._current_thread(), module, path, args)
        thread = self._current_thread()
        current = thread.current
        if current is None or current.module is not module:
            # The callback at the root does not follow this call.
            return call(*args, **kwargs)
        current.is_run_here = True
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            self._abandon(thread, current, error, args)
            raise
        self._close(thread, current, (args, kwargs), result)
        return result

    def _awaits_hooks(self, module: nn.Module) -> bool:
        """Return whether :meth:`run` has begun a call that torch's hooks have not reached yet."""
        current = self.current
        if current is None or current.module is not module:
            return False
        return current.is_run_here and not current.is_entered

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Make the model's call the current one, while a generator runs that it has returned."""
        thread = self._current_thread()
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
        if not self._follows():
            self.unrecorded_modules.add(path)
            return
        thread = self._current_thread()
        current = thread.current
        if current is not None and current.is_run_here and self._awaits_hooks(module):
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
            self._abandon(thread, call, sys.exception(), arguments)
        else:
            self._close(thread, call, (arguments, kwargs[0] if kwargs else {}), result)

    def _open(
        self, thread: CallThread[Call], module: nn.Module, path: str, arguments: tuple[Any, ...]
    ) -> None:
        if self._origin is not None:
            self.forget_caught()
        if not path:
            self._forget_interrupted(module)
        parent = thread.current
        if parent is None:
            if self._at_root is not None and not is_in_backward_pass():
                is_followed = self._at_root(module)
                if not is_followed or not self._hooks:  # the callback may have stopped the tree
                    return
                thread = self._current_thread()  # a step that begins forgets those of the last
            parent = self._parent_in(thread)
        with self._lock:  # autograd has a thread for each device
            invocation = self._invocations.get(id(module), 0)
            self._invocations[id(module)] = invocation + 1
            call = Call(module, path, invocation, len(self.calls), parent, thread.current)
            self.calls.append(call)
        if parent is not None:
            parent.children.append(call.index)
        thread.current = call
        thread.assign_nodes_to(call)
        if self._at_start is not None:
            self._at_start(call, arguments)

    def _forget_interrupted(self, module: nn.Module) -> None:
        """Close a call that was interrupted, because torch does not report that.

        It is noticed when the model is called again.
        """
        thread = self._threads.get(threading.get_ident())
        current = None if thread is None else thread.current
        if thread is None or current is None or current.is_run_here:
            return
        if _calls_of(current.module) <= (current.module is module):
            thread.current = None

    def forget_interrupted(self) -> None:
        """Close calls that were interrupted but still count as open: torch does not report that."""
        thread = self._threads.get(threading.get_ident())
        current = None if thread is None else thread.current
        if thread is None or current is None:
            return
        if not is_running(current.module):
            thread.current = None

    def _parent_in(self, thread: CallThread[Call]) -> Call | None:
        """Return the call that a module belongs to that starts in a thread.

        A module that starts in a backward pass is run again by a checkpoint: it belongs to the call
        whose gradient is computed.
        """
        if thread.current is not None or not is_in_backward_pass():
            return thread.current
        owner = self.owner_of(current_node())
        if owner is None and self.calls:
            owner = self.root
        return owner

    def _close(self, thread: CallThread[Call], call: Call, given: Given, result: object) -> None:
        call.handled = None
        try:
            if self._at_end is not None:
                self._at_end(call, given, result)
        finally:  # the callback may raise an error
            thread.current = call.outer
            thread.assign_nodes_to(call.outer)

    def _abandon(
        self,
        thread: CallThread[Call],
        call: Call,
        error: BaseException | None,
        arguments: tuple[Any, ...],
    ) -> None:
        """Close a call that an exception leaves; the first one is its origin."""
        if error is not None and self.origin_of(error) is None:
            self._origin = (error, call, arguments)
        self._close(thread, call, FAILED, ())

    def _current_thread(self) -> CallThread[Call]:
        number = threading.get_ident()
        known = self._threads.get(number)
        if known is not None:
            return known
        return self._threads.setdefault(number, CallThread(is_home=number == self._home))
