"""Copies of modules for a replay, and reasons why a call cannot be repeated."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import ATOMS
from torchscan.recording.module_calls import Given
from torchscan.recording.state import original_of

#: parameterised modules compute their weights in hooks, which are torch's own
_HOOKS_OF_TORCH = ("torch.nn.utils.", "torch.nn.modules.")
_MAX_COPY_BYTES = 2**31
_MAX_DEPTH, _MAX_ITEMS = 8, 1000
#: types that a copy does not share, or that are never written to
_PLAIN: Any = (
    *(*ATOMS, torch.Tensor, type, BuiltinFunctionType, ModuleType, enum.Enum, range, slice),
    *(torch.memory_format, torch.layout),
)


def obstacle(module: nn.Module, given: Given) -> Note | None:
    """Return the reason why a call cannot be repeated without side effects, or None if it can."""
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if has_group and torch.distributed.get_world_size() > 1:
        return Note.of("other-ranks")
    original = original_of(module)
    tensors = [*original.parameters(), *original.buffers()]
    sizes = [each.nbytes for each in tensors if not nn.parameter.is_lazy(each)]
    if sum(sizes) > _MAX_COPY_BYTES:
        return Note.of("module-too-large")
    functions = []
    for each in original.modules():
        functions += [value for value in vars(each).values() if isinstance(value, FunctionType)]
    shared = what_is_shared([given, *functions])
    return None if shared is None else Note.of("not-copyable", type_name=shared)


def what_is_shared(value: Any, depth: int = 0) -> str | None:
    """Return the type of something in ``value`` that a copy would share with it, or None.

    It may be an iterator, a module or a connection, for example.
    """
    if depth > _MAX_DEPTH or isinstance(value, _PLAIN):
        return None
    if isinstance(value, FunctionType):
        inside: Iterable[Any] = _values_in(value.__closure__ or ())
    elif isinstance(value, Mapping) and len(value) <= _MAX_ITEMS:
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = itertools.islice(value, _MAX_ITEMS)
    elif dataclasses.is_dataclass(value):
        inside = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        return type(value).__name__
    for each in inside:
        shared = what_is_shared(each, depth + 1)
        if shared is not None:
            return shared
    return None


def _values_in(cells: Iterable[CellType]) -> Iterator[Any]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            yield cell.cell_contents


def copy_of(module: nn.Module) -> nn.Module:
    """Return a copy of the module as it was written, without hooks of the user's."""
    copied = copy.deepcopy(original_of(module))
    for each in copied.modules():
        all_hooks: tuple[dict[int, Callable[..., Any]], ...] = (
            each._forward_hooks,
            each._forward_pre_hooks,
            each._backward_hooks,
            each._backward_pre_hooks,
        )
        for hooks in all_hooks:
            for number, hook in list(hooks.items()):
                origin = getattr(hook, "__module__", None) or type(hook).__module__
                if not origin.startswith(_HOOKS_OF_TORCH):
                    del hooks[number]
    return copied
