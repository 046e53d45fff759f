"""Finding the tensors in whatever people pass to a model and get back from it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: containers beyond this many items, and what is reached after this many objects, are not looked into
LARGEST_CONTAINER, MAX_OBJECTS = 10_000, 200_000

_SEQUENCES = (list, tuple, set, frozenset, deque)
_BUILT_IN = (OrderedDict, dict, *_SEQUENCES)  # the more special ones first
_CONTAINERS = (list, tuple, dict)
_HOLDERS = (torch.ScriptObject, *_CONTAINERS)

#: equal where the weights in two objects are
Fingerprint = tuple[str, ...]
_MAX_VALUES = 1000

#: types of values that hold nothing, and those of dicts, mostly empty tables of hooks
ATOMS = frozenset(
    {int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
TABLES = frozenset({dict, OrderedDict})
_SHARED = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, type)


def plain_type_of(container: Any) -> Any:
    """The type whose methods read and write the container, whatever a subclass makes of them."""
    kind = type(container)
    return kind if kind in _BUILT_IN else next(each for each in _BUILT_IN if issubclass(kind, each))


def plain_len(container: Any) -> int:
    """Return the number of items, without calling methods of a subclass."""
    return int(plain_type_of(container).__len__(container))


def plain_items(container: Any) -> Iterator[Any]:
    """The items, or the keys."""
    return iter(plain_type_of(container).__iter__(container))


def named_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors in nested lists, tuples, dicts and dataclasses, each with its position: ``('[0].mask', tensor)``."""
    if issubclass(type(value), Tensor):
        yield name, value  # type: ignore[misc] # asked for its class, an object may raise
    else:
        for step, item in _steps_into(value):
            yield from named_tensors(item, name + step)


def held_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All that :func:`copy_arguments` copies: also tensors in the attributes of objects, each once."""
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
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {
        **getattr(value, "__dict__", {}),
        **{name: getattr(value, name, None) for name in slots},
    }


def arguments_named(
    module: type, args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a module was called with, by the names that its ``forward`` has for them."""
    known = _parameters_of(getattr(module, "forward", None)) if args else ()
    for at, value in enumerate(args):
        yield from named_tensors(value, known[at] if at < len(known) else f"args[{at}]")
    for name, value in kwargs.items():
        yield from named_tensors(value, name)


def _parameters_of(forward: object) -> tuple[str, ...]:
    """The positional parameters after ``self``, as far as Python code says."""
    code = None
    with contextlib.suppress(Exception):
        code = getattr(inspect.unwrap(forward), "__code__", None)  # type: ignore[arg-type]
    return () if code is None else code.co_varnames[1 : code.co_argcount]


def _steps_into(value: object) -> Iterator[tuple[str, object]]:
    """Yield the items of a container with the step that leads to each.

    It ends early if reading raises an error.
    """
    kind = type(value)
    with contextlib.suppress(Exception):
        if issubclass(kind, Mapping):
            yield from ((f"[{key!r}]", item) for key, item in value.items())  # type: ignore[attr-defined]
        elif issubclass(kind, list | tuple):
            yield from ((f"[{index}]", item) for index, item in enumerate(plain_items(value)))
        elif dataclasses.is_dataclass(kind):
            yield from (
                (f".{field.name}", getattr(value, field.name, None))
                for field in dataclasses.fields(kind)
            )


def tensors_in(value: object) -> list[Tensor]:
    """The tensors of :func:`named_tensors`, with a short way for the two commonest cases."""
    kind = type(value)
    if issubclass(kind, Tensor):
        return [value]  # type: ignore[list-item]
    if kind is tuple and len(value) == 1 and issubclass(type(value[0]), Tensor):  # type: ignore[arg-type, index]
        return [value[0]]  # type: ignore[index]
    return [tensor for _, tensor in named_tensors(value)]


def copy_arguments(value: Any, own: Callable[[Tensor], Tensor]) -> Any:
    """A deep copy with ``own(tensor)`` for each tensor: a model that writes to what it was handed writes to the copy.

    Modules and functions are shared, and so is what refuses to be copied (a lock, a generator).
    """
    shared: dict[int, Any] = {}
    _share(value, shared, set(), own)
    return _copy(value, shared)


def _copy(value: Any, shared: dict[int, Any]) -> Any:
    """Plain containers item by item, so that one item that cannot be copied does not keep the others from it."""
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
        return value  # a mark, told by its identity
    try:
        return copy.deepcopy(value, shared)
    except Exception:
        return value


def _share(
    value: object, shared: dict[int, Any], seen: set[int], own: Callable[[Tensor], Tensor]
) -> None:
    """Enter every tensor and module below ``value`` into ``shared``, a memo of :func:`copy.deepcopy`."""
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


def _parts_of(value: object) -> list[object]:
    """Return the objects below an object, or none if reading them raises an error."""
    try:
        return _items_or_attributes_of(value)
    except Exception:
        return []


def _items_or_attributes_of(value: Any) -> list[object]:
    if issubclass(type(value), Mapping):
        return list(value.values())
    if issubclass(type(value), _SEQUENCES):
        return list(plain_items(value))
    return list(_attributes_of(value).values())


def packed_objects(named: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, torch.ScriptObject]]:
    """Objects with weights in a kernel's own format, in lists, tuples and dicts however nested, each with its position."""
    waiting, seen = deque(_worth_a_look(named)), set[int]()
    while waiting and len(seen) < MAX_OBJECTS:
        name, value = waiting.popleft()
        if _is_packed(value):
            yield name, value
        elif (
            issubclass(type(value), _CONTAINERS)
            and plain_len(value) <= LARGEST_CONTAINER
            and id(value) not in seen
        ):
            seen.add(id(value))
            pairs = (
                dict.items(value)
                if issubclass(type(value), dict)
                else enumerate(plain_items(value))
            )
            waiting.extend((f"{name}[{key!r}]", item) for key, item in _worth_a_look(pairs))


def _worth_a_look(named: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [
        (name, value)
        for name, value in named
        if type(value) not in ATOMS and issubclass(type(value), _HOLDERS)
    ]


def _is_packed(value: object) -> bool:
    """Return whether a value is a packed TorchScript object.

    Only its type is read, because a proxy may raise when it is asked for its class. A ScriptModule
    is not packed: it has its parameters where all modules have them.
    """
    return issubclass(type(value), torch.ScriptObject) and not issubclass(
        type(value), torch.ScriptModule
    )


def packed_tensors(packed: torch.ScriptObject) -> list[Tensor] | None:
    """The weights, each once, in an object that holds them in a kernel's own format, as quantised layers do.

    None if it doesn't hand them out.
    """
    try:
        return list(
            {tensor._cdata: tensor for tensor in _unpacked(packed) if _is_weight(tensor)}.values()
        )
    except (
        RuntimeError,
        TypeError,
        AttributeError,
    ):  # each class of such objects has its own reasons
        return None


def fingerprint_of(weights: Sequence[Tensor] | None) -> Fingerprint | None:
    """Return values that identify packed weights, because torch passes a new object each time."""
    return None if weights is None else tuple(map(_values_of, weights))


def _values_of(tensor: Tensor) -> str:
    """Its type, shape and some values, which no two layers that were trained have in common."""
    values = (tensor.int_repr() if tensor.is_quantized else tensor).flatten()
    return f"{tensor.dtype} {list(tensor.shape)} {values[:: values.numel() // _MAX_VALUES + 1].tolist()}"


def _unpacked(value: object) -> list[Tensor]:
    if isinstance(value, torch.ScriptObject):
        return (
            _as_packed(_unpacked(value.unpack()))
            if hasattr(value, "unpack")
            else _unpacked(value.__getstate__())
        )
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _unpacked(item)]
    return [value] if isinstance(value, Tensor) else []


def _as_packed(tensors: list[Tensor]) -> list[Tensor]:
    """The weight comes first. If it isn't quantised, it is packed in half precision, although it is unpacked in single."""
    return [
        tensor.half() if tensor.dtype == torch.float32 else tensor for tensor in tensors[:1]
    ] + tensors[1:]


def _is_weight(tensor: Tensor) -> bool:
    return tensor.is_quantized or tensor.is_floating_point() or tensor.is_complex()
