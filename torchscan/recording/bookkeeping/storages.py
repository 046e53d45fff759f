"""Blocks of memory during a pass: how large each is, which operator call made it, and when it was let go of.

When a block is let go of is not worked out but observed: whatever holds a tensor (the model's code, a container, autograd until
the backward pass has used it) holds its memory in a pass on shapes alone just as it does on data.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from torchscan.torch_versions import is_functorch_wrapped
from torchscan.trace.events import Sparsity, StorageKind, StorageRecord, TensorSpec, stored_size


class _StorageWatch(weakref.ref[object]):
    """Tells when memory is let go of, by a callback in C: what a signal raises in one in Python would be lost."""

    __slots__ = ("number", "pointer")

    number: int
    pointer: int


#: a block of memory: its size, the clock of the record when it was met, what it holds, and its name
_Block = tuple[int, int, StorageKind, str]
#: what outlives each pass, because its original state is kept: nobody need tell when it is let go of
_KEPT = ("parameter", "buffer")


class Storages:
    """Every block of memory that the pass met, by number. None is kept alive by this."""

    def __init__(self) -> None:
        #: operator calls made so far: the clock of the record
        self._now = 0
        self._blocks: list[_Block] = []
        self._died: dict[int, int] = {}
        #: by number how many more tensors' memory keeps a block alive than its own: what functions were handed instead
        self._more_holders: dict[int, int] = {}
        self._of_pointer: dict[int, int] = {}
        self._watches: dict[int, _StorageWatch] = {}
        #: those that told, and were not looked at yet
        self._gone: list[_StorageWatch] = []
        self._leaves_out_host = False

    def records(self) -> tuple[StorageRecord, ...]:
        """Return a record of each storage."""
        return tuple(map(self._record, range(len(self._blocks)), self._blocks))

    def _record(self, number: int, block: _Block) -> StorageRecord:
        size, seen, kind, name = block
        died = self._died.get(number)
        return StorageRecord(size, seen if _is_born(kind, died) else None, died, kind, name)

    def find(self, tensor: Tensor) -> int | None:
        """The number of the memory of a tensor, if it was met."""
        if self._gone:
            self._settle()
        storage = _storage_of(tensor)
        return self._of_pointer.get(tensor._cdata if storage is None else storage._cdata)

    def find_or_add(self, tensor: Tensor, kind: StorageKind, name: str) -> tuple[int, bool]:
        """The number of memory that was there before the pass, or that was made out of sight; and whether it is new."""
        if self._gone:
            self._settle()
        storage = _storage_of(tensor)
        pointer = tensor._cdata if storage is None else storage._cdata
        known = self._of_pointer.get(pointer)
        if known is not None:
            return known, False
        size = _size_without_storage(tensor) if storage is None else storage.nbytes()
        number = len(self._blocks)
        self._blocks.append((0 if self._is_left_out(tensor) else size, self._now, kind, name))
        if kind in _KEPT:
            self._of_pointer[pointer] = number
        else:
            self._hold(tensor if storage is None else storage, pointer, number)
        return number, True

    def add_made(self, tensor: Tensor, spec: TensorSpec, producer: int) -> int:
        """Memory that an operator call made; the spec is asked for its size where the tensor has none of its own.

        Some operators say that they return new memory, and return that of an operand: FSDP2's, before it gathers.
        """
        if self._gone:
            self._settle()
        storage = _storage_of(tensor)
        known = None if storage is None else self._watches.get(storage._cdata)
        if known is not None:
            return known.number
        number = len(self._blocks)
        size = spec.stored_bytes if storage is None else storage.nbytes()
        self._blocks.append(
            (0 if self._is_left_out(tensor) else size, producer, "intermediate", "")
        )
        if storage is None:
            self._hold(tensor, tensor._cdata, number)
        else:
            self._hold(storage, storage._cdata, number)
        return number

    def add_told(self, size: int, seen: int, died: int, kind: StorageKind, name: str) -> int:
        """Memory that is known of without having been there: what happens to it is what happened to other memory."""
        number = len(self._blocks)
        self._blocks.append((size, seen, kind, name))
        self._died[number] = died
        return number

    def stands_for(self, tensor: Tensor, number: int, *, holds: bool = False) -> None:
        """``tensor`` is computed with in place of that block; one that ``holds`` the block keeps it."""
        self._settle()
        storage = _storage_of(tensor)
        pointer = tensor._cdata if storage is None else storage._cdata
        if holds:
            self._more_holders[number] = self._more_holders.get(number, 0) + 1
            self._hold(tensor if storage is None else storage, pointer, number)
        else:
            self._of_pointer.setdefault(pointer, number)

    def call_it(self, number: int, kind: StorageKind, name: str) -> None:
        """Say what it has turned out to be."""
        self._blocks[number] = (*self._blocks[number][:2], kind, name)

    def leave_out_host(self, is_left_out: bool = True) -> None:
        """Leave out tensors with data from now on, or no longer: they are in the host's memory.

        Numbers of an optimizer are an example.
        """
        self._leaves_out_host = is_left_out

    def _is_left_out(self, tensor: Tensor) -> bool:
        return self._leaves_out_host and not tensor.is_meta

    def is_elsewhere(self, number: int) -> None:
        """It takes no memory on the device of the pass."""
        self._blocks[number] = (0, *self._blocks[number][1:])

    def grow(self, number: int, size: int) -> None:
        """It holds at least so many bytes."""
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
        self._blocks.append((storage.nbytes(), self._now, "gathered", ""))
        self._watches[storage._cdata].number = self._of_pointer[storage._cdata] = (
            len(self._blocks) - 1
        )
        return len(self._blocks) - 1

    def advance(self, ops: int) -> None:
        """So many operator calls have been made."""
        if self._gone:
            self._settle()
        self._now = ops

    def end(self) -> None:
        """The pass is over: what is let go of from now on is let go of after its end."""
        self._settle()
        self._watches.clear()

    def _hold(self, memory: Tensor | torch.UntypedStorage, pointer: int, number: int) -> None:
        """Notice when it is let go of. What was at this address before must have been settled."""
        watch = _StorageWatch(memory, self._gone.append)
        watch.number, watch.pointer = number, pointer
        self._of_pointer[pointer] = number
        self._watches[pointer] = watch

    def _settle(self) -> None:
        """Write down what was let go of since the last operator call."""
        while self._gone:
            watch = self._gone.pop()
            others = self._more_holders.get(watch.number, 0)
            if others:
                self._more_holders[watch.number] = others - 1
            else:
                self._died.setdefault(watch.number, self._now)
            del self._of_pointer[watch.pointer], self._watches[watch.pointer]


def _is_born(kind: StorageKind, died: int | None) -> bool:
    """Constants that outlive the pass are the model's and were there before; others came about when first seen."""
    return kind in ("intermediate", "gradient", "gathered") or (
        kind == "constant" and died is not None
    )


def _storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (
        NotImplementedError,
        RuntimeError,
    ):  # sparse tensors, those inside vmap or grad: no storage of their own
        return None


def _size_without_storage(tensor: Tensor) -> int:
    """Return 0 for a tensor that vmap or grad wraps, whose memory is elsewhere, else its bytes."""
    return 0 if is_functorch_wrapped(tensor) else bytes_of(tensor)


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
        return Sparsity(
            tensor.values().numel(), tensor.crow_indices().nbytes + tensor.col_indices().nbytes
        )
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return Sparsity(
            tensor.values().numel(), tensor.ccol_indices().nbytes + tensor.row_indices().nbytes
        )
    return None
