"""What a process holds on GPUs, and which part of it is overhead.

torch's allocator knows of its own blocks only; contexts, kernels and libraries show in NVML (``nvidia-ml-py``), which
reports what the driver counts per process. Where it can't be read, that is said, and nothing is guessed.
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
from torchscan.wrong_arguments import explain_wrong_types

MIB = 2**20

#: process -> bytes that it holds on one GPU; None where NVML withholds the number
_Listing = Mapping[int, int | None]

_WITHHELD = "NVML does not tell how much the process holds"
_NO_GPU = "NVML finds no GPU"
_UNLISTED = "no GPU lists this process, as happens in containers"
_FOREIGN_NUMBERS = "the GPUs list processes by numbers of another container or of the host"
_UNDER_MPS = "this process is a client of MPS, whose memory NVML puts down to the MPS server"
_TOO_LITTLE = "NVML puts down less to this process than torch's allocator has reserved"

_reasons_said: set[str] = set()


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What a process holds on all GPUs together, in bytes, and the source of that number.

    ``"nvml"``: the driver. ``"allocator"``: torch, which does not see contexts, kernels and libraries. ``"none"``: there is
    none, and ``size`` is 0. ``reason`` explains any reservation; it is empty where NVML itself reports this process.
    """

    size: int
    source: Literal["nvml", "allocator", "none"]
    reason: str = ""
    #: whether the process may hold more than ``size``
    lower_bound: bool = False


@dataclass(frozen=True, slots=True)
class Overhead:
    """What this process holds on all GPUs beyond its live tensors, in MiB.

    ``cuda`` = process - reserved: contexts, kernels, libraries; None if not everything the process holds is known.
    ``framework`` = reserved - allocated: what torch's allocator caches.
    """

    cuda: float | None
    framework: float


NO_OVERHEAD = Overhead(0.0, 0.0)


@explain_wrong_types
def get_process_gpu_ram(pid: int | None = None) -> float:
    """MiB that a process, by default this one, holds on all GPUs.

    If NVML cannot tell, this warns once and returns what torch's allocator holds, or 0.0.
    """
    memory = process_memory(pid)
    if memory.source != "nvml" and memory.reason not in _reasons_said:
        _reasons_said.add(memory.reason)
        instead = "what torch's allocator holds" if memory.source == "allocator" else "0"
        warn_user(
            f"measuring the GPU memory of this process failed, so the result is {instead}: "
            f"{memory.reason}"
        )
    return memory.size / MIB


def process_memory(pid: int | None = None) -> ProcessMemory:
    """What a process, by default this one, holds on all GPUs.

    NVML lists processes by the host's numbers. A container has its own numbers, so there this process may be listed under
    another one: if exactly one listed process is not of this container, it is taken to be this one. A process of the host that
    happens to have this one's number can't be told apart from it, unless it holds less than torch has reserved.
    """
    if pid is None or pid == os.getpid():
        return _own_memory()
    survey = _ask_gpus()
    has_other_numbers = not {pid, os.getpid()} & set(survey.pids) and bool(
        _of_other_containers(survey.pids)
    )
    return survey.unknown(_FOREIGN_NUMBERS) if has_other_numbers else survey.memory_of(pid)


def cuda_overhead() -> Overhead:
    """What this process holds on all GPUs beyond its live tensors; nothing before CUDA is initialised."""
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
    reason = listed.reason if listed.source == "none" else _joined(_TOO_LITTLE, listed.reason)
    return ProcessMemory(reserved, "allocator", reason, lower_bound=True)


def _own_entry(survey: _Survey) -> ProcessMemory:
    """What the lists say about this process, which uses CUDA, under whichever number they have it."""
    if not survey.listings or os.getpid() in survey.pids:
        return survey.memory_of(os.getpid())
    if survey.mps_servers:
        return survey.unknown(_UNDER_MPS)
    strangers = _of_other_containers(survey.pids)
    if len(strangers) != 1:
        return survey.unknown(_UNLISTED)
    remark = f"process {strangers[0]} is taken to be this one: it is the only process on a GPU that is not of this container"
    return survey.memory_of(strangers[0], remark)


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
    failures: tuple[str, ...]
    mps_servers: frozenset[int]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset().union(*self.listings)

    def memory_of(self, pid: int, remark: str = "") -> ProcessMemory:
        """What the lists attribute to a process: nothing if it is on none of them, unknown if there are no lists."""
        if not self.listings:
            return self.unknown("" if self.failures else _NO_GPU)
        sizes = [listing[pid] for listing in self.listings if pid in listing]
        told = [size for size in sizes if size is not None]
        if len(told) < len(sizes):
            return self.unknown(_joined(_WITHHELD, remark))
        return ProcessMemory(
            sum(told), "nvml", _joined(remark, *self.failures), lower_bound=bool(self.failures)
        )

    def unknown(self, reason: str) -> ProcessMemory:
        return ProcessMemory(0, "none", _joined(reason, *self.failures), lower_bound=True)


def _joined(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


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
        self.failures: list[str] = []
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
            self.failures.append(f"{what} does not answer ({error})")

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
