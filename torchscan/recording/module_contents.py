"""The contents of a model's modules, kept before a pass and restored after it."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.containers import (
    ATOMS,
    LARGEST_CONTAINER,
    MAX_OBJECTS,
    TABLES,
    copy_items,
    has_same_items,
    plain_items,
    plain_len,
    plain_type_of,
    refill,
)
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.class_attributes import (
    IS_HEAP_TYPE,
    restore_class,
    restore_slots,
    slots_of,
    user_classes,
)
from torchscan.recording.plain_state import (
    has_plain_state,
    num_bytes_to_copy,
    objects_in,
    steps_for,
)
from torchscan.recording.tensor_state import KeptGradients, TensorState
from torchscan.user_warnings import warn_user

#: arrays beyond this many bytes in all are not copied, and what a pass writes to them stays
_MAX_COPIED = 2**28

_HARMLESS = frozenset(
    {"builtins", "abc", "typing", "types", "enum", "dataclasses", "collections", "__main__"}
)
#: types of containers whose own methods read them
_PLAIN = TABLES | {list, set}
_STANDARD_LIBRARY = sys.stdlib_module_names - _HARMLESS
_NO_STATE = (type, types.FunctionType, types.ModuleType)


class Snapshot:
    """The contents of modules: attributes, items of containers, attributes of objects, generators.

    Models keep objects for the next call, such as a mask, a grid of positions or a list of states.
    After a pass on shapes these would be meta tensors. No code of other classes runs here:
    containers are read and written with the methods of the plain types.
    """

    def __init__(self, modules: Iterable[nn.Module], arguments: Iterable[Any]) -> None:
        self._seen: set[int] = set()
        self._containers: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []
        self._tensors: list[TensorState] = []
        #: modules and objects that could get another class, each with its own
        self._types: list[tuple[Any, type]] = []
        #: functions that restore numbers and bytes in rows, random generators and iterators
        self._steps: list[Callable[[], object]] = []
        #: bytes of the arrays among them
        self._copied = 0
        #: objects with attributes in slots, each with the values of those that are set
        self._slotted: list[tuple[Any, dict[str, Any]]] = []
        modules = list(modules)
        self._classes = [(each, dict(vars(each))) for each in user_classes(modules)]

        parametrize = sys.modules.get("torch.nn.utils.parametrize")
        self._waiting: deque[Any] = deque()
        self._wait_for([*arguments, getattr(parametrize, "_cache", None)])
        self._seen.update(map(id, modules))
        for module in modules:
            self._types.append((module, type(module)))
            attributes = dict(vars(module))
            self._containers.append((vars(module), attributes))
            self._wait_for(attributes.values())
        for _, attributes in self._classes:
            self._wait_for(attributes.values())
        self._take_waiting()
        self.gradients = KeptGradients(each.tensor for each in self._tensors if each.is_leaf)

    def restore(self, table: TensorTable) -> None:
        """Restore all that has changed, also if a part of it cannot be restored."""
        failures: list[BaseException] = []
        for step in self._undo_changes():
            try:
                step()
            except BaseException as error:
                failures.append(error)
        of_tensors: list[TensorState | KeptGradients] = [*self._tensors, self.gradients]
        for state in of_tensors:
            try:
                state.restore(table)
            except BaseException as error:
                failures.append(error)
        if failures:
            _report(failures)

    def _undo_changes(self) -> Iterator[Callable[[], object]]:
        """Yield the steps that restore modules, objects and containers, where they changed."""
        for value, kind in self._types:
            if type(value) is not kind:
                yield partial(object.__setattr__, value, "__class__", kind)
        for filled in filter(None, self._empty):
            yield partial(refill, filled, ())
        for container, items in self._containers:
            # Reading a container must run no code but Python's own.
            readable = container
            if type(container) not in _PLAIN and type(container) is not plain_type_of(container):
                readable = copy_items(container)
            if not has_same_items(readable, items):
                yield partial(refill, container, items)
        for value, attributes in self._slotted:
            yield partial(restore_slots, value, attributes)
        yield from self._steps
        for kind, attributes in self._classes:
            yield partial(restore_class, kind, attributes)

    def _take_waiting(self) -> None:
        """Keep the contents of the objects that wait, and of those in them, near ones first."""
        while self._waiting and len(self._seen) < MAX_OBJECTS:
            value = self._waiting.popleft()
            if id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if type(value) in PLAIN_TYPES:
                self._tensors.append(TensorState(value))
                continue
            try:
                self._take(value)
            except Exception:
                # Some objects raise an error for every question; a tensor must not be left out.
                if issubclass(type(value), Tensor):
                    raise
        self._waiting.clear()

    def _take(self, value: Any) -> None:
        kind = type(value)
        if issubclass(kind, Tensor):
            if not nn.parameter.is_lazy(value):
                self._tensors.append(TensorState(value))
        elif issubclass(kind, dict | list | set | deque):
            self._take_container(value)
        elif issubclass(kind, tuple | frozenset):
            if plain_len(value) <= LARGEST_CONTAINER:
                self._wait_for(plain_items(value))
        elif issubclass(kind, torch.Generator):
            self._steps.append(partial(value.set_state, value.get_state()))
        elif has_plain_state(kind):
            size = num_bytes_to_copy(value)
            if self._copied + size <= _MAX_COPIED:
                self._copied += size
                self._steps.extend(steps_for(value))
            self._wait_for(objects_in(value))
        elif not issubclass(kind, _NO_STATE):
            homes = {each.__module__.partition(".")[0] for each in kind.__mro__}
            # Locks, queues, threads, files and loggers must not be set back.
            if homes.isdisjoint(_STANDARD_LIBRARY):
                self._take_object(value)

    def _take_object(self, value: Any) -> None:
        kind = type(value)
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except Exception:
            attributes = None
        if type(attributes) is dict:
            if kind.__flags__ & IS_HEAP_TYPE:
                self._types.append((value, kind))
            self._take_container(attributes)

        slots = slots_of(value)
        if slots:
            self._slotted.append((value, slots))
            self._wait_for(slots.values())

    def _take_container(self, container: Any) -> None:
        size = len(container) if type(container) in _PLAIN else plain_len(container)
        if size <= LARGEST_CONTAINER:
            items = copy_items(container)
            self._containers.append((container, items))
            self._wait_for(items.values() if type(items) is dict else items)

    def _wait_for(self, values: Iterable[Any]) -> None:
        """Enter objects to look into, except those that hold nothing that could change.

        Most of what a module has is an empty table of hooks, or holds nothing.
        """
        for value in values:
            kind = type(value)
            if kind in _PLAIN and not value:
                self._empty.append(value)
            elif kind not in ATOMS and not (kind is tuple and ATOMS.issuperset(map(type, value))):
                self._waiting.append(value)


def _report(failures: Sequence[BaseException]) -> None:
    """Raise an interruption, or warn about parts that could not be restored."""
    for failure in failures:
        if not isinstance(failure, Exception):
            raise failure
    warn_user(
        f"{len(failures)} part(s) of the model could not be restored, so the model may have "
        f"changed: build it again ({failures[0]!r})"
    )
