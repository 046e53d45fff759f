"""What a model consists of: its modules with their paths, its parameters and buffers with their owners. Walked once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.once import once
from torchscan.recording.bookkeeping.containers import packed_tensors
from torchscan.trace.events import TensorKind, stored_size


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a module that holds a parameter or a buffer."""

    owner: str
    name: str
    tensor: Tensor
    is_buffer: bool

    @property
    def path(self) -> str:
        """As in ``named_parameters()``."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def kind(self) -> TensorKind:
        """What the record calls it."""
        return "buffer" if self.is_buffer else "parameter"

    @property
    def is_lazy(self) -> bool:
        """Whether it waits for a first input to get its shape."""
        return nn.parameter.is_lazy(self.tensor)


class PackedSize(NamedTuple):
    """How large a parameter in a kernel's own format is."""

    numel: int
    #: a meta tensor of as many bytes
    memory: Tensor


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An object that holds parameters in a kernel's own format, as quantised layers do."""

    owner: str
    name: str
    #: equal where a module holds an object of another one
    identity: int
    #: None: it doesn't hand them out
    sizes: tuple[PackedSize, ...] | None

    @property
    def path(self) -> str:
        """That of the attribute."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


def type_name_of(module: nn.Module) -> str:
    """The class name; a ScriptModule's is that of the class it was made from."""
    return str(getattr(module, "original_name", type(module).__name__))


def modules_of(module: nn.Module) -> dict[str, nn.Module]:
    """Each module once, under its first path, as ``named_modules()`` has them; that one needs a call for each level."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, nn.Module | None]] = [("", module)]
    while waiting:
        path, each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found[path] = each
        prefix = f"{path}." if path else ""
        waiting += [(prefix + name, child) for name, child in reversed(list(each._modules.items()))]
    return found


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """The parameters, then the buffers."""
    modules = modules_of(module).values()
    slots = itertools.chain(*(each._parameters.values() for each in modules), *(each._buffers.values() for each in modules))
    yield from (tensor for tensor in slots if tensor is not None)


def is_on_cuda(module: nn.Module) -> bool:
    """Whether the first tensor of a model is there."""
    first = next(tensors_of(module), None)
    return first is not None and first.is_cuda


def has_meta_tensors(module: nn.Module) -> bool:
    """Whether some parameter or buffer of a model is a meta tensor."""
    return any(tensor.is_meta for tensor in tensors_of(module))


class Inventory:
    """The modules of a model, in the order of ``named_modules()``, and their slots."""

    def __init__(self, module: nn.Module) -> None:
        self.root = module
        #: each module once, under its first path
        self.modules: dict[str, nn.Module] = modules_of(module)
        self._paths = {id(each): path for path, each in self.modules.items()}

    def path_of(self, module: nn.Module) -> str | None:
        """The path of a module; None if the model does not own it."""
        return self._paths.get(id(module))

    @once
    def slots(self) -> tuple[Slot, ...]:
        """Every parameter and buffer slot of every module."""
        return tuple(
            Slot(path, name, tensor, tensors is module._buffers)
            for path, module in self.modules.items()
            for tensors in (module._parameters, module._buffers)
            if tensors
            for name, tensor in tensors.items()
            if tensor is not None
        )

    @once
    def packed(self) -> tuple[PackedObject, ...]:
        """The objects that hold parameters in a kernel's own format."""
        return tuple(
            PackedObject(path, name, id(packed), _sizes_in(packed))
            for path, module in self.modules.items()
            for attribute, value in vars(module).items()
            for name, packed in _objects_in(attribute, value)
        )

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that are there already."""
        return [slot.tensor for slot in self.slots if not slot.is_lazy]


def _objects_in(name: str, value: Any) -> Iterator[tuple[str, torch.ScriptObject]]:
    """Of an attribute, or of the list that it is; a ScriptModule is a module, which has its parameters where all have them."""
    if _is_packed(value):
        yield name, value
    elif type(value) in (list, tuple):
        yield from ((f"{name}[{position}]", item) for position, item in enumerate(value) if _is_packed(item))


def _is_packed(value: object) -> bool:
    """By its type: a proxy that is asked for its class may raise."""
    return issubclass(type(value), torch.ScriptObject) and not issubclass(type(value), torch.ScriptModule)


def _sizes_in(packed: torch.ScriptObject) -> tuple[PackedSize, ...] | None:
    tensors = packed_tensors(packed)
    return None if tensors is None else tuple(map(_size_of, tensors))


def _size_of(tensor: Tensor) -> PackedSize:
    size = stored_size(tensor.numel(), tensor.dtype)
    return PackedSize(tensor.numel(), torch.empty(size, dtype=torch.uint8, device="meta"))
