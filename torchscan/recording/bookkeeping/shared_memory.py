"""Entries of tensors in a pass, and which of them share memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchscan.recording.bookkeeping.storages import Storages
from torchscan.recording.bookkeeping.tensor_layouts import make_proxy, meta_tensor
from torchscan.torch_versions import making_ordinary_tensors, without_tracing
from torchscan.trace.events import TensorSpec


class Tracked:
    """The state of one tensor object during a pass."""

    __slots__ = (
        "_proxy",
        "_storages",
        "has_proxy",
        "index",
        "is_concrete",
        "is_from_pass",
        "is_produced",
        "reference",
        "shares_with",
        "spec",
        "storage",
    )

    def __init__(
        self, tensor: Tensor, index: int, spec: TensorSpec, storage: int, proxy: Tensor | None
    ) -> None:
        self.reference = weakref.ref(tensor)
        self.index = index
        #: whether an operator of the pass made it
        self.is_produced = False
        #: whether the pass made it in any way, also as an argument or a substitute
        self.is_from_pass = False
        self.spec = spec
        self.storage = storage
        #: another one with the same memory, if there was one before
        self.shares_with: Tracked | None = None
        self._proxy = proxy
        self.has_proxy = proxy is not None
        #: where to enter a proxy that no operator has needed so far
        self._storages: Storages | None = None
        #: whether there are values to compute with
        self.is_concrete = not (tensor if proxy is None else proxy).is_meta

    @property
    def proxy(self) -> Tensor | None:
        """The tensor that replaces this one in computations, or None if it is used itself."""
        if self._storages is not None:
            with without_tracing(), making_ordinary_tensors():
                self._proxy = meta_tensor(self.spec)
            self._storages.stands_for(self._proxy, self.storage)
            self._storages = None
        return self._proxy

    def replace_on_demand(self, storages: Storages) -> None:
        """From now on compute with a meta tensor, which is created when an operator reads it.

        If a call is like an earlier one, no operator reads its parameters.
        """
        self.has_proxy = True
        self.is_concrete = False
        self._storages = storages

    def replace(self, proxy: Tensor) -> None:
        """From now on compute with ``proxy``."""
        self._proxy = proxy
        self._storages = None
        self.has_proxy = True
        self.is_concrete = not proxy.is_meta


@dataclass(slots=True)
class SharedMemory:
    """The entries that share each block of memory, and the memory that replaces it."""

    #: the tensor entered last for each block of memory
    _last: dict[int, Tracked] = field(default_factory=dict)
    #: by memory that is not computed with: its replacement, or None for meta tensors
    replaced: dict[int, torch.UntypedStorage | None] = field(default_factory=dict)

    def share(self, tracked: Tracked) -> None:
        """Enter a tensor, which looks into its storage."""
        tracked.shares_with = self._last.get(tracked.storage)
        self._last[tracked.storage] = tracked

    def sharing(self, storage: int) -> Iterator[Tracked]:
        """Yield all tensors that share this memory."""
        tracked: Tracked | None = self._last[storage]
        while tracked is not None:
            yield tracked
            tracked = tracked.shares_with

    def move(self, before: int, now: int) -> None:
        """Let the tensors that share a block share another one."""
        for tracked in self.sharing(before):
            tracked.storage = now
        self._last[now] = self._last.pop(before)

    def replace(self, storage: int, by: torch.UntypedStorage | None) -> None:
        """From now on compute with other memory, or with meta tensors."""
        self.replaced[storage] = by
        for tracked in self.sharing(storage):
            original = tracked.reference()
            if original is not None:
                tracked.replace(make_proxy(original, tracked.spec, by))
