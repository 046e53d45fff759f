"""Temporary wrappers of torch's functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

#: replacement of a torch function -> its wrappers, the outermost last
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
    """Wrap a function: ``wrapper`` receives the function and its arguments.

    Return a function that removes the wrapper.

    All wrappers of a function share one replacement, so they can be removed in any order. When the
    last one is removed, the function is restored, unless other code has replaced it since: that
    code may call the replacement.
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
        if len(wrappers) == 1:
            return wrappers[0](original, *args, **kwargs)
        run = original
        for wrapper in tuple(wrappers):
            run = partial(wrapper, run)
        return run(*args, **kwargs)

    setattr(replacement, _ORIGINAL, original)
    _WRAPPERS[replacement] = wrappers
    return replacement
