"""Modules whose class computes in its own ``__call__``, where torch's hooks do not see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

from torch import nn

from torchscan.recording.call_tree import CallTree
from torchscan.recording.patches import Contexts
from torchscan.recording.undo import interruptible, is_recording, run_at_end_of_pass


def own_calls_followed(modules: Iterable[nn.Module], tree: CallTree) -> Contexts:
    """Yield contexts in which the tree follows what classes compute around ``nn.Module.__call__``.

    They may compute before, after or in place of it. Each class gets another ``__call__``.
    """
    usual = nn.Module.__call__
    kinds: dict[type[nn.Module], None] = {}
    for module in modules:
        kind = type(module)
        is_usual = kind.__call__ is usual and kind._call_impl is nn.Module._call_impl
        if not is_usual or "_call_impl" in vars(module):
            kinds[kind] = None
    for kind in kinds:
        yield _own_call_followed(kind, tree)


@contextlib.contextmanager
def _own_call_followed(kind: type[nn.Module], tree: CallTree) -> Iterator[None]:
    own = _defined_in(kind)

    def restore() -> None:
        for call in own:
            type.__setattr__(kind, "__call__", call)
        if not own and "__call__" in vars(kind):
            type.__delattr__(kind, "__call__")

    run_at_end_of_pass(restore)
    type.__setattr__(kind, "__call__", _followed(kind, tree))
    try:
        yield
    finally:
        restore()


def _followed(kind: type[nn.Module], tree: CallTree) -> Callable[..., Any]:
    # not bound to anything
    own = next(call for base in kind.__mro__ for call in _defined_in(base))
    bind = getattr(type(own), "__get__", None)

    def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        bound = own if bind is None else bind(own, module, type(module))
        if not is_recording():  # a call in another thread
            return bound(*args, **kwargs)
        return tree.run(module, partial(interruptible, bound), args, kwargs)

    return wraps(own)(call) if callable(own) else call


def _defined_in(kind: type) -> tuple[Any, ...]:
    """Return the ``__call__`` that the class itself defines, if it does."""
    return (vars(kind)["__call__"],) if "__call__" in vars(kind) else ()
