"""Leaving no trace: whatever a forward pass changes is put back when the pass is over, also after an exception."""

from __future__ import annotations

import operator
import random
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchscan.errors import InputError, warn_user
from torchscan.recording.bookkeeping.containers import (
    ATOMS,
    LARGEST_CONTAINER,
    MAX_OBJECTS,
    TABLES,
    plain_items,
    plain_len,
    plain_type_of,
)
from torchscan.recording.bookkeeping.inventory import Inventory, is_pretended
from torchscan.recording.bookkeeping.tensors import PLAIN_TYPES, TensorTable, has_strides
from torchscan.recording.kept_gradients import KeptGradients
from torchscan.recording.plain_state import (
    has_plain_state,
    num_bytes_to_copy,
    objects_in,
    steps_for,
)
from torchscan.recording.surroundings import leave_surroundings
from torchscan.recording.switches import keep_switches
from torchscan.recording.undo import Undo, is_recording, put_back_after
from torchscan.torch_versions import (
    compiled_from,
    hooks_for_gradients_as_now,
    hooks_of,
    modes_as_now,
    put_back_hooks,
    set_version,
    share_memory,
)

T = TypeVar("T")

_HARMLESS = frozenset(
    {"builtins", "abc", "typing", "types", "enum", "dataclasses", "collections", "__main__"}
)
_STANDARD_LIBRARY = sys.stdlib_module_names - _HARMLESS
_CALL = nn.Module._call_impl.__code__
_NO_STATE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
)


def unchanged(
    inventory: Inventory,
    mode: str,
    arguments: Sequence[Any],
    table: TensorTable,
    body: Callable[[], T],
) -> T:
    """Call ``body`` with the module in ``mode`` ("eval", "train" or "same"), and put everything back.

    What other threads do to the model at the same time is theirs: the table knows what the pass did.
    """
    if is_recording():
        raise InputError(
            "torchscan was called inside the forward pass of a model that it records: record the "
            "models one after the other"
        )
    modules = list(inventory.modules.values())

    def with_everything_kept(undo: Undo) -> T:
        _refuse_if_running_elsewhere(inventory.root, modules)
        leave_surroundings(undo)
        undo.push(modes_as_now(), is_of_process=False)
        undo.push(hooks_for_gradients_as_now(), is_of_process=False)
        keep_random_state(undo)
        keep_switches(undo)
        snapshot = Snapshot(
            modules, [*arguments, *inventory.tensors]
        )  # a ScriptModule keeps its own out of sight
        undo.push(partial(snapshot.restore, table))
        snapshot.gradients.watch(undo)
        undo.push(partial(_set_flags, modules, [_training_of(each) for each in modules]))
        _bypass_compilation(modules)
        set_training(modules, mode)
        return body()

    return put_back_after(with_everything_kept)


def _refuse_if_running_elsewhere(root: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Raise an InputError if another thread runs the model: both would change its attributes."""
    others = _frames_of_others()
    ids = set(map(id, modules)) if others else set()
    if any(_is_in(ids, frame) for frame in others):
        raise InputError(
            f"another thread is running this model ({type(root).__name__}), and recording it now "
            "would interfere: wait until it has finished, or give copy.deepcopy(model)"
        )


def _is_in(modules: Collection[int], frame: FrameType | None) -> bool:
    """Return whether the thread with this innermost frame runs one of the modules."""
    while frame is not None:
        if frame.f_code is _CALL and id(frame.f_locals.get("self")) in modules:
            return True
        frame = frame.f_back
    return False


def keep_random_state(undo: Undo) -> None:
    """Python's, NumPy's and torch's generators, those of initialised CUDA devices included."""
    undo.push(partial(random.setstate, random.getstate()))
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    if numpy_random is not None:
        undo.push(partial(numpy_random.set_state, numpy_random.get_state()))
    undo.push(partial(torch.set_rng_state, torch.get_rng_state()))
    if torch.cuda.is_initialized():
        undo.push(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))


# -- the model -----------------------------------------------------------------------------------------------------------


def original_of(module: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` or DistributedDataParallel wraps."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and not is_pretended(module):
        return original_of(module.module)  # it would talk to the other processes
    compiled = compiled_from(module)
    return module if compiled is None else original_of(compiled)


def _bypass_compilation(modules: Sequence[nn.Module]) -> None:
    """Put originals where compiled modules are; the snapshot takes that back."""
    for module in modules:
        for name, child in module._modules.items():
            if child is not None and original_of(child) is not child:
                module._modules[name] = original_of(child)


def set_training(modules: Sequence[nn.Module], mode: str) -> None:
    """Set the training flags one by one.

    An overridden ``train()`` may have effects that cannot be undone, such as merging adapters.
    """
    if mode != "same":
        _set_flags(modules, [mode == "train"] * len(modules))


def _training_of(module: nn.Module) -> bool | None:
    """None: it has been frozen, and its flag with it."""
    flag: bool | None = vars(module).get("training")
    return getattr(module, "training", None) if flag is None else flag


def _set_flags(modules: Sequence[nn.Module], flags: Sequence[bool | None]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if flag is None or _training_of(module) in (None, flag):
            continue
        if isinstance(module, torch.jit.ScriptModule):
            module.training = flag
        else:
            vars(module)["training"] = flag  # past a __setattr__ of its own


class Snapshot:
    """The contents of modules: attributes, items of containers, attributes of objects, generators.

    Models keep objects for the next call, such as a mask, a grid of positions or a list of states.
    After a pass on shapes these would be meta tensors. No code of other classes runs here:
    containers are read and written with the methods of the plain types.
    """

    def __init__(self, modules: Iterable[nn.Module], arguments: Iterable[Any]) -> None:
        self._seen: set[int] = set()
        self._containers: list[tuple[Any, Any]] = []
        self._empty: list[dict[Any, Any]] = []
        self._tensors: list[_TensorState] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        #: modules and objects that could get another class, each with its own
        self._types: list[tuple[Any, type]] = []
        #: what puts back numbers and bytes in rows, random generators and iterators
        self._steps: list[Callable[[], object]] = []
        #: bytes of the arrays among them
        self._copied = 0
        #: objects with attributes in slots, each with the values of those that are set
        self._slotted: list[tuple[Any, dict[str, Any]]] = []
        modules = list(modules)
        classes = {
            each for kind in set(map(type, modules)) for each in kind.__mro__ if _is_users(each)
        }
        self._classes = [(each, dict(vars(each))) for each in classes]
        parametrize = sys.modules.get("torch.nn.utils.parametrize")
        self._waiting: deque[Any] = deque([*arguments, getattr(parametrize, "_cache", None)])
        self._seen.update(map(id, modules))
        for module in modules:
            self._types.append((module, type(module)))
            self._keep(vars(module), dict(vars(module)))
        for _, attributes in self._classes:
            self._wait_for(attributes.values())
        while self._waiting and len(self._seen) < MAX_OBJECTS:  # what is near comes first
            value = self._waiting.popleft()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                if type(value) in PLAIN_TYPES:
                    self._tensors.append(_TensorState(value))
                else:
                    self._take_if_possible(value)
        self._waiting.clear()
        self.gradients = KeptGradients(each.tensor for each in self._tensors if each.is_leaf)

    def restore(self, table: TensorTable) -> None:
        """Put back what is not as it was. One that cannot be does not keep the others from it."""
        failures: list[BaseException] = []
        for value, kind in self._types:
            if type(value) is not kind:
                _try(failures, object.__setattr__, value, "__class__", kind)
        for filled in filter(None, self._empty):
            _try(failures, _refill, filled, ())
        for container, items in self._containers:
            if not _same_items(
                container if type(container) in TABLES else _readable(container), items
            ):
                _try(failures, _refill, container, items)
        for value, attributes in self._slotted:
            _try(failures, _restore_slots, value, attributes)
        for restore in self._steps:
            _try(failures, restore)
        for kind, attributes in self._classes:
            _try(failures, _restore_class, kind, attributes)
        for tensor in self._tensors:
            _try(failures, tensor.restore, table)
        _try(failures, self.gradients.restore, table)
        for generator, state in self._generators:
            _try(failures, generator.set_state, state)
        interruption = next((each for each in failures if not isinstance(each, Exception)), None)
        if interruption is not None:
            raise interruption
        if failures:
            warn_user(
                f"{len(failures)} part(s) of the model could not be restored, so the model may "
                f"have changed: build it again ({failures[0]!r})"
            )

    def _take_if_possible(self, value: Any) -> None:
        """Some objects answer every question with an exception; a tensor that does is not passed over."""
        try:
            self._take(value)
        except Exception:
            if issubclass(type(value), Tensor):
                raise

    def _take(self, value: Any) -> None:
        kind = type(value)
        if issubclass(kind, Tensor):
            if not nn.parameter.is_lazy(value):
                self._tensors.append(_TensorState(value))
        elif issubclass(kind, dict | list | set | deque):
            self._take_container(value)
        elif issubclass(kind, tuple | frozenset):
            if plain_len(value) <= LARGEST_CONTAINER:
                self._wait_for(plain_items(value))
        elif issubclass(kind, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif has_plain_state(kind):
            self._take_plain(value)
        elif not (issubclass(kind, _NO_STATE) or _is_live(kind)):
            self._take_object(value)

    def _take_plain(self, value: Any) -> None:
        size = num_bytes_to_copy(value)
        if self._copied + size <= _MAX_COPIED:
            self._copied += size
            self._steps.extend(steps_for(value))
        self._wait_for(objects_in(value))

    def _take_object(self, value: Any) -> None:
        kind = type(value)
        attributes = _attributes_of(value)
        if attributes is not None:
            if kind.__flags__ & _IS_HEAP_TYPE:
                self._types.append((value, kind))
            self._take_container(attributes)
        slots = _slots_of(value)
        if slots:
            self._slotted.append((value, slots))
            self._wait_for(slots.values())

    def _take_container(self, container: Any) -> None:
        size = len(container) if type(container) in TABLES else plain_len(container)
        if size <= LARGEST_CONTAINER:
            self._keep(container, _items_of(container))

    def _keep(self, container: Any, items: Any) -> None:
        self._containers.append((container, items))
        self._wait_for(items.values() if type(items) is dict else items)

    def _wait_for(self, values: Iterable[Any]) -> None:
        """Most of what a module has is an empty table of hooks, or has nothing in it that could change."""
        for value in values:
            kind = type(value)
            if kind in TABLES and not value:
                self._empty.append(value)
            elif kind not in ATOMS and not (kind is tuple and ATOMS.issuperset(map(type, value))):
                self._waiting.append(value)


def _try(failures: list[BaseException], step: Callable[..., object], *arguments: Any) -> None:
    try:
        step(*arguments)
    except BaseException as error:
        failures.append(error)


#: arrays beyond this many bytes in all are not copied, and what a pass writes to them stays
_MAX_COPIED = 2**28
#: of a class that Python code has made: only its objects can get another class
_IS_HEAP_TYPE = 1 << 9


def _slots_of(value: Any) -> dict[str, Any]:
    """Return the attributes in slots that are set, by name."""
    members = {
        name: member
        for base in type(value).__mro__
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType and base.__flags__ & _IS_HEAP_TYPE
    }
    slots = {}
    for name, member in members.items():
        try:
            slots[name] = member.__get__(value)
        except AttributeError:
            continue
    return slots


def _restore_slots(value: Any, attributes: dict[str, Any]) -> None:
    now = _slots_of(value)
    for name in now.keys() - attributes.keys():
        _member_of(value, name).__delete__(value)
    for name, before in attributes.items():
        if name not in now or now[name] is not before:
            _member_of(value, name).__set__(value, before)


def _member_of(value: Any, name: str) -> Any:
    return next(vars(base)[name] for base in type(value).__mro__ if name in vars(base))


def _is_live(kind: type) -> bool:
    """Locks, queues, threads, files, loggers and what is made of them have a life of their own, which must not be set back."""
    homes = {each.__module__.partition(".")[0] for each in kind.__mro__}
    return not homes.isdisjoint(_STANDARD_LIBRARY)


def _attributes_of(value: Any) -> dict[str, Any] | None:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:
        return None
    return attributes if type(attributes) is dict else None


class _TensorState:
    """The state of a tensor that an assignment can change, without its elements."""

    __slots__ = (
        "_attributes",
        "_data",
        "_hooks",
        "_requires_grad",
        "_version",
        "is_leaf",
        "tensor",
    )

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._data = tensor.data
        self._requires_grad = tensor.requires_grad
        self._version = 0 if tensor.is_inference() else tensor._version
        self.is_leaf = tensor.is_leaf
        self._hooks = hooks_of(tensor)
        self._attributes = dict(vars(tensor)) if getattr(tensor, "__dict__", None) else {}

    def restore(self, table: TensorTable) -> None:
        tensor, data = self.tensor, self._data
        if not share_memory(tensor, data) or not _is_laid_out_like(tensor, data):
            tensor.data = data
        if self.is_leaf and not tensor.is_leaf:  # written to with something that has a gradient
            tensor.detach_()
        if tensor.requires_grad != self._requires_grad and tensor.is_leaf == self.is_leaf:
            tensor.requires_grad_(self._requires_grad)
        attributes = vars(tensor)
        if (attributes or self._attributes) and not _same_items(attributes, self._attributes):
            _refill(attributes, self._attributes)
        put_back_hooks(tensor, self._hooks)
        version = 0 if tensor.is_inference() else tensor._version
        if version != self._version and table.was_written(
            tensor
        ):  # an operator counts it up, wherever it writes
            set_version(tensor, self._version)


def _frames_of_others() -> list[FrameType]:
    """The innermost frame of each other thread."""
    if threading.active_count() == 1:
        return []
    return [
        frame for number, frame in sys._current_frames().items() if number != threading.get_ident()
    ]


def _is_laid_out_like(tensor: Tensor, other: Tensor) -> bool:
    strided = tensor.layout is other.layout is torch.strided and not (
        tensor.is_nested or other.is_nested
    )
    if not strided:
        return has_strides(tensor) == has_strides(other)
    same = tensor.shape == other.shape and tensor.stride() == other.stride()
    return same and tensor.storage_offset() == other.storage_offset()


def _is_users(kind: type) -> bool:
    return not kind.__module__.startswith("torch.")


def _restore_class(kind: type, attributes: dict[str, Any]) -> None:
    """Class attributes that a forward pass assigned: a table that all instances share."""
    now = dict(vars(kind))
    for name in now.keys() - attributes.keys():
        type.__delattr__(kind, name)
    for name, value in attributes.items():
        if now.get(name) is not value:
            setattr(kind, name, value)


def _readable(container: Any) -> Any:
    """The container itself where reading it runs no code but Python's own, else its items."""
    return container if type(container) is plain_type_of(container) else _items_of(container)


def _items_of(container: Any) -> Any:
    if type(container) in TABLES:
        return dict(container)
    methods = plain_type_of(container)
    if methods in (dict, OrderedDict):
        return dict(methods.items(container))
    return (set if methods is set else list)(plain_items(container))


def _refill(container: Any, items: Any) -> None:
    methods = plain_type_of(container)
    methods.clear(container)
    (methods.extend if methods in (list, deque) else methods.update)(container, items)


def _same_items(now: Any, before: Any) -> bool:
    """Identity, not equality: comparing tensors would compute."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(map(operator.is_, now.values(), before.values())) and all(
            map(operator.is_, now, before)
        )
    if isinstance(now, set):
        return set(map(id, now)) == set(map(id, before))
    return all(map(operator.is_, now, before))
