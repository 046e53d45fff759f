"""Functions of torch that are replaced by others for a while."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

#: by function that replaces one of torch's: what it passes that one to, the last one first
_WRAPPERS: weakref.WeakKeyDictionary[Callable[..., Any], list[Callable[..., Any]]] = (
    weakref.WeakKeyDictionary()
)
_ORIGINAL = "__wrapped__"


def wrap_function(
    names: Mapping[str, Any],
    name: str,
    wrapper: Callable[..., Any],
    assign: Callable[[str, Any], object],
) -> Callable[[], None]:
    """Replace a function by one that passes it to ``wrapper``, with its arguments.

    Return a function that undoes this.

    All wrappers of a function share one replacement, so that they can be removed in any order.
    With the last one the function is put back, unless something else has replaced it since: that
    may call what it found here.
    """
    replacement = names[name]
    if replacement not in _WRAPPERS:
        replacement = _replace(replacement)
        assign(name, replacement)
    wrappers = _WRAPPERS[replacement]
    wrappers.append(wrapper)

    def undo() -> None:
        if wrapper in wrappers:
            wrappers.remove(wrapper)
        if not wrappers and names[name] is replacement:
            assign(name, getattr(replacement, _ORIGINAL))

    return undo


def _replace(original: Callable[..., Any]) -> Callable[..., Any]:
    wrappers: list[Callable[..., Any]] = []

    def replacement(*args: Any, **kwargs: Any) -> Any:
        run = original
        for wrapper in tuple(wrappers):
            run = partial(wrapper, run)
        return run(*args, **kwargs)

    setattr(replacement, _ORIGINAL, original)
    _WRAPPERS[replacement] = wrappers
    return replacement
