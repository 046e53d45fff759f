"""Containers: the tensors in them, copies of arguments, and items read without foreign code."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: containers with more items are not looked into
LARGEST_CONTAINER = 10_000
#: a search for objects stops after this number of them
MAX_OBJECTS = 200_000

_SEQUENCES = (list, tuple, set, frozenset, deque)
_BUILT_IN = (OrderedDict, dict, *_SEQUENCES)  # subclasses before their bases

#: types of values that hold nothing, and those of dicts, mostly empty tables of hooks
ATOMS = frozenset(
    {int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
TABLES = frozenset({dict, OrderedDict})
_SHARED = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, type)


def plain_type_of(container: Any) -> Any:
    """Return the built-in type whose methods read and write the container, past its subclass."""
    kind = type(container)
    if kind in _BUILT_IN:
        return kind
    return next(each for each in _BUILT_IN if issubclass(kind, each))


def plain_len(container: Any) -> int:
    """Return the number of items, without calling methods of a subclass."""
    return int(plain_type_of(container).__len__(container))


def plain_items(container: Any) -> Iterator[Any]:
    """Return the items, or the keys, without calling methods of a subclass."""
    return iter(plain_type_of(container).__iter__(container))


def copy_items(container: Any) -> Any:
    """Return the items as a dict, set or list, without calling methods of a subclass."""
    if type(container) in TABLES:
        return dict(container)
    if type(container) is list:
        return list(container)
    methods = plain_type_of(container)
    if methods in (dict, OrderedDict):
        return dict(methods.items(container))
    if methods is set:
        return set(plain_items(container))
    return list(plain_items(container))


def refill(container: Any, items: Any) -> None:
    """Replace the items of a container, without calling methods of a subclass."""
    methods = plain_type_of(container)
    methods.clear(container)
    if methods in (list, deque):
        methods.extend(container, items)
    else:
        methods.update(container, items)


def has_same_items(now: Any, before: Any) -> bool:
    """Return whether items are identical; whether they are equal, tensors would compute."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict) and not all(map(operator.is_, now.values(), before.values())):
        return False
    if isinstance(now, set):
        return set(map(id, now)) == set(map(id, before))
    return all(map(operator.is_, now, before))


def named_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested lists, tuples, dicts and dataclasses, each with its position.

    A position is the path to it, for example ``[0].mask``.
    """
    if issubclass(type(value), Tensor):
        yield name, value  # type: ignore[misc] # asked for its class, an object may raise
    else:
        for step, item in _steps_into(value):
            yield from named_tensors(item, name + step)


def held_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Return all tensors that :func:`copy_arguments` copies, each once, with their positions.

    Those in the attributes of objects are among them.
    """
    return _held(value, name, set())


def _held(value: object, name: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    kind = type(value)
    if issubclass(kind, (*_SHARED, nn.Module)) or callable(value) or id(value) in seen:
        return
    seen.add(id(value))
    if issubclass(kind, Tensor):
        yield name, value  # type: ignore[misc] # asked for its class, an object may raise
    else:
        for step, item in [*_steps_into(value)] or _steps_below(value):
            yield from _held(item, name + step, seen)


def _steps_below(value: object) -> list[tuple[str, object]]:
    """Return the objects that an object holds, or none if reading them raises an error."""
    with contextlib.suppress(Exception):
        if issubclass(type(value), _SEQUENCES):
            return [(f"[{index}]", item) for index, item in enumerate(plain_items(value))]
        return [(f".{name}", item) for name, item in _attributes_of(value).items()]
    return []


def _attributes_of(value: object) -> dict[str, Any]:
    attributes: dict[str, Any] = {**getattr(value, "__dict__", {})}
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            attributes[name] = getattr(value, name, None)
    return attributes


def arguments_named(
    module: type, args: Sequence[Any], kwargs: Mapping[str, object]
) -> list[tuple[str, Tensor]]:
    """Return the tensors that a module was called with, and the names that ``forward`` has."""
    named: list[tuple[str, Tensor]] = []
    known: tuple[str, ...] = ()
    if args:
        known = _parameters_of(getattr(module, "forward", None))
    for index, value in enumerate(args):
        name = known[index] if index < len(known) else f"args[{index}]"
        if issubclass(type(value), Tensor):
            named.append((name, value))
        else:
            named += named_tensors(value, name)
    for name, value in kwargs.items():
        named += named_tensors(value, name)
    return named


def _parameters_of(forward: object) -> tuple[str, ...]:
    """Return the positional parameters after ``self``, or none if it is not Python code."""
    code: types.CodeType | None = None
    if type(forward) is types.FunctionType and not hasattr(forward, "__wrapped__"):
        code = forward.__code__
    else:
        with contextlib.suppress(Exception):
            function = inspect.unwrap(forward)  # type: ignore[arg-type]
            code = getattr(function, "__code__", None)
    if code is None:
        return ()
    return code.co_varnames[1 : code.co_argcount]


def _steps_into(value: object) -> Iterator[tuple[str, object]]:
    """Yield the items of a container with the step that leads to each.

    It ends early if reading raises an error.
    """
    kind = type(value)
    with contextlib.suppress(Exception):
        if issubclass(kind, Mapping):
            for key, item in value.items():  # type: ignore[attr-defined]
                yield f"[{key!r}]", item
        elif issubclass(kind, list | tuple):
            items = value if kind in (list, tuple) else plain_items(value)
            for index, item in enumerate(items):  # type: ignore[arg-type]
                yield f"[{index}]", item
        elif dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                yield f".{field.name}", getattr(value, field.name, None)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of :func:`named_tensors`, with a short cut for the two commonest cases."""
    kind = type(value)
    if issubclass(kind, Tensor):
        return [value]
    if kind is tuple and len(value) == 1 and issubclass(type(value[0]), Tensor):
        return [value[0]]
    return [tensor for _, tensor in named_tensors(value)]


def copy_arguments(value: Any, own: Callable[[Tensor], Tensor]) -> Any:
    """Return a deep copy with ``own(tensor)`` for each tensor, which the model may write to.

    Modules and functions are shared, and so are objects that cannot be copied, such as a lock.
    """
    shared: dict[int, Any] = {}
    _share(value, shared, set(), own)
    return _copy(value, shared)


def _copy(value: Any, shared: dict[int, Any]) -> Any:
    """Copy plain containers item by item, so that one that cannot be copied does not matter."""
    if id(value) in shared:
        return shared[id(value)]
    if type(value) is list:
        copied: Any = shared.setdefault(id(value), [])
        copied.extend(_copy(item, shared) for item in value)
        return copied
    if type(value) is dict:
        copied = shared.setdefault(id(value), {})
        copied.update((key, _copy(item, shared)) for key, item in value.items())
        return copied
    if type(value) is tuple:
        return shared.setdefault(id(value), tuple(_copy(item, shared) for item in value))
    if type(value) is object:
        return value  # a marker, which is compared by identity
    try:
        return copy.deepcopy(value, shared)
    except Exception:
        return value


def _share(
    value: object, shared: dict[int, Any], seen: set[int], own: Callable[[Tensor], Tensor]
) -> None:
    """Enter the tensors and modules below ``value`` into a memo of :func:`copy.deepcopy`."""
    kind = type(value)
    if issubclass(kind, _SHARED) or id(value) in seen:
        return
    seen.add(id(value))
    if issubclass(kind, Tensor):
        shared[id(value)] = own(value)  # type: ignore[arg-type]
    elif issubclass(kind, nn.Module) or callable(value):
        shared[id(value)] = value
    else:
        for item in _parts_of(value):
            _share(item, shared, seen, own)


def _parts_of(value: Any) -> list[object]:
    """Return the objects below an object, or none if reading them raises an error."""
    try:
        if issubclass(type(value), Mapping):
            return list(value.values())
        if issubclass(type(value), _SEQUENCES):
            return list(plain_items(value))
        return list(_attributes_of(value).values())
    except Exception:
        return []
