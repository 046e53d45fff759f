"""What all results share: they display themselves, printed and in a notebook.

Results must not import the writers. Writers register here for the types that they display; the package says how to load
them, and the first result to be displayed loads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchscan.escapes import printable_text

R = TypeVar("R")


class Result:
    """Displays itself through the writers registered for its type. Its ``repr`` is its own."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the result as text without control characters, which names of modules may contain."""
        return printable_text(_writers_of(self)[0](self))

    def _repr_html_(self) -> str:
        return _writers_of(self)[1](self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG002 - IPython's
        """Both forms, for a notebook. ``_repr_pretty_`` wouldn't work: IPython prefers the ``repr`` of a subclass."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}


#: type of result -> its writers: as text, and as part of a page
_registered: dict[type, tuple[Callable[[Any], str], Callable[[Any], str]]] = {}
_loaders: list[Callable[[], object]] = []


def shows(kind: type[R], text: Callable[[R], str], page_part: Callable[[R], str]) -> None:
    """Register how to display results of this type: as text, and as part of a page."""
    if kind in _registered:
        raise ValueError(f"{kind.__name__} is shown already")
    _registered[kind] = (text, page_part)


def load_writers_by(loader: Callable[[], object]) -> None:
    """Say how to load the writers, the first time one is needed."""
    _loaders[:] = [loader]


def load_writers() -> None:
    """Load the writers, unless that has been done."""
    for loader in _loaders:
        loader()  # before it is forgotten: other threads may ask meanwhile, and imports wait for one another
    _loaders.clear()


def _writers_of(result: object) -> tuple[Callable[[Any], str], Callable[[Any], str]]:
    load_writers()
    found = next((_registered[kind] for kind in type(result).__mro__ if kind in _registered), None)
    if found is None:
        raise TypeError(f"no writer is registered for a {type(result).__name__}")
    return found
