"""Rates of a device in a number format: at its peak, and within its power limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from torchscan.analyses.roofline.constants import (
    CACHE,
    CYCLES_OF_ELEMENT,
    ISSUED,
    LOW_POWER,
    PICOJOULES,
    PICOJOULES_SINGLE,
    POWER_SHARE,
    PRODUCTS_STREAM,
    SLOWER_MEMORY,
    STREAMING,
    SUSTAINED_SHARE,
    SUSTAINED_SHARE_CUDA_13,
)
from torchscan.analyses.roofline.kernels import Kernel
from torchscan.analyses.roofline.number_formats import Format
from torchscan.errors import InputError, PythonOnly
from torchscan.hardware.device_specs import Device
from torchscan.notes import Note
from torchscan.torch_versions import prefers_cudnn_attention, runs_libraries_of_cuda_13

#: the CUDA version whose cuBLAS and cuDNN torch runs: their kernels for Hopper and Blackwell differ
Libraries = Literal["cuda-12", "cuda-13"]

_WIDER: dict[Format, Format] = {
    "fp4": "fp8",
    "fp8": "fp16",
    "int8": "fp16",
    "bf16": "fp32",
    "fp16": "fp32",
    "tf32": "fp32",
}
#: of single precision, what double precision gets where a data sheet does not say
_SINGLE_PER_DOUBLE = 64


class Rates:
    """The rates of one device."""

    def __init__(self, device: Device, libraries: Libraries | None = None) -> None:
        """Prepare the rates.

        Args:
            device: the device, whose rates must be known.
            libraries: the libraries that torch runs, or None for those of the installed torch.
        """
        if device.bytes_per_second is None or not device.flops_per_second:
            raise InputError(
                f"the rates of {device.name!r} are not known: give a device that `torchscan "
                "devices` lists",
                PythonOnly(", or register it with register_device(...)"),
            )
        self.device = device
        #: True if torch prefers cuDNN's attention on GPUs of data centers from Hopper on
        self.has_cudnn_attention = libraries == "cuda-13"
        if libraries is None:
            libraries = "cuda-13" if runs_libraries_of_cuda_13() else "cuda-12"
            self.has_cudnn_attention = prefers_cudnn_attention()
        self.libraries: Libraries = libraries
        self.bandwidth: float = device.bytes_per_second
        #: True if it computes synchronously, without a queue
        self.is_host = device.vendor == "CPU"
        #: rates that had to be assumed
        self.assumed: dict[Note, None] = {}

    def peak(self, form: Format) -> float:
        """Return the operations per second of products, as the data sheet says.

        If it does not, the rate is that of the next wider format, up to single precision. For that,
        it is the rate of TF32, bfloat16 or else the first known format; double precision has a
        fixed share of it. What was assumed is noted.
        """
        known = self.device.flops_per_second
        matrix = known.get(f"{form}_tc", known.get(form))
        if matrix is not None:
            return max(matrix, known.get(form, 0.0))
        if form in _WIDER:
            self._note_substitute(form, _WIDER[form])
            return self.peak(_WIDER[form])
        if form == "fp32":
            other = next(each for each in ("tf32", "bf16", *known) if each in known)
            self._note_substitute(form, other)
            return known[other]
        note = Note.of(
            "double-rate-substituted", device=self.device.name, divisor=_SINGLE_PER_DOUBLE
        )
        self.assumed.setdefault(note)
        return self.peak("fp32") / _SINGLE_PER_DOUBLE

    def min_seconds(self, form: Format, kernel: Kernel) -> float:
        """Return the seconds for each counted operation of products, at the peak.

        In single and double precision, transformed ones run on vector units if that takes less.
        """
        at_peak = kernel.min_share / self.peak(form)
        vectors = self.vector_peak("fp64" if form == "fp64" else "fp32")
        if form not in ("fp64", "fp32", "tf32") or math.isinf(vectors):
            return at_peak
        return min(at_peak, kernel.transformed / vectors)

    def vector_peak(self, form: Format) -> float:
        """Return the operations per second of other arithmetic, in single precision or better."""
        single = self.device.flops_per_second.get("fp32", math.inf)
        if form != "fp64":
            return single
        return self.device.flops_per_second.get("fp64", single / _SINGLE_PER_DOUBLE)

    def flops_per_cycle(self, form: Format) -> float | None:
        """Return the operations that a multiprocessor issues in a cycle, or None if not known."""
        device = self.device
        if not device.multiprocessors or not device.clock_hz:
            return None
        return self.reachable(form) / (device.multiprocessors * device.clock_hz)

    @property
    def vector_lanes(self) -> float | None:
        """Threads of vector units in a multiprocessor; each multiplies and adds in a cycle."""
        device, single = self.device, self.device.flops_per_second.get("fp32")
        if single is None or not device.multiprocessors or not device.clock_hz:
            return None
        return single / (2 * device.multiprocessors * device.clock_hz)

    def reachable(self, form: Format) -> float:
        """Return the operations per second that instructions can issue at full clock."""
        if self.device.is_measured or form in ("fp32", "fp64"):
            return self.peak(form)
        issued = (share for name, share in ISSUED.items() if self.device.arch.startswith(name))
        return self.peak(form) * next(issued, 1.0)

    def clock_share(self, form: Format, utilization: float, *, sustained: bool = False) -> float:
        """Return the share of the full clock that the power limit allows.

        Formats of less than 32 bits take as much power as there are bits in them.

        Args:
            form: the format of the operations.
            utilization: the share of the peak that is computed at full clock. Multiprocessors that
                wait take little power.
            sustained: True if the device computes for seconds, so that no burst above its limit is
                left.
        """
        if self.device.is_measured or form == "fp64" or utilization <= 0:
            return 1.0
        if form == "fp32":
            return self._power_limited_share("fp32", PICOJOULES_SINGLE, utilization, POWER_SHARE)
        share = POWER_SHARE
        if sustained:
            share = self._sustained_share()
        return self._power_limited_share("fp16", PICOJOULES, utilization, share)

    def _sustained_share(self) -> float:
        """Return the share of the board's power that arithmetic has in steps that repeat."""
        shares = {**SUSTAINED_SHARE}
        if self.libraries == "cuda-13":
            shares |= SUSTAINED_SHARE_CUDA_13
        arch = self.device.arch
        known = (share for name, share in shares.items() if arch.startswith(name))
        return next(known, POWER_SHARE)

    @property
    def power_factor(self) -> float:
        """The share of the matrix units' peak that the power limit allows."""
        return self.clock_share("fp16", 1.0)

    def _power_limited_share(
        self, form: Format, picojoules: Mapping[str, float], utilization: float, share: float
    ) -> float:
        """Return ``min(1, (share of power · watts / (joules per operation · operations))^e)``.

        It is 1 if one of these is not known. ``e`` is 1 for boards of so little power that they
        have no voltage to give up, and 1/2 from twice as much on.
        """
        arch = self.device.arch
        known = (joules for name, joules in picojoules.items() if arch.startswith(name))
        energy = next(known, None)
        peak = self.device.flops_per_second.get(form)
        watts = self.device.power_watts
        if energy is None or peak is None or watts is None:
            return 1.0
        exponent = 1 - min(1.0, max(0.0, watts / LOW_POWER - 1)) / 2
        demanded = energy * 1e-12 * peak * utilization
        return min(1.0, float((share * watts / demanded) ** exponent))

    @property
    def streamed(self) -> float:
        """The bandwidth that kernels attain, relative to that of most memory."""
        if self.device.is_measured:
            return 1 / STREAMING
        if self.device.has_gddr_ecc or self.device.memory_type == "GDDR7":
            return SLOWER_MEMORY
        return 1.0

    @property
    def products_stream(self) -> float:
        """The bandwidth that products of matrices attain, relative to other kernels."""
        known = PRODUCTS_STREAM.items()
        shares = (share for name, share in known if self.device.arch.startswith(name))
        return 1.0 if self.device.is_measured else next(shares, 1.0)

    @property
    def cycles_of_element(self) -> float:
        """Cycles for each element of pointwise kernels that load one at a time."""
        arch = self.device.arch
        known = (cycles for name, cycles in CYCLES_OF_ELEMENT.items() if arch.startswith(name))
        return next(known, 0.0)

    @property
    def cache(self) -> int | None:
        """Bytes of a cache whose rate is known."""
        return self.device.l2_bytes if self.device.l2_bytes_per_second else None

    @property
    def cache_bound(self) -> float:
        """Peak bytes per second from the cache."""
        return self.device.l2_bytes_per_second or self.bandwidth

    @property
    def cache_estimate(self) -> float:
        """Bytes per second from the cache, as kernels get them, and no less than from memory."""
        if self.device.l2_bytes_per_second is None:
            return self.bandwidth
        return max(CACHE * self.device.l2_bytes_per_second, self.bandwidth)

    def ridge(self, form: Format, *, of_products: bool) -> float | None:
        """Return the operations per byte from which on arithmetic is the limit.

        None if the rate of vector units is not known.
        """
        peak = self.peak(form) if of_products else self.vector_peak(form)
        return peak / self.bandwidth if math.isfinite(peak) else None

    def _note_substitute(self, form: Format, source: str) -> None:
        """Note that the rate of another format is used."""
        note = Note.of("rate-substituted", device=self.device.name, format=form, source=source)
        self.assumed.setdefault(note)
