"""Blocks of memory during a pass: how large each is, which operator call made it, and when it was let go.

When a block is let go is not worked out but seen: whatever holds a tensor (the model's code, a container, autograd until the
backward pass has used it) holds its memory in a pass on shapes alone just as it does on data.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from torchscan.trace.events import StorageKind, StorageRecord


class Storages:
    """Every block of memory that the pass met, by number. None is held because of this, but for those of the user's."""

    def __init__(self) -> None:
        #: operator calls made so far: the clock of the record
        self.now = 0
        self._sizes: list[int] = []
        self._born: list[int | None] = []
        self._died: list[int | None] = []
        self._kinds: list[StorageKind] = []
        self._names: list[str] = []
        self._of_pointer: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []
        self._watches: dict[int, weakref.ref[object]] = {}

    def records(self) -> tuple[StorageRecord, ...]:
        """What is known of each."""
        return tuple(map(StorageRecord, self._sizes, self._born, self._died, self._kinds, self._names))

    def find(self, tensor: Tensor) -> int | None:
        """The number of the memory of a tensor, if it was met."""
        return self._of_pointer.get(_pointer(tensor))

    def add_foreign(self, tensor: Tensor, kind: StorageKind, name: str) -> int:
        """Memory that was there before, or came about out of sight. It is kept: its address must not be used again."""
        storage = _storage_of(tensor)
        if storage is not None:
            self._kept.append(storage)
        return self._add(_pointer(tensor), _size(tensor, storage), None, kind, name)

    def add_made(self, tensor: Tensor, size: int, producer: int) -> int:
        """Memory that an operator call made: watch when it is let go."""
        storage = _storage_of(tensor)
        pointer = tensor._cdata if storage is None else int(storage._cdata)
        number = self._add(pointer, size if storage is None else storage.nbytes(), producer, "intermediate", "")
        self._watches[number] = weakref.ref(tensor if storage is None else storage, self._death_of(number, pointer))
        return number

    def stands_for(self, tensor: Tensor, number: int) -> None:
        """The memory of ``tensor`` is computed with instead of that block."""
        self._of_pointer.setdefault(_pointer(tensor), number)

    def call_it(self, number: int, kind: StorageKind, name: str) -> None:
        """Say what it has turned out to be."""
        self._kinds[number], self._names[number] = kind, name

    def is_elsewhere(self, number: int) -> None:
        """It takes no memory on the device of the pass."""
        self._sizes[number] = 0

    def forget(self) -> None:
        """The pass is over: what is let go from now on is let go after its end."""
        self._watches.clear()

    def _add(self, pointer: int, size: int, born: int | None, kind: StorageKind, name: str) -> int:
        number = self._of_pointer[pointer] = len(self._sizes)
        self._sizes.append(size)
        self._born.append(born)
        self._died.append(None)
        self._kinds.append(kind)
        self._names.append(name)
        return number

    def _death_of(self, number: int, pointer: int) -> Callable[[object], None]:
        def note(_: object) -> None:
            self._died[number] = self.now
            if self._of_pointer.get(pointer) == number:
                del self._of_pointer[pointer]
            self._watches.pop(number, None)

        return note


def _storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors, those inside vmap or grad: no storage of their own
        return None


def _pointer(tensor: Tensor) -> int:
    storage = _storage_of(tensor)
    return tensor._cdata if storage is None else int(storage._cdata)


def _size(tensor: Tensor, storage: torch.UntypedStorage | None) -> int:
    return tensor.numel() * tensor.element_size() if storage is None else storage.nbytes()
