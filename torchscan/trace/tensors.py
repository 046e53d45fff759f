"""Telling tensors apart during a pass: who is who, what shares memory, what stands in for what."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from torchscan.trace.events import TensorKind, TensorRecord, TensorSpec


class Tracked:
    """What the pass knows of one tensor object."""

    __slots__ = ("index", "is_concrete", "reference", "spec", "standin", "storage")

    def __init__(self, tensor: Tensor, index: int, spec: TensorSpec, storage: int, standin: Tensor | None) -> None:
        self.reference = weakref.ref(tensor)
        self.index = index
        self.spec = spec
        self.storage = storage
        #: computed with instead of the tensor itself; None: the tensor itself
        self.standin = standin
        #: whether there are values to compute with
        self.is_concrete = not (tensor if standin is None else standin).is_meta

    def replace(self, standin: Tensor) -> None:
        """From now on compute with ``standin``."""
        self.standin = standin
        self.is_concrete = not standin.is_meta


class TensorTable:
    """Every tensor that the pass met, by object.

    A tensor that no operator of the pass produced is *foreign*: it is the user's, so it is read but never written.
    Tensors are held weakly, so a real pass needs no more memory than it would without a record.
    """

    def __init__(self, needs_standin: Callable[[Tensor, TensorSpec, TensorKind], bool]) -> None:
        self.records: list[TensorRecord] = []
        self._needs_standin = needs_standin
        self._tracked: dict[int, Tracked] = {}
        self._specs: dict[tuple[object, ...], TensorSpec] = {}
        self._storage_of_pointer: dict[int, int] = {}
        self._kept_storages: list[torch.UntypedStorage] = []
        self._names: dict[int, tuple[TensorKind, str]] = {}
        self._foreign: set[int] = set()
        #: memory that is not computed with: what stands in for it, None where only shapes do
        self._replaced: dict[int, torch.UntypedStorage | None] = {}
        self._generators: dict[torch.Generator, torch.Generator] = {}
        self._storages = 0

    def name(self, tensor: Tensor, kind: TensorKind, name: str) -> None:
        """Say what a tensor is, should it turn up (the address of its C++ side survives a change of Python wrapper)."""
        self._names.setdefault(tensor._cdata, (kind, name))

    def is_used(self, tensor: Tensor) -> bool:
        """Whether an operator of the pass touched the memory of this tensor."""
        return _storage_pointer(tensor) in self._storage_of_pointer

    def find(self, tensor: Tensor) -> Tracked:
        """The entry of a tensor; one that is met for the first time is foreign and gets its entry now."""
        tracked = self._tracked.get(id(tensor))
        if tracked is not None and tracked.reference() is tensor:
            return tracked
        return self._adopt(tensor)

    def add(self, tensor: Tensor, spec: TensorSpec, producer: int, alias_of: Tracked | None) -> Tracked:
        """Enter what an operator of the pass returned; views have the storage of the tensor that they look into."""
        storage = self._new_storage() if alias_of is None else alias_of.storage
        return self._enter(tensor, spec, storage, None, "intermediate", "", producer)

    def rewrite(self, tensor: Tensor, spec: TensorSpec, producer: int) -> Tracked:
        """Enter that an operator wrote to a tensor or returned it as it is: a new version, made by that operator."""
        tracked = self.find(tensor)
        old = self.records[tracked.index]
        tracked.index = len(self.records)
        tracked.spec = spec
        self.records.append(TensorRecord(spec, old.storage, old.kind, old.name, producer))
        return tracked

    def is_writable(self, tracked: Tracked) -> bool:
        """Whether writing to it changes nothing of the user's."""
        return tracked.storage not in self._foreign or tracked.storage in self._replaced

    def copy_memory(self, tensor: Tensor) -> None:
        """From now on a copy stands in for the memory of ``tensor``, in all tensors that look into it."""
        self._replace_storage(self.find(tensor).storage, tensor.untyped_storage().clone())

    def forget_values(self, tensor: Tensor) -> None:
        """From now on only the shapes are known of all tensors that look into the memory of ``tensor``."""
        self._replace_storage(self.find(tensor).storage, None)

    def generator_for(self, generator: torch.Generator) -> torch.Generator:
        """A copy to draw from, so that the user's own stays where it is."""
        if generator not in self._generators:
            self._generators[generator] = generator.clone_state()
        return self._generators[generator]

    def _replace_storage(self, storage: int, by: torch.UntypedStorage | None) -> None:
        self._replaced[storage] = by
        for tracked in self._tracked.values():
            original = tracked.reference()
            if tracked.storage == storage and original is not None:
                tracked.replace(_standin(original, tracked.spec, by))

    def spec_of(self, tensor: Tensor) -> TensorSpec:
        """The spec of a tensor; equal specs are one object, so that its identity can serve as a key."""
        strided = tensor.layout is torch.strided and not tensor.is_nested
        shape = tuple(tensor.shape) if not tensor.is_nested else (tensor.numel(),)
        key = (shape, tensor.dtype, tensor.stride() if strided else ())
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = TensorSpec(*key)
        return spec

    def _adopt(self, tensor: Tensor) -> Tracked:
        spec = self.spec_of(tensor)
        kind, name = self._names.get(tensor._cdata, ("constant", ""))
        storage = self._foreign_storage(tensor)
        if storage in self._replaced:
            standin: Tensor | None = _standin(tensor, spec, self._replaced[storage])
        elif self._needs_standin(tensor, spec, kind):
            self._replaced[storage] = None
            standin = _standin(tensor, spec, None)
        else:
            standin = None
        return self._enter(tensor, spec, storage, standin, kind, name, None)

    def _enter(
        self,
        tensor: Tensor,
        spec: TensorSpec,
        storage: int,
        standin: Tensor | None,
        kind: TensorKind,
        name: str,
        producer: int | None,
    ) -> Tracked:
        tracked = Tracked(tensor, len(self.records), spec, storage, standin)
        self.records.append(TensorRecord(spec, storage, kind, name, producer))
        self._tracked[id(tensor)] = tracked
        return tracked

    def _foreign_storage(self, tensor: Tensor) -> int:
        pointer = _storage_pointer(tensor)
        storage = self._storage_of_pointer.get(pointer)
        if storage is None:
            storage = self._storage_of_pointer[pointer] = self._new_storage()
            if tensor.layout is torch.strided and not tensor.is_nested:
                self._kept_storages.append(tensor.untyped_storage())  # its address must not be used again meanwhile
            self._foreign.add(storage)
        return storage

    def _new_storage(self) -> int:
        self._storages += 1
        return self._storages - 1


def twin_of(spec: TensorSpec) -> Tensor:
    """A tensor of this spec that has no data."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


def _standin(tensor: Tensor, spec: TensorSpec, storage: torch.UntypedStorage | None) -> Tensor:
    """What to compute with instead of ``tensor``: the same view of another memory block, or a twin without data.

    Views of the model's tensors must be ordinary tensors, not those of inference mode.
    """
    with torch.inference_mode(False):
        if storage is None:
            return twin_of(spec)
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors look into the same memory block."""
    return bool(torch._C._is_alias_of(one, other))  # type: ignore[attr-defined] # it is missing in torch's stubs


def _storage_pointer(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor._cdata
    return int(tensor.untyped_storage()._cdata)
