"""GPU memory of a process, and the part of it that is overhead.

torch's allocator counts its own blocks only. NVML (``nvidia-ml-py``) reports the driver's count per
process, which includes contexts, kernels and libraries. If NVML cannot be read, the result says so;
nothing is estimated.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch

from torchscan.errors import warn_user
from torchscan.notes import Note
from torchscan.wrong_arguments import explain_wrong_types

MIB = 2**20

#: process -> bytes that it holds on one GPU, or None if NVML withholds the number
_Listing = Mapping[int, int | None]

_WITHHELD = Note.of("nvml-withholds-size")
_NO_GPU = Note.of("nvml-no-gpu")
_UNLISTED = Note.of("nvml-unlisted")
_FOREIGN_NUMBERS = Note.of("nvml-foreign-numbers")
_UNDER_MPS = Note.of("mps-client")
_TOO_LITTLE = Note.of("nvml-reports-too-little")

_reported_reasons: set[tuple[Note, ...]] = set()


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process on all GPUs together, in bytes, and the source of that number.

    ``"nvml"``: the driver. ``"allocator"``: torch, which does not see contexts, kernels and
    libraries. ``"none"``: there is none, and ``size`` is 0. ``reasons`` explain any reservation;
    there are none where NVML itself reports this process.
    """

    size: int
    source: Literal["nvml", "allocator", "none"]
    reasons: tuple[Note, ...] = ()
    #: True if the process may hold more than ``size``
    lower_bound: bool = False

    @property
    def reason(self) -> str:
        """The reasons as text."""
        return "; ".join(map(str, self.reasons))


@dataclass(frozen=True, slots=True)
class Overhead:
    """MiB that this process holds on all GPUs beyond its live tensors.

    ``cuda`` = process - reserved: contexts, kernels and libraries, or None if the memory of the
    process is not completely known. ``framework`` = reserved - allocated: the cache of torch's
    allocator.
    """

    cuda: float | None
    framework: float


NO_OVERHEAD = Overhead(0.0, 0.0)


@explain_wrong_types
def get_process_gpu_ram(pid: int | None = None) -> float:
    """Return the MiB that a process, by default this one, holds on all GPUs.

    If NVML does not report them, warn once and return the memory of torch's allocator, or 0.0.
    """
    memory = process_memory(pid)
    if memory.source != "nvml" and memory.reasons not in _reported_reasons:
        _reported_reasons.add(memory.reasons)
        instead = "what torch's allocator holds" if memory.source == "allocator" else "0"
        warn_user(
            f"measuring the GPU memory of this process failed, so the result is {instead}: "
            f"{memory.reason}"
        )
    return memory.size / MIB


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Return the memory that a process, by default this one, holds on all GPUs.

    NVML lists processes by their PIDs on the host. In a container, this process has another PID: if
    exactly one listed process is not of this container, it is assumed to be this one. A process of
    the host with the PID that this process has here is mistaken for it, unless it holds less than
    torch has reserved.
    """
    if pid is None or pid == os.getpid():
        return _own_memory()
    survey = _ask_gpus()
    has_other_numbers = not {pid, os.getpid()} & set(survey.pids) and bool(
        _of_other_containers(survey.pids)
    )
    if has_other_numbers:
        return survey.unknown(_FOREIGN_NUMBERS)
    return survey.memory_of(pid)


def cuda_overhead() -> Overhead:
    """Return the memory of this process on all GPUs beyond its live tensors.

    It is zero before CUDA is initialized.
    """
    if not torch.cuda.is_initialized():
        return NO_OVERHEAD
    memory = process_memory()
    reserved, allocated = (
        _on_all_devices(torch.cuda.memory_reserved),
        _on_all_devices(torch.cuda.memory_allocated),
    )
    # These are read one after the other: what is allocated or freed in between must not make a difference negative.
    cuda = None if memory.lower_bound else max(memory.size - reserved, 0) / MIB
    return Overhead(cuda, max(reserved - allocated, 0) / MIB)


# -- this process --------------------------------------------------------------------------------------------------------


def _own_memory() -> ProcessMemory:
    reserved = _on_all_devices(
        torch.cuda.memory_reserved
    )  # read first: it may grow before NVML answers
    survey = _ask_gpus()
    if not torch.cuda.is_initialized() and os.getpid() not in survey.pids:
        return survey.memory_of(os.getpid())
    listed = _own_entry(survey)
    if listed.source == "nvml" and listed.size >= reserved:
        return listed
    reasons = listed.reasons
    if listed.source != "none":
        reasons = (_TOO_LITTLE, *reasons)
    return ProcessMemory(reserved, "allocator", reasons, lower_bound=True)


def _own_entry(survey: _Survey) -> ProcessMemory:
    """Return the listed memory of this process, which uses CUDA, under any PID."""
    if not survey.listings or os.getpid() in survey.pids:
        return survey.memory_of(os.getpid())
    if survey.mps_servers:
        return survey.unknown(_UNDER_MPS)
    strangers = _of_other_containers(survey.pids)
    if len(strangers) != 1:
        return survey.unknown(_UNLISTED)
    stranger = strangers[0]
    return survey.memory_of(stranger, Note.of("process-outside-container", pid=stranger))


def _of_other_containers(pids: Iterable[int]) -> list[int]:
    if not os.path.exists("/proc/self"):  # not Linux: processes can't be looked up there
        return []
    return [pid for pid in pids if not os.path.exists(f"/proc/{pid}")]


def _on_all_devices(bytes_of: Callable[[int], int]) -> int:
    if not torch.cuda.is_initialized():
        return 0
    return sum(bytes_of(index) for index in range(torch.cuda.device_count()))


# -- what NVML says ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Survey:
    """The process lists of all GPUs, or of their MIG instances, and why some are missing."""

    listings: tuple[_Listing, ...]
    failures: tuple[Note, ...]
    mps_servers: frozenset[int]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset().union(*self.listings)

    def memory_of(self, pid: int, *reasons: Note) -> ProcessMemory:
        """Return what the lists attribute to a process.

        That is nothing if none of them has it, and unknown if there are no lists.
        """
        if not self.listings:
            return self.unknown() if self.failures else self.unknown(_NO_GPU)
        sizes = [listing[pid] for listing in self.listings if pid in listing]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return self.unknown(_WITHHELD, *reasons)
        is_bound = bool(self.failures)
        return ProcessMemory(sum(known), "nvml", (*reasons, *self.failures), lower_bound=is_bound)

    def unknown(self, *reasons: Note) -> ProcessMemory:
        return ProcessMemory(0, "none", (*reasons, *self.failures), lower_bound=True)


def _ask_gpus() -> _Survey:
    """Ask every GPU once. NVML's errors become part of the answer."""
    import pynvml  # type: ignore[import-untyped]

    inquiry = _Inquiry(pynvml)
    with inquiry.noting_failure_of("NVML"), _session(pynvml):
        inquiry.ask_all()
    return _Survey(
        tuple(inquiry.listings),
        tuple(dict.fromkeys(inquiry.failures)),
        frozenset(inquiry.mps_servers),
    )


@contextlib.contextmanager
def _session(nvml: ModuleType) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


class _Inquiry:
    """Collects the lists."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        # The second is not an NVMLError: it means that the driver is too old for a function that pynvml calls.
        self._errors: tuple[type[Exception], ...] = (nvml.NVMLError, nvml.NVMLLibraryMismatchError)
        self.listings: list[_Listing] = []
        self.failures: list[Note] = []
        self.mps_servers: list[int] = []

    def ask_all(self) -> None:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            with self.noting_failure_of(f"GPU {index}"):
                self._ask_gpu(f"GPU {index}", self._nvml.nvmlDeviceGetHandleByIndex(index))
        pids = {pid for listing in self.listings for pid in listing}
        if os.getpid() not in pids:
            self.mps_servers = [pid for pid in pids if self._is_mps_server(pid)]

    @contextlib.contextmanager
    def noting_failure_of(self, what: str) -> Iterator[None]:
        """Note a failure of NVML in the body and go on: one lost GPU must not hide the others."""
        try:
            yield
        except self._errors as error:
            self.failures.append(Note.of("nvml-failed", part=what, error=str(error)))

    def _ask_gpu(self, name: str, gpu: Any) -> None:
        if not self._has_mig(gpu):
            self._ask(name, gpu)
            return
        # The GPU's own list repeats the processes of its instances. Not every index belongs to an instance.
        for index in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            instance = f"{name}, MIG instance {index}"
            with (
                self.noting_failure_of(instance),
                contextlib.suppress(self._nvml.NVMLError_NotFound),
            ):
                self._ask(instance, self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))

    def _has_mig(self, gpu: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(gpu)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return False
        return bool(current == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _ask(self, name: str, device: Any) -> None:
        listing: dict[int, int | None] = {}
        self._enter(self._nvml.nvmlDeviceGetComputeRunningProcesses(device), listing)
        self.listings.append(listing)
        for query in (
            self._nvml.nvmlDeviceGetGraphicsRunningProcesses,
            self._nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            with self.noting_failure_of(name), contextlib.suppress(*self._does_not_apply):
                self._enter(query(device), listing)

    @property
    def _does_not_apply(self) -> tuple[type[Exception], ...]:
        """Errors which mean that the device has no processes of that kind."""
        nvml = self._nvml
        return (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_InvalidArgument,
            nvml.NVMLLibraryMismatchError,
        )

    def _enter(self, processes: Iterable[Any], listing: dict[int, int | None]) -> None:
        """Add processes to a listing. One of two kinds is on two lists, each time with all it holds: take the larger number."""
        for process in processes:
            sizes = (listing.get(process.pid), process.usedGpuMemory)
            listing[process.pid] = max((size for size in sizes if size is not None), default=None)

    def _is_mps_server(self, pid: int) -> bool:
        with contextlib.suppress(
            *self._errors, UnicodeDecodeError
        ):  # it is gone or of the host, or its name is not text
            return "mps-server" in self._nvml.nvmlSystemGetProcessName(pid)
        return False
