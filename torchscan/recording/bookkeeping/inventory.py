"""What a model consists of: its modules with their paths, its parameters and buffers with their owners. Walked once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchscan.once import once
from torchscan.recording.bookkeeping.containers import Fingerprint, fingerprint_of, packed_objects, packed_tensors
from torchscan.torch_versions import local_part
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedObject:
    """An object that holds parameters in a kernel's own format, as quantised layers do."""

    owner: str
    name: str
    #: equal where a module holds an object of another one
    identity: int
    #: None: it doesn't hand them out
    sizes: tuple[PackedSize, ...] | None
    #: None: nor can it be told from others
    fingerprint: Fingerprint | None

    @property
    def path(self) -> str:
        """That of the attribute."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


def type_name_of(module: nn.Module) -> str:
    """The class name; a ScriptModule's is that of the class it was made from."""
    kind = type(module)
    return str(module.original_name) if issubclass(kind, torch.jit.ScriptModule) else kind.__name__


def is_frozen(module: nn.Module) -> bool:
    """Whether ``torch.jit.freeze`` has made it: it has lost its parameters, and the flag that each other module has."""
    return issubclass(type(module), torch.jit.ScriptModule) and not hasattr(module, "training")


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
            _packed_object(path, name, packed)
            for path, module in self.modules.items()
            for name, packed in packed_objects(vars(module).items())
        )

    @once
    def is_spread(self) -> bool:
        """Whether other processes hold parts of it."""
        return any(local_part(slot.tensor) is not slot.tensor for slot in self.slots)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that are there already."""
        return [slot.tensor for slot in self.slots if not slot.is_lazy]


def _packed_object(owner: str, name: str, packed: torch.ScriptObject) -> PackedObject:
    weights = packed_tensors(packed)
    return PackedObject(
        owner=owner,
        name=name,
        identity=id(packed),
        sizes=None if weights is None else tuple(map(_size_of, weights)),
        fingerprint=fingerprint_of(weights),
    )


def _size_of(tensor: Tensor) -> PackedSize:
    size = stored_size(tensor.numel(), tensor.dtype)
    return PackedSize(tensor.numel(), torch.empty(size, dtype=torch.uint8, device="meta"))
