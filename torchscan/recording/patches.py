"""Replacement of functions and values of torch, or of a model, for as long as a pass takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torchscan.recording.undo import run_at_end_of_pass

#: contexts to enter one after the other
Contexts = Iterator[AbstractContextManager[object]]


@contextlib.contextmanager
def replaced(places: dict[Any, Any], key: Any, by: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an entry of a dict, and restore it unless other code has removed it."""
    before = places[key]

    def put_back() -> None:
        if key in places:
            places[key] = before

    run_at_end_of_pass(put_back)
    places[key] = by(before)
    try:
        yield
    finally:
        put_back()


def overridden(owner: Any, name: str, by: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """Replace an attribute by what ``by`` makes of it; see :func:`substituted`."""
    return substituted(owner, name, by(getattr(owner, name)))


@contextlib.contextmanager
def substituted(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute, also one of an object's class, or of a class's base."""
    is_own = name in vars(owner)
    own = vars(owner).get(name)  # before it is bound: of a class, it may be a classmethod

    def put_back() -> None:
        if is_own:
            setattr(owner, name, own)
        elif name in vars(owner):
            delattr(owner, name)

    run_at_end_of_pass(put_back)
    setattr(owner, name, value)
    try:
        yield
    finally:
        put_back()
