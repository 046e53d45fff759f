"""Blocks of memory during a pass: the size of each, the call that made it, and when it was freed.

When a block is freed is observed and not computed: the model's code, containers, and autograd until
the backward pass, hold a tensor in a pass on shapes alone just as they do in a pass on data.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchscan.torch_versions import is_functorch_wrapped
from torchscan.trace.events import Sparsity, TensorSpec, stored_size
from torchscan.trace.records import StorageKind, StorageRecord


class _StorageWatch(weakref.ref[object]):
    """A weak reference to memory, with a callback in C.

    An exception that a signal raises in a callback in Python would be lost.
    """

    __slots__ = ("number", "pointer")

    number: int
    pointer: int


#: a block of memory: its size, the number of operator calls before it, what it holds, and its name
_Block = tuple[int, int, StorageKind, str]
#: kinds that outlive each pass, because their original state is kept, and need no watch
_KEPT = ("parameter", "buffer")
#: kinds that the pass makes
_MADE = ("intermediate", "gradient", "gathered")


@dataclass(slots=True, kw_only=True, eq=False)
class Storages:
    """Every block of memory that the pass met, by number. None is kept alive by this."""

    #: operator calls made so far: the clock of the pass
    _now: int = 0
    _blocks: list[_Block] = field(default_factory=list)
    _died: dict[int, int] = field(default_factory=dict)
    #: number of other storages that keep a block alive, because functions got them instead
    _more_holders: dict[int, int] = field(default_factory=dict)
    _of_pointer: dict[int, int] = field(default_factory=dict)
    _watches: dict[int, _StorageWatch] = field(default_factory=dict)
    #: watches of freed memory that have not been handled yet
    _gone: list[_StorageWatch] = field(default_factory=list)
    _leaves_out_host: bool = False

    def records(self) -> tuple[StorageRecord, ...]:
        """Return a record of each storage."""
        records = []
        for number, (size, seen, kind, name) in enumerate(self._blocks):
            died = self._died.get(number)
            born = None
            # Constants that outlive the pass are the model's, and were there before.
            if kind in _MADE or (kind == "constant" and died is not None):
                born = seen
            records.append(StorageRecord(size, born, died, kind, name))
        return tuple(records)

    def find(self, tensor: Tensor) -> int | None:
        """Return the number of the memory of a tensor, or None if it was not met."""
        if self._gone:
            self._settle()
        storage = _storage_of(tensor)
        return self._of_pointer.get(tensor._cdata if storage is None else storage._cdata)

    def find_or_add(self, tensor: Tensor, kind: StorageKind, name: str) -> tuple[int, bool]:
        """Return the number of memory that no operator call made, and whether it is new.

        It was there before the pass, or was made where operators are not recorded.
        """
        if self._gone:
            self._settle()
        storage = _storage_of(tensor)
        pointer = tensor._cdata if storage is None else storage._cdata
        known = self._of_pointer.get(pointer)
        if known is not None:
            return known, False

        if storage is not None:
            size = storage.nbytes()
        elif is_functorch_wrapped(tensor):  # by vmap or grad: the memory is elsewhere
            size = 0
        else:
            size = bytes_of(tensor)
        if self._leaves_out_host and not tensor.is_meta:
            size = 0
        number = len(self._blocks)
        self._blocks.append((size, self._now, kind, name))
        if kind in _KEPT:
            self._of_pointer[pointer] = number
        else:
            self._hold(tensor if storage is None else storage, pointer, number)
        return number, True

    def add_made(self, tensor: Tensor, spec: TensorSpec, producer: int) -> int:
        """Return the number of memory that an operator call made.

        If the tensor has no storage of its own, its spec has the size. Some operators say that they
        return new memory, and return that of an operand: those of FSDP2, before it gathers.
        """
        if self._gone:
            self._settle()
        memory: Tensor | torch.UntypedStorage
        try:
            memory = tensor.untyped_storage()
            known = self._watches.get(memory._cdata)
            if known is not None:
                return known.number
            size = memory.nbytes()
        except (NotImplementedError, RuntimeError):  # see _storage_of
            memory, size = tensor, spec.stored_bytes
        if self._leaves_out_host and not tensor.is_meta:
            size = 0
        number = len(self._blocks)
        self._blocks.append((size, producer, "intermediate", ""))
        self._hold(memory, memory._cdata, number)
        return number

    def add_told(self, size: int, seen: int, died: int, kind: StorageKind, name: str) -> int:
        """Return the number of memory that was not there: its life is derived from other memory."""
        number = len(self._blocks)
        self._blocks.append((size, seen, kind, name))
        self._died[number] = died
        return number

    def stands_for(self, tensor: Tensor, number: int, *, holds: bool = False) -> None:
        """Note that the pass computes with ``tensor``, which is dense, in place of a block.

        With ``holds``, the tensor keeps the block alive.
        """
        if self._gone:
            self._settle()
        storage = tensor.untyped_storage()
        if holds:
            self._more_holders[number] = self._more_holders.get(number, 0) + 1
            self._hold(storage, storage._cdata, number)
        else:
            self._of_pointer.setdefault(storage._cdata, number)

    def call_it(self, number: int, kind: StorageKind, name: str) -> None:
        """Note the kind and the name of a block, which show later than the block itself."""
        size, seen, _, _ = self._blocks[number]
        self._blocks[number] = (size, seen, kind, name)

    def name_memory(self, tensor: Tensor, kind: StorageKind, name: str) -> int | None:
        """Set the kind and name of a tensor's memory, if it was met; return its number, or None."""
        number = self.find(tensor)
        if number is not None:
            self.call_it(number, kind, name)
        return number

    def leave_out_host(self, is_left_out: bool = True) -> None:
        """Leave out tensors with data from now on, or no longer: they are in the host's memory.

        Numbers of an optimizer are an example.
        """
        self._leaves_out_host = is_left_out

    def is_elsewhere(self, number: int) -> None:
        """Note that a block takes no memory on the device of the pass."""
        _, seen, kind, name = self._blocks[number]
        self._blocks[number] = (0, seen, kind, name)

    def grow(self, number: int, size: int) -> None:
        """Note that a block holds at least so many bytes."""
        before, seen, kind, name = self._blocks[number]
        self._blocks[number] = (max(before, size), seen, kind, name)

    def resized(self, tensor: Tensor) -> int | None:
        """Return the number of the new memory if an empty storage was resized, else None.

        FSDP releases all-gathered parameters and gathers them again in the same object.
        """
        self._settle()
        storage = tensor.untyped_storage()
        number = self._of_pointer.get(storage._cdata)
        if number is None:
            return None
        if not storage.nbytes():
            self._died.setdefault(number, self._now)
            return None
        if number not in self._died:
            self.call_it(number, "gathered", "")
            return None
        gathered = len(self._blocks)
        self._blocks.append((storage.nbytes(), self._now, "gathered", ""))
        self._watches[storage._cdata].number = gathered
        self._of_pointer[storage._cdata] = gathered
        return gathered

    def advance(self, ops: int) -> None:
        """Set the number of operator calls so far."""
        if self._gone:
            self._settle()
        self._now = ops

    def end(self) -> None:
        """End the pass: memory that is freed from now on is freed after its end."""
        self._settle()
        self._watches.clear()

    def _hold(self, memory: Tensor | torch.UntypedStorage, pointer: int, number: int) -> None:
        """Notice when memory is freed. An earlier block at this address must have been settled."""
        watch = _StorageWatch(memory, self._gone.append)
        watch.number = number
        watch.pointer = pointer
        self._of_pointer[pointer] = number
        self._watches[pointer] = watch

    def _settle(self) -> None:
        """Note the memory that was freed since the last operator call."""
        while self._gone:
            watch = self._gone.pop()
            others = self._more_holders.get(watch.number, 0)
            if others:
                self._more_holders[watch.number] = others - 1
            else:
                self._died.setdefault(watch.number, self._now)
            del self._of_pointer[watch.pointer], self._watches[watch.pointer]


def _storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage, or None for sparse tensors and those inside of vmap or grad."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of all elements, or of a sparse tensor's elements and indices."""
    sparsity = None if tensor.layout is torch.strided else sparsity_of(tensor)
    if sparsity is None:
        return stored_size(tensor.numel(), tensor.dtype)
    return stored_size(sparsity.stored, tensor.dtype) + sparsity.index_bytes


def sparsity_of(tensor: Tensor) -> Sparsity | None:
    """Return the storage of a sparse tensor, or None if the tensor is dense."""
    if tensor.layout is torch.sparse_coo:
        return Sparsity(tensor._values().numel(), tensor._indices().nbytes)
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        index_bytes = tensor.crow_indices().nbytes + tensor.col_indices().nbytes
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        index_bytes = tensor.ccol_indices().nbytes + tensor.row_indices().nbytes
    else:
        return None
    return Sparsity(tensor.values().numel(), index_bytes)
