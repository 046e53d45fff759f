"""The greatest absolute values of many tensors on a device, by one kernel for all that wait.

A kernel for each takes the host ten times as long. A greatest absolute value is finite if, and only if, all values are; unlike
a sum it cannot overflow.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchscan.inspecting.finiteness import values_of, version_of
from torchscan.observing.readable_tensors import is_plain
from torchscan.torch_versions import (
    current_stream,
    norms_of,
    without_dispatch,
    without_torch_function,
    without_tracing,
)

T = TypeVar("T")
#: bytes of memory that are kept until other tensors have come
_MAX_WAITING = 2**25
#: peaks that there is room for at first
_ROOM = 1024


class Peak(NamedTuple, Generic[T]):
    """The greatest absolute value of a tensor, and what it was added with."""

    what: T
    value: float
    #: whether it was written to between its adding and the look at it, by who knows whom
    is_late: bool


class _PendingPeak(NamedTuple, Generic[T]):
    what: T
    place: int
    tensor: weakref.ref[Tensor]
    #: without its graph
    values: Tensor
    version: int
    #: where it is made; None: not on CUDA
    stream: torch.cuda.Stream | None


class Peaks(Generic[T]):
    """Largest magnitudes of a step's tensors, in the order in which they are added.

    Autograd has a thread for each device.
    """

    def __init__(
        self, device: torch.device, ours: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Create the peaks of a step. Device time inside ``ours`` is not counted."""
        self._as_overhead = ours
        self._lock = threading.RLock()
        self._waiting: list[_PendingPeak[T]] = []
        self._bytes = self._count = 0
        #: there before anything runs: what the allocator says of calls is then as without us
        self._room = _Room(_ROOM, device)
        self._used = 0
        #: parts of rooms that are full, and what each peak in them was added with
        self._peaks: list[Tensor] = []
        self._looked_at: list[tuple[int, T, bool]] = []
        #: in which was looked
        self._streams: set[torch.cuda.Stream] = set()
        self._sent: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def add(self, what: T, tensor: Tensor, *, waits: bool) -> None:
        """It is looked at with others if it ``waits``, else at once; not at all if it has no values."""
        values = _values_of(tensor)
        if values is None or not values.numel():
            return
        stream = current_stream(values.device.index) if values.is_cuda else None
        with self._lock:
            found = _PendingPeak(
                what, self._count, weakref.ref(tensor), values, version_of(values), stream
            )
            self._waiting.append(found)
            self._count += 1
            self._bytes += values.untyped_storage().nbytes()
            if self._bytes > _MAX_WAITING or not waits or values.is_inference():
                self.look()

    def note_harmless(self, tensor: Tensor) -> None:
        """It was written to by what makes nothing that is not finite."""
        with self._lock:
            for number in reversed(range(len(self._waiting))):
                if self._waiting[number].tensor() is tensor:
                    self._waiting[number] = self._waiting[number]._replace(
                        version=version_of(tensor)
                    )
                    return

    def look(self) -> None:
        """At all that wait."""
        with self._lock:
            if self._waiting:
                with self._as_overhead(), without_tracing(), without_torch_function():
                    self._look()

    def _look(self) -> None:
        alike: dict[
            tuple[torch.cuda.Stream | None, torch.device, torch.dtype, bool], list[_PendingPeak[T]]
        ] = defaultdict(list)
        for each in self._waiting:
            if each.values.untyped_storage().nbytes():
                alike[
                    each.stream, each.values.device, each.values.dtype, _is_dense(each.values)
                ].append(each)
        self._waiting.clear()
        self._bytes = 0
        for (stream, *_), group in alike.items():
            if stream is None or stream is current_stream():
                self._read_group(group)
            else:
                with torch.cuda.stream(stream):
                    self._read_group(group)
            if stream is not None:
                self._streams.add(stream)

    def _read_group(self, group: Sequence[_PendingPeak[T]]) -> None:
        peaks = norms_of([each.values for each in group], math.inf)
        self._room_for(len(group)).copy_(torch.stack(list(peaks)), non_blocking=True)
        self._looked_at += [
            (each.place, each.what, version_of(each.values) != each.version) for each in group
        ]

    def _room_for(self, count: int) -> Tensor:
        if self._used + count > len(self._room.memory):
            self._room, self._used = _Room(max(_ROOM, count), self._room.memory.device), 0
        self._room.enter()
        self._peaks.append(self._room.memory[self._used : self._used + count])
        self._used += count
        return self._peaks[-1]

    def send(self) -> None:
        """Let them be copied to the host as soon as the device has made them."""
        with self._lock:
            self.look()
            if self._peaks:
                with without_tracing(), without_torch_function():
                    self._send()

    def _send(self) -> None:
        memory = self._room.memory
        stream = current_stream(memory.device.index) if memory.is_cuda else None
        for other in self._streams - {stream}:
            if stream is not None:
                stream.wait_stream(other)
        found = torch.cat(self._peaks)
        self._sent = torch.empty_like(
            found, device="cpu", pin_memory=found.is_cuda
        )  # else the host waits for the copy
        self._sent.copy_(found, non_blocking=True)
        if stream is not None:
            self._event = torch.cuda.Event()
            self._event.record(stream)

    @property
    def has_arrived(self) -> bool:
        """True if the peaks are on the host."""
        return self._event is None or self._event.query()

    def read(self) -> list[Peak[T]]:
        """In the order in which they were added. They are waited for."""
        if self._event is not None:
            self._event.synchronize()
        found = [] if self._sent is None else self._sent.tolist()
        pairs = sorted(zip(self._looked_at, found, strict=True), key=lambda pair: pair[0][0])
        self._sent, self._event, self._peaks, self._looked_at = None, None, [], []
        return [Peak(what, value, is_late) for (_, what, is_late), value in pairs]


class _Room:
    """Memory for peaks on a device."""

    def __init__(self, count: int, device: torch.device) -> None:
        with (
            without_tracing(),
            without_torch_function(),
            torch.inference_mode(False),
        ):  # else it could not be written to outside
            self.memory = torch.empty(count, dtype=torch.float64, device=device)
        self._stream = self._free = None
        if self.memory.is_cuda:
            self._stream, self._free = current_stream(device.index), torch.cuda.Event()
            self._free.record(self._stream)

    def enter(self) -> None:
        """Let the current stream write next, after the one before has finished."""
        if (
            self._stream is not None
            and self._free is not None
            and (here := current_stream()) is not self._stream
        ):
            here.wait_event(self._free)
            self.memory.record_stream(here)


def _values_of(tensor: Tensor) -> Tensor | None:
    """Without its graph, which must not be kept; None: it has none that can be looked at."""
    if is_plain(tensor):
        with without_dispatch(), without_torch_function():
            return tensor.detach()
    try:
        with without_tracing(), without_torch_function():
            values = values_of(tensor).detach()
            return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    except (RuntimeError, NotImplementedError):
        return None


def _is_dense(tensor: Tensor) -> bool:
    """Others cannot be looked at together."""
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
