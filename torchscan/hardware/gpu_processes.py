"""The processes on each GPU, as NVML lists them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torchscan.notes import Note

#: process -> bytes that it holds on one GPU, or None if NVML withholds the number
Listing = Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """The process lists of all GPUs, or of their MIG instances, and why some are missing."""

    listings: tuple[Listing, ...]
    failures: tuple[Note, ...]
    mps_servers: frozenset[int]

    @property
    def pids(self) -> frozenset[int]:
        """The processes on any of the lists."""
        return frozenset().union(*self.listings)


def ask_gpus() -> GpuProcesses:
    """Ask every GPU once. NVML's errors become part of the answer."""
    import pynvml  # type: ignore[import-untyped]

    inquiry = _Inquiry(pynvml)
    with inquiry.noting_failure_of("NVML"), _session(pynvml):
        inquiry.ask_all()
    return GpuProcesses(
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
    """Collects the lists of all GPUs."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        # The second is not an NVMLError: it means that the driver is too old for a function that
        # pynvml calls.
        self._errors: tuple[type[Exception], ...] = (nvml.NVMLError, nvml.NVMLLibraryMismatchError)
        self.listings: list[Listing] = []
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
        # The GPU's own list repeats the processes of its instances. Not every index belongs to an
        # instance.
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
        """Add processes to a listing.

        A process of two kinds is on two lists, each time with all that it holds: the larger number
        counts.
        """
        for process in processes:
            sizes = (listing.get(process.pid), process.usedGpuMemory)
            listing[process.pid] = max((size for size in sizes if size is not None), default=None)

    def _is_mps_server(self, pid: int) -> bool:
        # It may be gone or of the host, or its name may not be text.
        with contextlib.suppress(*self._errors, UnicodeDecodeError):
            return "mps-server" in self._nvml.nvmlSystemGetProcessName(pid)
        return False
