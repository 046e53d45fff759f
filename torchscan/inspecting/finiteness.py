"""Checks of tensors for NaN and Inf: on the host at once, on a device without waiting for it.

On the host, a sum tells it: it is NaN if any value is, and infinite (or NaN, with both signs) if
any value is infinite. It takes a fortieth of the time of ``isfinite().all()``. A sum of finite
values may overflow, so values are counted before anything is reported.

On a device, the largest magnitude tells it: it is finite if and only if all values are, and it
cannot overflow. One kernel computes those of many tensors: one kernel for each would take the host
ten times as long.
"""

from __future__ import annotations

import cmath
import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchscan.observing.readable_tensors import is_plain, is_readable
from torchscan.torch_versions import (
    count_dispatch_modes,
    current_stream,
    local_part,
    norms_of,
    without_dispatch,
    without_torch_function,
    without_tracing,
)

T = TypeVar("T")
#: values of a tensor that is joined with others, to be checked at once
MAX_JOINED = 4096
_NARROW = frozenset({torch.float16, torch.bfloat16})
#: types whose sums rarely overflow
WIDE_TYPES = frozenset({torch.float32, torch.float64})
_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
#: bytes of tensors that are kept until others have come
_MAX_PENDING_BYTES = 2**25
#: peaks that there is room for at first
_ROOM = 1024


# -- on the host ---------------------------------------------------------------------------------


class NonFiniteCount(NamedTuple):
    """The number of non-finite values of a tensor."""

    nan: int = 0
    inf: int = 0

    @property
    def is_fine(self) -> bool:
        """True if all values are finite."""
        return not self.nan and not self.inf

    def __add__(self, other: object) -> NonFiniteCount:
        if not isinstance(other, NonFiniteCount):
            return NotImplemented
        return NonFiniteCount(self.nan + other.nan, self.inf + other.inf)


FINE = NonFiniteCount()


def check_values(tensor: Tensor) -> NonFiniteCount:
    """Return the counts of a tensor, or :data:`FINE` itself if all values are finite.

    A tensor that cannot be summed is not checked and counts as finite.
    """
    if tensor.dtype in WIDE_TYPES and is_plain(tensor):
        if count_dispatch_modes():
            with without_dispatch():  # half the time of the other way
                total = tensor.detach().sum().item()
        else:
            values = tensor.detach() if tensor.requires_grad else tensor
            total = values.sum().item()
        if cmath.isfinite(total):
            return FINE
    return _count_nonfinite(tensor)


def _count_nonfinite(tensor: Tensor) -> NonFiniteCount:
    try:
        with without_tracing(), without_torch_function():
            values = values_of(tensor)
            is_narrow = values.dtype in _NARROW
            total = values.sum(dtype=torch.float32) if is_narrow else values.sum()
            if cmath.isfinite(total.item()):
                return FINE
            num_nan = int(torch.isnan(values).sum())
            counts = NonFiniteCount(num_nan, int(torch.isinf(values).sum()))
    except (RuntimeError, NotImplementedError):  # no kernel, or no memory for the masks
        return FINE
    return FINE if counts.is_fine else counts  # callers compare by identity


def range_of(tensor: Tensor) -> tuple[float, float] | None:
    """Return the minimum and maximum of the finite values, or None if there are none.

    Those of a complex tensor are the magnitudes.
    """
    with without_tracing(), without_torch_function():
        values = values_of(tensor)
        values = values.abs() if values.is_complex() else values
        finite = values[torch.isfinite(values)]
        return (float(finite.min()), float(finite.max())) if finite.numel() else None


def values_of(tensor: Tensor) -> Tensor:
    """Return this rank's values without their indices, in a type that can be summed."""
    part = local_part(tensor)
    if part.layout is torch.sparse_coo:
        values = part._values()
    elif part.is_nested or part.layout in _COMPRESSED:
        values = part.values()
    elif part.layout is not torch.strided:
        values = part.to_dense()
    else:
        values = part
    return values.float() if values.element_size() == 1 else values


def version_of(tensor: Tensor) -> int:
    """Return the number of writes to a tensor, or -1 in inference mode, where torch counts none."""
    return -1 if tensor.is_inference() else tensor._version


class _KnownTensor(weakref.ref[Tensor]):
    """A tensor that was checked. One object for each keeps garbage collections rare."""

    __slots__ = ("counts", "version")

    #: number of writes to the tensor when it was checked
    version: int
    counts: NonFiniteCount

    def is_still(self, tensor: Tensor) -> bool:
        """Return whether this is the tensor, and nothing was written to it since."""
        return self() is tensor and self.version == tensor._version


class KnownTensors:
    """The tensors that were checked, so that none is checked twice.

    A result may be passed on, or returned by several modules in turn. Tensors are referred to
    weakly.
    """

    def __init__(self) -> None:
        #: by identity, which other tensors may have once the tensor is gone
        self._known: dict[int, _KnownTensor] = {}

    def check_all_values(self, tensors: Iterable[Tensor]) -> NonFiniteCount:
        """Return the counts of all tensors together."""
        total = FINE
        for tensor in tensors:
            counts = self.check_values(tensor)
            if counts is not FINE:
                total += counts
        return total

    def check_values(self, tensor: Tensor) -> NonFiniteCount:
        """Return the counts of a tensor, which is read only if they are not known."""
        known = self.get(tensor)
        return self.note(tensor, check_values(tensor)) if known is None else known

    def get(self, tensor: Tensor) -> NonFiniteCount | None:
        """Return the known counts of a tensor, or of the tensor that it is a view of.

        None in inference mode, where writes are not counted.
        """
        known = self._known.get(id(tensor))
        # tensors of inference mode are never known
        if known is not None and known() is tensor and known.version == tensor._version:
            return known.counts
        base = tensor._base
        if base is None:
            return None
        known = self._known.get(id(base))
        # if the base is not finite, this part of it may be
        is_fine = known is not None and known.counts is FINE and known.is_still(base)
        return FINE if is_fine else None

    def note(self, tensor: Tensor, counts: NonFiniteCount) -> NonFiniteCount:
        """Remember the counts until the tensor is written to, and return them."""
        if not tensor.is_inference():
            known = self._known[id(tensor)] = _KnownTensor(tensor)
            known.version, known.counts = tensor._version, counts
        return counts


# -- on a device ---------------------------------------------------------------------------------


def is_on_device(tensor: Tensor) -> bool:
    """Return whether the host would have to wait for the values of a tensor."""
    return tensor.is_cuda


def max_magnitudes_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the largest magnitude of each tensor, as tensors of its device.

    It is NaN if any value is, and infinite if any is infinite. Nothing waits for the device. Empty
    tensors, and types that a kernel is missing for, have none.
    """
    with without_tracing(), without_torch_function():
        parts = [values_of(each).detach() for each in tensors if is_readable(each)]
        plain = [each for each in parts if is_plain(each) and each.numel()]
        return list(norms_of(plain, math.inf)) if plain else []


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
