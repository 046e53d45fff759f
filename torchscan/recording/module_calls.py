"""One call of a module, and the functions that a call tree tells of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn


class Call:
    """One call of a module, which is added to the children of its parent."""

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
        if parent is not None:
            parent.children.append(index)
        #: the exception that was being handled when it started
        self.handled = sys.exception()
        #: True if :meth:`CallTree.run` began it, and ends it
        self.is_run_here = False
        #: True while the part of such a call goes on that torch's hooks enclose
        self.is_entered = False

    def awaits_hooks_of(self, module: nn.Module) -> bool:
        """Return whether :meth:`CallTree.run` began the call, and torch's hooks did not yet."""
        return self.module is module and self.is_run_here and not self.is_entered

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
