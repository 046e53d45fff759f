"""A device: its memory, its units and its rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchscan.results import Result

_MIB = 2**20

#: memory of the CUDA context, torch's kernels and the libraries if it is not known: the assumed
#: size, and the smallest and largest reported one (docs/reference/memory-model.md)
CONTEXT, CONTEXT_RANGE = 512 * _MIB, (274 * _MIB, 1680 * _MIB)
#: workspace of cuBLAS, one for the forward and one for the backward pass: torch's defaults before
#: Hopper and from Hopper on
CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_HOPPER = 8320 * 1024, 32 * _MIB
#: bytes that one multiprocessor can read from the second-level cache per cycle, at most
L2_BYTES_PER_CYCLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Result):
    """A device. Rates are per second; None means that a value is not known."""

    name: str
    #: bytes that programs can use
    memory_bytes: int
    #: memory on the data sheet, in 2^30 bytes
    data_sheet_memory_gib: float = 0.0
    #: bytes of the context, kernels and libraries of a process, or None if they are not known
    known_cuda_context_bytes: int | None = None
    #: compute capability, such as 9.0; None if it is not a CUDA device
    capability: float | None = None
    vendor: str = ""
    arch: str = ""
    multiprocessors: int | None = None
    #: clock rate, in cycles per second
    clock_hz: float | None = None
    #: operations per second without sparsity, by operand type
    flops_per_second: Mapping[str, float] = field(default_factory=dict)
    #: memory bandwidth, in bytes per second
    bytes_per_second: float | None = None
    #: for example "GDDR7", if the share of the bandwidth that kernels attain depends on it
    memory_type: str = ""
    #: True if GDDR memory corrects errors (ECC), with check bits among the data
    has_gddr_ecc: bool = False
    #: size of the second-level cache, in bytes
    l2_bytes: int | None = None
    #: bytes per second to other devices, over all links in both directions
    link_bytes_per_second: float | None = None
    #: number of devices that a link joins, or None for all of a machine; PCIe joins the others
    link_devices: int | None = None
    #: bytes per second over PCIe, in one direction, or None if they are not known
    pcie_bytes_per_second: float | None = None
    #: power limit of the board, in watts
    power_watts: float | None = None
    #: sources of the numbers, by key
    source: Mapping[str, str] = field(default_factory=dict)
    #: keys of the numbers for which we found no source
    unverified: tuple[str, ...] = ()
    note: str = ""
    #: other names of the device
    aliases: tuple[str, ...] = ()
    #: name that selects this device among those whose names contain it: "H100"
    short_name: str = ""
    #: True if the rates were measured, so that they are attainable
    is_measured: bool = False

    @property
    def cuda_context_bytes(self) -> int:
        """Bytes of the context, kernels and libraries of a process, or an assumption."""
        known = self.known_cuda_context_bytes
        return CONTEXT if known is None else known

    @property
    def cuda_context_range(self) -> tuple[int, int]:
        """Smallest and largest expected ``cuda_context_bytes``."""
        known = self.known_cuda_context_bytes
        return CONTEXT_RANGE if known is None else (known, known)

    @property
    def room_bytes(self) -> int:
        """Bytes for tensors and workspaces."""
        return self.memory_bytes - self.cuda_context_bytes

    @property
    def has_allocator(self) -> bool:
        """True if torch's caching allocator manages the memory: on NVIDIA and AMD GPUs."""
        return self.vendor in ("", "NVIDIA", "AMD")

    @property
    def has_flash(self) -> bool:
        """True if torch has a flash attention kernel for the device."""
        return self.capability is None or self.capability >= 8

    @property
    def cublas_workspace_bytes(self) -> int:
        """Bytes of cuBLAS's workspace, for each thread that calls it."""
        return CUBLAS_WORKSPACE_HOPPER if (self.capability or 0) >= 9 else CUBLAS_WORKSPACE

    @property
    def l2_bytes_per_second(self) -> float | None:
        """Peak bytes per second from the second-level cache: 64 per cycle and multiprocessor."""
        if self.multiprocessors is None or self.clock_hz is None:
            return None
        return L2_BYTES_PER_CYCLE * self.multiprocessors * self.clock_hz

    def is_unverified(self, figure: str) -> bool:
        """Return whether a number, such as "bandwidth_gbs" or "fp16", has no source."""
        is_rate = figure in self.flops_per_second
        return figure in self.unverified or (is_rate and "dense_tflops" in self.unverified)
