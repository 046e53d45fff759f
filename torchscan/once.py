"""Properties that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - it decorates
    """``functools.cached_property`` without the lock that all instances share up to Python 3.11.

    A process that is forked while another thread computes a property would wait forever for it.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> once[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> once[T] | T:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)
        return value


def has_answer(instance: object, name: str) -> bool:
    """Return whether this property of an object was computed already."""
    return name in vars(instance)


def forget(instance: object, *names: str) -> None:
    """Have these properties of an object computed again when they are next read."""
    for name in names:
        vars(instance).pop(name, None)
