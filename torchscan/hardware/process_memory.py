"""GPU memory of a process, and the part of it that is overhead.

torch's allocator counts its own blocks only. NVML (``nvidia-ml-py``) reports the driver's count per
process, which includes contexts, kernels and libraries. If NVML cannot be read, the result says so;
nothing is estimated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from torchscan.hardware.gpu_processes import GpuProcesses, ask_gpus
from torchscan.notes import Note
from torchscan.user_warnings import warn_user
from torchscan.wrong_arguments import explain_wrong_types

MIB = 2**20

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
    survey = ask_gpus()
    is_listed = pid in survey.pids or os.getpid() in survey.pids
    if not is_listed and _find_strangers(survey.pids):
        return _unknown_memory(survey, _FOREIGN_NUMBERS)
    return _listed_memory(survey, pid)


def cuda_overhead() -> Overhead:
    """Return the memory of this process on all GPUs beyond its live tensors.

    It is zero before CUDA is initialized.
    """
    if not torch.cuda.is_initialized():
        return NO_OVERHEAD
    memory = process_memory()
    reserved = _sum_over_devices(torch.cuda.memory_reserved)
    allocated = _sum_over_devices(torch.cuda.memory_allocated)
    # These are read one after the other: memory that is allocated or freed in between must not make
    # a difference negative.
    cuda = None if memory.lower_bound else max(memory.size - reserved, 0) / MIB
    return Overhead(cuda, max(reserved - allocated, 0) / MIB)


# -- this process --------------------------------------------------------------------------------


def _own_memory() -> ProcessMemory:
    # Read first: it may grow before NVML answers.
    reserved = _sum_over_devices(torch.cuda.memory_reserved)
    survey = ask_gpus()
    if not torch.cuda.is_initialized() and os.getpid() not in survey.pids:
        return _listed_memory(survey, os.getpid())
    listed = _own_entry(survey)
    if listed.source == "nvml" and listed.size >= reserved:
        return listed
    reasons = listed.reasons
    if listed.source != "none":
        reasons = (_TOO_LITTLE, *reasons)
    return ProcessMemory(reserved, "allocator", reasons, lower_bound=True)


def _own_entry(survey: GpuProcesses) -> ProcessMemory:
    """Return the listed memory of this process, which uses CUDA, under any PID."""
    if not survey.listings or os.getpid() in survey.pids:
        return _listed_memory(survey, os.getpid())
    if survey.mps_servers:
        return _unknown_memory(survey, _UNDER_MPS)
    strangers = _find_strangers(survey.pids)
    if len(strangers) != 1:
        return _unknown_memory(survey, _UNLISTED)
    stranger = strangers[0]
    return _listed_memory(survey, stranger, Note.of("process-outside-container", pid=stranger))


def _find_strangers(pids: Iterable[int]) -> list[int]:
    if not os.path.exists("/proc/self"):  # not Linux: processes can't be looked up there
        return []
    return [pid for pid in pids if not os.path.exists(f"/proc/{pid}")]


def _sum_over_devices(bytes_of: Callable[[int], int]) -> int:
    if not torch.cuda.is_initialized():
        return 0
    return sum(bytes_of(index) for index in range(torch.cuda.device_count()))


def _listed_memory(survey: GpuProcesses, pid: int, *reasons: Note) -> ProcessMemory:
    """Return the memory that the lists attribute to a process.

    That is nothing if none of them has it, and unknown if there are no lists.
    """
    if not survey.listings:
        no_gpu = () if survey.failures else (_NO_GPU,)
        return _unknown_memory(survey, *no_gpu)
    sizes = [listing[pid] for listing in survey.listings if pid in listing]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return _unknown_memory(survey, _WITHHELD, *reasons)
    is_bound = bool(survey.failures)
    return ProcessMemory(sum(known), "nvml", (*reasons, *survey.failures), lower_bound=is_bound)


def _unknown_memory(survey: GpuProcesses, *reasons: Note) -> ProcessMemory:
    return ProcessMemory(0, "none", (*reasons, *survey.failures), lower_bound=True)
