"""The greatest absolute values of many tensors on a device, by one kernel for all that wait.

A kernel for each takes the host ten times as long. A greatest absolute value is finite if, and only if, all values are; unlike
a sum it cannot overflow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.runtime.finiteness import is_plain, values_of, version_of
from torchscan.runtime.streams import current_stream
from torchscan.torch_versions import norms_of, unseen, without_dispatch, without_torch_function

#: bytes of tensors that are kept until others have come
_MOST_WAITING = 2**25
#: peaks that there is room for at first
_ROOM = 1024


class _Waiting(NamedTuple):
    place: int
    #: without its graph
    values: Tensor
    #: what is written to before it is looked at is nobody's any more
    version: int
    #: where it is made; None: not on CUDA
    stream: torch.cuda.Stream | None


class Peaks:
    """Of the tensors of a step, by the order in which they are added."""

    def __init__(self, device: torch.device, ours: Callable[[], AbstractContextManager[None]]) -> None:
        """What the device does in a context of ``ours`` is no part of any time."""
        self._ours = ours
        #: by identity of the tensor
        self._waiting: dict[int, _Waiting] = {}
        self._bytes = 0
        self._count = 0
        #: there before anything runs: what the allocator says of calls is then as without us
        self._room = _room(_ROOM, device)
        self._used = 0
        #: parts of rooms that are full, and which place each peak in them belongs to
        self._peaks: list[Tensor] = []
        self._places: list[int] = []
        self._sent: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def add(self, tensor: Tensor, *, waits: bool) -> bool:
        """Whether it has values that can be looked at: with others if it ``waits``, else at once."""
        values = _values_of(tensor)
        if values is None or not values.numel():
            return False
        stream = current_stream(values.device.index) if values.is_cuda else None
        self._waiting[id(tensor)] = _Waiting(self._count, values, version_of(values), stream)
        self._count += 1
        self._bytes += values.numel() * values.element_size()
        if self._bytes > _MOST_WAITING or not waits or values.is_inference():
            self.look()
        return True

    def note_harmless(self, tensor: Tensor) -> None:
        """It was written to by what makes nothing that is not finite."""
        known = self._waiting.get(id(tensor))
        if known is not None:
            self._waiting[id(tensor)] = known._replace(version=version_of(tensor))

    def look(self) -> None:
        """At all that wait."""
        if self._waiting:
            with self._ours():
                self._look()

    def _look(self) -> None:
        alike: dict[tuple[torch.cuda.Stream | None, torch.device, torch.dtype, bool], list[_Waiting]] = defaultdict(list)
        for each in self._waiting.values():
            if version_of(each.values) == each.version and each.values.untyped_storage().nbytes():
                alike[each.stream, each.values.device, each.values.dtype, _is_dense(each.values)].append(each)
        self._waiting.clear()
        self._bytes = 0
        for (stream, *_), group in alike.items():
            if stream is None or stream is (here := current_stream()):
                self._look_at(group)
            else:
                with torch.cuda.stream(stream):
                    self._look_at(group)
                here.wait_stream(stream)

    def _look_at(self, group: Sequence[_Waiting]) -> None:
        with unseen(), without_torch_function():
            peaks = norms_of([each.values for each in group], math.inf)
            self._room_for(len(group)).copy_(torch.stack(list(peaks)), non_blocking=True)
        self._places += [each.place for each in group]

    def _room_for(self, count: int) -> Tensor:
        if self._used + count > len(self._room):
            self._room, self._used = _room(max(_ROOM, count), self._room.device), 0
        self._peaks.append(self._room[self._used : self._used + count])
        self._used += count
        return self._peaks[-1]

    def send(self) -> None:
        """Let them be copied to the host as soon as the device has made them."""
        self.look()
        if not self._places:
            return
        with unseen(), without_torch_function():
            found = torch.cat(self._peaks)
            self._sent = torch.empty_like(found, device="cpu", pin_memory=found.is_cuda)  # else the host waits for the copy
            self._sent.copy_(found, non_blocking=True)
            if found.is_cuda:
                self._event = torch.cuda.Event()
                self._event.record()

    @property
    def has_arrived(self) -> bool:
        """Whether they are on the host."""
        return self._event is None or self._event.query()

    def read(self) -> dict[int, float]:
        """Those that were looked at, by their places. They are waited for."""
        if self._event is not None:
            self._event.synchronize()
        return {} if self._sent is None else dict(zip(self._places, self._sent.tolist(), strict=True))


def _room(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else it could not be written to outside
        return torch.empty(count, dtype=torch.float64, device=device)


def _values_of(tensor: Tensor) -> Tensor | None:
    """Without its graph, which must not be kept; None: it has none that can be looked at."""
    if is_plain(tensor):
        with without_dispatch():
            return tensor.detach()
    try:
        with unseen(), without_torch_function():
            values = values_of(tensor).detach()
            return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    except (RuntimeError, NotImplementedError):
        return None


def _is_dense(tensor: Tensor) -> bool:
    """Others cannot be looked at together."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
