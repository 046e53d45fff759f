"""The contents of a model, read once: modules by path, parameters and buffers with their owners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchscan.once import once
from torchscan.recording.bookkeeping.containers import ATOMS
from torchscan.recording.bookkeeping.packed_weights import (
    Fingerprint,
    fingerprint_of,
    packed_objects,
    packed_tensors,
)
from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES
from torchscan.torch_versions import WithoutData, is_fake_type, is_group_pretended, is_sharded_type
from torchscan.trace.events import stored_size
from torchscan.trace.records import TensorKind

_SCRIPT = torch.jit.ScriptModule
#: the attributes of each module, such as parameters and tables of hooks: none of them is packed
_OF_ALL_MODULES = frozenset(vars(nn.Module()))


class Slot(NamedTuple):
    """A place in a module that holds a parameter or a buffer."""

    owner: str
    name: str
    #: as in ``named_parameters()``
    path: str
    tensor: Tensor
    #: "parameter" or "buffer", as the trace records it
    kind: TensorKind

    @property
    def is_buffer(self) -> bool:
        """True for a buffer, False for a parameter."""
        return self.kind == "buffer"


class PackedSize(NamedTuple):
    """The size of a parameter in a kernel's packed format."""

    numel: int
    #: a meta tensor of as many bytes
    memory: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> PackedSize:
        """Return the size of an unpacked parameter."""
        size = stored_size(tensor.numel(), tensor.dtype)
        return cls(tensor.numel(), torch.empty(size, dtype=torch.uint8, device="meta"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedObject:
    """An object that holds parameters in a kernel's own format, as quantized layers do."""

    owner: str
    name: str
    #: equal where a module holds an object of another one
    identity: int
    #: None if the object does not give access to its weights
    sizes: tuple[PackedSize, ...] | None
    #: None if it cannot be told from others
    fingerprint: Fingerprint | None

    @property
    def path(self) -> str:
        """The path of the attribute."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


def type_name_of(module: nn.Module) -> str:
    """Return the class name, for a ScriptModule that of the class it was made from."""
    kind = type(module)
    if issubclass(kind, torch.jit.ScriptModule):
        return str(module.original_name)
    return kind.__name__


def is_frozen(module: nn.Module) -> bool:
    """Return whether ``torch.jit.freeze`` created a module.

    Such a module has lost its parameters, and the ``training`` flag that every other module has.
    """
    return issubclass(type(module), torch.jit.ScriptModule) and not hasattr(module, "training")


def modules_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module once, under its first path, as ``named_modules()`` does.

    That method needs a call for each level of nesting.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, nn.Module | None]] = [("", module)]
    while waiting:
        path, each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield path, each
        if each._modules:
            prefix = f"{path}." if path else ""
            waiting += [(prefix + name, child) for name, child in reversed(each._modules.items())]


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters, then the buffers. The walk is lazy, so the first tensor is cheap."""
    for _, each in modules_of(module):
        yield from (tensor for tensor in each._parameters.values() if tensor is not None)
    for _, each in modules_of(module):
        yield from (tensor for tensor in each._buffers.values() if tensor is not None)


def device_of(module: nn.Module) -> torch.device | None:
    """Return the device of the first tensor of a model, or None if it has none."""
    first = next(tensors_of(module), None)
    if first is None:
        return None
    return first.device


def is_pretended(module: nn.Module) -> bool:
    """Return whether a model belongs to one rank of a simulated process group."""
    return is_group_pretended() and any(is_fake_type(type(each)) for each in tensors_of(module))


def is_on_cuda(module: nn.Module) -> bool:
    """Return whether the first tensor of a model is on a CUDA device."""
    device = device_of(module)
    return device is not None and device.type == "cuda"


class Inventory:
    """The modules of a model, in the order of ``named_modules()``, and their slots.

    Of most models, ``has_plain_tensors`` is True and ``has_scripts`` False. Checks that only
    other tensors and modules need are skipped then.
    """

    def __init__(self, module: nn.Module) -> None:
        self.root = module
        #: each module once, under its first path
        self.modules: dict[str, nn.Module] = dict(modules_of(module))
        self._paths = {id(each): path for path, each in self.modules.items()}
        self.module_types = frozenset(map(type, self.modules.values()))
        self.has_scripts = any(issubclass(each, _SCRIPT) for each in self.module_types)
        slots: list[Slot] = []
        for path, each in self.modules.items():
            prefix = f"{path}." if path else ""
            for name, parameter in each._parameters.items():
                if parameter is not None:
                    slots.append(Slot(path, name, prefix + name, parameter, "parameter"))
            for name, buffer in each._buffers.items():
                if buffer is not None:
                    slots.append(Slot(path, name, prefix + name, buffer, "buffer"))
        #: every parameter and buffer slot of every module
        self.all_slots = tuple(slots)
        #: those whose tensors have a shape
        self.slots = self.all_slots
        #: those whose tensors wait for a first input to get their shapes
        self.lazy_slots: tuple[Slot, ...] = ()
        #: True if the model has fake tensors
        self.is_fake = False
        #: True if parameters are sharded over ranks, or gradients are reduced
        self.is_sharded = False
        self.has_plain_tensors = PLAIN_TYPES.issuperset([type(slot.tensor) for slot in slots])
        if not self.has_plain_tensors:
            self._examine_types()

    def _examine_types(self) -> None:
        is_lazy = nn.parameter.is_lazy
        self.lazy_slots = tuple(slot for slot in self.all_slots if is_lazy(slot.tensor))
        self.slots = tuple(slot for slot in self.all_slots if not is_lazy(slot.tensor))
        types = frozenset([type(slot.tensor) for slot in self.slots])
        self.is_fake = any(map(is_fake_type, types))
        self.is_sharded = any(map(is_sharded_type, types)) or is_pretended(self.root)

    def path_of(self, module: nn.Module) -> str | None:
        """Return the path of a module, or None if the model does not own it."""
        return self._paths.get(id(module))

    @once
    def packed(self) -> tuple[PackedObject, ...]:
        """The objects that hold parameters in a kernel's own format."""
        packed = []
        for path, module in self.modules.items():
            attributes = [
                (name, value)
                for name, value in vars(module).items()
                if name not in _OF_ALL_MODULES
                and type(value) not in ATOMS
                and not (type(value) in (tuple, list) and ATOMS.issuperset(map(type, value)))
            ]
            if attributes:
                for name, each in packed_objects(attributes):
                    packed.append(_packed_object(path, name, each))
        return tuple(packed)

    @property
    def without_data(self) -> WithoutData | None:
        """The way in which tensors without data were created, or None if all have data."""
        for slot in self.slots:
            made = WithoutData.of(slot.tensor)
            if made is not None:
                return made
        return None

    @property
    def has_meta_tensors(self) -> bool:
        """True if a parameter or buffer has no data."""
        return any(slot.tensor.is_meta for slot in self.all_slots)


def _packed_object(owner: str, name: str, packed: torch.ScriptObject) -> PackedObject:
    weights = packed_tensors(packed)
    sizes = None
    if weights is not None:
        sizes = tuple([PackedSize.of(each) for each in weights])
    return PackedObject(
        owner=owner,
        name=name,
        identity=id(packed),
        sizes=sizes,
        fingerprint=fingerprint_of(weights),
    )
