"""Recorded passes of a generation, each kept with the cache that it returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchscan.once import once
from torchscan.recording.bookkeeping.containers import held_tensors
from torchscan.recording.folding import Folded, Repeats
from torchscan.trace.trace import Trace


class Kept:
    """A record of a pass, and the cache that it has returned."""

    def __init__(
        self,
        recorded: Trace,
        cache: Mapping[str, Any],
        storages: Mapping[str, int],
        folded: Folded | None,
    ) -> None:
        """Keep a recorded pass.

        Args:
            recorded: the trace of the layers that ran.
            cache: what the pass returned, by the arguments of the model that take it.
            storages: the number of its memory by the name of a cached tensor.
            folded: the model that ran, if layers were left out of it.
        """
        self._recorded = recorded
        #: by the arguments of the model that take it
        self.cache = cache
        self._storages = storages
        self._folded = folded

    @once
    def trace(self) -> Trace:
        """The trace of all layers."""
        if self._folded is None:
            return self._recorded
        return self._folded.unfolded(self._recorded)

    @once
    def repeats(self) -> Repeats | None:
        """The layers that were left out, or None if all ran."""
        if self._folded is None:
            return None
        return self._folded.repeats(self._recorded, lambda: self.trace)

    @property
    def short(self) -> Trace:
        """The trace without the layers that were left out."""
        return self._recorded

    @property
    def operators(self) -> int:
        """Number of operator calls that were recorded."""
        return len(self._recorded.ops)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the cache by their names, without counters, which have one element."""
        return {name: tensor for name, tensor in held_tensors(self.cache) if tensor.numel() > 1}

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cache's tensors, of all layers."""
        total = 0
        for name, tensor in self.tensors.items():
            num_layers = self.times.get(name, 1)
            total += num_layers * tensor.numel() * tensor.element_size()
        return total

    @once
    def times(self) -> Mapping[str, int]:
        """The number of layers that a tensor of the cache represents, if more than one."""
        if self._folded is None:
            return {}
        times = self._folded.times(self._recorded)
        times_by_name = {}
        for name, storage in self._storages.items():
            if storage in times:
                times_by_name[name] = times[storage]
        return times_by_name
