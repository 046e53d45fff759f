"""Putting something else in a place of torch's for as long as a pass takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torchscan.recording.undo import at_the_latest


@contextlib.contextmanager
def replaced(places: dict[Any, Any], key: Any, by: Callable[[Any], Any]) -> Iterator[None]:
    """Put something in a place, and put back what was there unless somebody has taken it away."""
    before = places[key]

    def put_back() -> None:
        if key in places:
            places[key] = before

    at_the_latest(put_back)
    places[key] = by(before)
    try:
        yield
    finally:
        put_back()


@contextlib.contextmanager
def overridden(owner: object, name: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """Put something in the place of a method of one object."""
    places, method = vars(owner), getattr(owner, name)
    if name in places:
        with replaced(places, name, by):
            yield
        return
    at_the_latest(partial(places.pop, name, None))
    places[name] = by(method)
    try:
        yield
    finally:
        places.pop(name, None)
