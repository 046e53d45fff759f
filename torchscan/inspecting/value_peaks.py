"""Largest magnitudes of tensors, which are read when they have arrived from the device."""

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
#: bytes of tensors that are kept until others have come
_MAX_PENDING_BYTES = 2**25
#: peaks that there is room for at first
_ROOM = 1024


class HostCopy:
    """A copy on the host of a tensor's values, which nothing waits for before it is read."""

    def __init__(self, values: Tensor) -> None:
        """Start the copy in the current stream of the tensor's device."""
        self._values = values
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            # the host would wait for a copy to other memory than pinned memory
            self._values = torch.empty_like(values, device="cpu", pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            with torch.cuda.device(values.device):
                self._event = torch.cuda.Event()
                self._event.record(current_stream(values.device.index))

    @property
    def has_arrived(self) -> bool:
        """True if the values are on the host."""
        return self._event is None or self._event.query()

    def read(self) -> list[float]:
        """Return the values, after waiting for them."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._values.tolist()
        return values


class Peak(NamedTuple, Generic[T]):
    """The largest magnitude of a tensor, and the label that it was added with."""

    label: T
    value: float
    #: True if the tensor was written to between its addition and the check
    is_late: bool


class _PendingPeak(NamedTuple, Generic[T]):
    label: T
    #: place in the order of additions
    place: int
    tensor: weakref.ref[Tensor]
    #: values of the tensor, without its graph
    values: Tensor
    version: int
    #: stream that computes the values, or None if they are not on CUDA
    stream: torch.cuda.Stream | None


class Peaks(Generic[T]):
    """Largest magnitudes of a step's tensors, in the order in which they are added.

    Autograd has a thread for each device, so several threads may add tensors.
    """

    def __init__(
        self, device: torch.device, as_overhead: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Create the peaks of a step. Device time inside ``as_overhead`` is not counted."""
        self._as_overhead = as_overhead
        self._lock = threading.RLock()
        self._pending: list[_PendingPeak[T]] = []
        self._pending_bytes = self._num_added = 0
        #: allocated before anything runs, so that the allocator's figures of calls do not change
        self._room = _Room(_ROOM, device)
        self._used = 0
        #: parts of rooms, with the peaks that were computed
        self._peaks: list[Tensor] = []
        #: place, label and lateness of each of these peaks
        self._computed: list[tuple[int, T, bool]] = []
        #: streams that have computed peaks
        self._streams: set[torch.cuda.Stream] = set()
        self._copy: HostCopy | None = None

    def add(self, label: T, tensor: Tensor, *, waits: bool) -> None:
        """Add a tensor. Compute its peak with those of others if it ``waits``, or else at once.

        A tensor without values that can be read has no peak.
        """
        values = _detach_values(tensor)
        if values is None or not values.numel():
            return
        stream = current_stream(values.device.index) if values.is_cuda else None
        version = version_of(values)
        with self._lock:
            pending = _PendingPeak(
                label, self._num_added, weakref.ref(tensor), values, version, stream
            )
            self._pending.append(pending)
            self._num_added += 1
            self._pending_bytes += values.untyped_storage().nbytes()
            is_full = self._pending_bytes > _MAX_PENDING_BYTES
            if is_full or not waits or values.is_inference():
                self.compute()

    def note_harmless(self, tensor: Tensor) -> None:
        """Note that a module that produces finite values has written to a tensor."""
        with self._lock:
            for index in reversed(range(len(self._pending))):
                pending = self._pending[index]
                if pending.tensor() is tensor:
                    self._pending[index] = pending._replace(version=version_of(tensor))
                    return

    def compute(self) -> None:
        """Compute the peaks of all tensors that wait."""
        with self._lock:
            if self._pending:
                with self._as_overhead(), without_tracing(), without_torch_function():
                    self._compute_pending()

    def _compute_pending(self) -> None:
        groups: defaultdict[object, list[_PendingPeak[T]]] = defaultdict(list)
        for each in self._pending:
            values = each.values
            if values.untyped_storage().nbytes():
                # tensors of which one is not dense cannot share a kernel
                is_dense = values.is_contiguous() or values.is_contiguous(
                    memory_format=torch.channels_last
                )
                groups[each.stream, values.device, values.dtype, is_dense].append(each)
        self._pending.clear()
        self._pending_bytes = 0

        for group in groups.values():
            stream = group[0].stream
            if stream is None or stream is current_stream():
                self._compute_group(group)
            else:
                with torch.cuda.stream(stream):
                    self._compute_group(group)
            if stream is not None:
                self._streams.add(stream)

    def _compute_group(self, group: Sequence[_PendingPeak[T]]) -> None:
        peaks = norms_of([each.values for each in group], math.inf)
        self._take_room(len(group)).copy_(torch.stack(list(peaks)), non_blocking=True)
        for each in group:
            is_late = version_of(each.values) != each.version
            self._computed.append((each.place, each.label, is_late))

    def _take_room(self, count: int) -> Tensor:
        """Return memory of the device for some peaks."""
        memory = self._room.memory
        if self._used + count > len(memory):
            self._room = _Room(max(_ROOM, count), memory.device)
            memory, self._used = self._room.memory, 0
        self._room.enter()
        part = memory[self._used : self._used + count]
        self._peaks.append(part)
        self._used += count
        return part

    def send(self) -> None:
        """Compute the peaks of all tensors, and have the device copy them to the host."""
        with self._lock:
            self.compute()
            if self._peaks:
                with without_tracing(), without_torch_function():
                    self._send()

    def _send(self) -> None:
        memory = self._room.memory
        if memory.is_cuda:
            stream = current_stream(memory.device.index)
            for other in self._streams - {stream}:
                stream.wait_stream(other)
        self._copy = HostCopy(torch.cat(self._peaks))

    @property
    def has_arrived(self) -> bool:
        """True if the peaks are on the host."""
        return self._copy is None or self._copy.has_arrived

    def read(self) -> list[Peak[T]]:
        """Return the peaks in the order of their additions, after waiting for them."""
        values = [] if self._copy is None else self._copy.read()
        pairs = sorted(zip(self._computed, values, strict=True), key=lambda pair: pair[0][0])
        self._copy, self._peaks, self._computed = None, [], []
        return [Peak(label, value, is_late) for (_, label, is_late), value in pairs]


class _Room:
    """Memory for peaks on a device, which several streams write to."""

    def __init__(self, count: int, device: torch.device) -> None:
        # created in inference mode, it could not be written to outside
        with without_tracing(), without_torch_function(), torch.inference_mode(False):
            self.memory = torch.empty(count, dtype=torch.float64, device=device)
        self._stream = self._is_free = None
        if self.memory.is_cuda:
            self._stream, self._is_free = current_stream(device.index), torch.cuda.Event()
            self._is_free.record(self._stream)

    def enter(self) -> None:
        """Let the current stream write next, after the one that allocated the memory."""
        if self._stream is None or self._is_free is None:
            return
        stream = current_stream()
        if stream is not self._stream:
            stream.wait_event(self._is_free)
            self.memory.record_stream(stream)


def _detach_values(tensor: Tensor) -> Tensor | None:
    """Return the values without their graph, or None if they cannot be read."""
    if is_plain(tensor):
        with without_dispatch(), without_torch_function():
            return tensor.detach()
    try:
        with without_tracing(), without_torch_function():
            values = values_of(tensor).detach()
            return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    except (RuntimeError, NotImplementedError):
        return None
