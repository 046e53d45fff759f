"""Seconds that calls take on a device, by the rates of the device and the kernels that run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torchscan.analyses.generation.serving_costs import AS_IT_IS, BITS, Serving
from torchscan.analyses.roofline.call_seconds import Seconds, Times
from torchscan.analyses.roofline.channels_last import with_channels_last
from torchscan.analyses.roofline.constants import (
    EPILOGUES,
    NARROW_SHARE,
    OVERLAP,
    ROWS_UNPACKED,
    STREAMING,
    UNPACKING,
    VECTORS,
)
from torchscan.analyses.roofline.fusible_calls import begins_kernel, is_fusible
from torchscan.analyses.roofline.kernels import Kernel, Machine, kernel_of
from torchscan.analyses.roofline.near_bytes import Near
from torchscan.analyses.roofline.number_formats import Format, Numbers, format_of
from torchscan.analyses.roofline.rates import Rates
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall, OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCall:
    """One call on the device."""

    index: int
    cost: OpCost
    form: Format
    work: Seconds
    launches: int


class _MovedBytes(NamedTuple):
    """Bytes that a call reads and writes."""

    by_memory: int
    by_cache: int


def _split_bytes(read: int, cost: OpCost, cached: tuple[int, int]) -> _MovedBytes:
    cached_reads, cached_writes = cached
    hit = min(cached_reads, read) + min(cached_writes, cost.bytes_written)
    return _MovedBytes(read + cost.bytes_written - hit, hit)


#: architectures with asynchronous matrix units, for which engines have kernels of attention
ASYNC_ARCHS = ("Hopper", "Blackwell GB100")


class CallTimes:
    """Times calls on a device."""

    def __init__(
        self,
        rates: Rates,
        numbers: Numbers,
        *,
        compiled: bool,
        turned: bool,
        serving: Serving | None = None,
        sustained: bool = False,
    ) -> None:
        """Prepare to time calls.

        Args:
            rates: the rates of the device.
            numbers: the arithmetic of the pass.
            compiled: True if a compiler has fused the calls.
            turned: True if convolutions find and leave their operands with the channels last.
            serving: the way in which a language model is served, or None.
            sustained: True if the device computes for seconds, as in training.
        """
        self._rates = rates
        self._numbers = numbers
        self._compiled = compiled
        self._turned = turned
        self._serving = serving or AS_IT_IS
        self._sustained = sustained
        self._kernels: dict[tuple[int, bool], tuple[Kernel, Format]] = {}
        self._times: dict[tuple[object, ...], tuple[OpCost, Format, Seconds, int]] = {}

    def run(self, index: int, op: OpCall, cost: OpCost, near: Near) -> DeviceCall:
        """Return one call on the device. Equal calls are timed once."""
        key = (id(op.signature), cost, near)
        known = self._times.get(key)
        if known is None:
            known = self._times[key] = self._time(op, cost, near)
        cost, form, work, launches = known
        return DeviceCall(index=index, cost=cost, form=form, work=work, launches=launches)

    def _time(self, op: OpCall, cost: OpCost, near: Near) -> tuple[OpCost, Format, Seconds, int]:
        kernel, form = self._kernel(op, cost, is_quantized=near.quantized > 0)
        if _is_cast_before(op.signature, form) and not near.quantized:
            cost = _in_eight_bits(op.signature, cost)
        moved = _split_bytes(cost.bytes_read, cost, near.cached)
        fewest = _split_bytes(cost.min_bytes_read, cost, near.cached_at_least)
        launches = kernel.launches
        if near.quantized and not near.is_quantized_before:
            launches += 1
        if _is_cast_before(op.signature, form):
            near = near._replace(cast=cost.bytes_read)
        work = self._work(_for_few_rows(kernel, cost, near), cost, form, moved, fewest, near)
        return cost, form, work, launches

    def _kernel(self, op: OpCall, cost: OpCost, *, is_quantized: bool) -> tuple[Kernel, Format]:
        """Return how a call runs. A compiler's kernels and a host's are nothing but their work."""
        key = id(op.signature), is_quantized
        if key in self._kernels:
            return self._kernels[key]
        form = format_of(op.signature, cost, self._numbers)
        compute = self._serving.compute if is_quantized else None
        kernel = Kernel()
        if compute is not None:
            form = compute
            kernel = kernel_of(op.signature, cost, self._machine(form, multiplies=True))
            kernel = replace(kernel, matrices=NARROW_SHARE * kernel.matrices)
        elif not self._compiled or not is_fusible(op, cost) or begins_kernel(op):
            signature = with_channels_last(op.signature) if self._turned else op.signature
            kernel = kernel_of(signature, cost, self._machine(form, multiplies=cost.macs > 0))
        if self._rates.is_host:
            kernel = Kernel(transformed=kernel.transformed)
        self._kernels[key] = kernel, form
        return kernel, form

    def _machine(self, form: Format, *, multiplies: bool) -> Machine:
        """Return the parts of the device that a kernel in this format depends on."""
        rates = self._rates
        device = rates.device
        multiprocessors = device.multiprocessors or 1
        if rates.is_host:
            return Machine(multiprocessors=multiprocessors)

        is_async = device.arch.startswith(ASYNC_ARCHS)
        # cuDNN has attention in 16 bits; engines bring their kernels with them
        is_half = form in ("fp16", "bf16")
        has_cudnn = self._serving is AS_IT_IS and rates.has_cudnn_attention and is_half
        is_blackwell = device.arch.startswith("Blackwell GB100")
        return Machine(
            multiprocessors=multiprocessors,
            clock_hz=device.clock_hz,
            flops_per_cycle=rates.flops_per_cycle(form) if multiplies else None,
            vector_lanes=rates.vector_lanes or 128.0,
            is_hopper=device.arch.startswith("Hopper"),
            has_async_attention=is_async and (self._serving.has_flash_3 or has_cudnn),
            has_async_backward=is_blackwell or (is_async and has_cudnn),
            product_traffic=STREAMING * rates.products_stream,
            l2_bytes=device.l2_bytes,
            cycles_of_element=rates.cycles_of_element,
        )

    def _work(
        self,
        kernel: Kernel,
        cost: OpCost,
        form: Format,
        moved: _MovedBytes,
        fewest: _MovedBytes,
        near: Near,
    ) -> Seconds:
        rates = self._rates
        at_peak = min_products = 0.0
        if cost.macs:
            at_peak = 2 * cost.macs * kernel.min_share / rates.peak(form)
            min_products = 2 * cost.macs * rates.min_seconds(form, kernel)
        others = max(0, cost.flops - 2 * cost.macs) / rates.vector_peak(form)
        traffic = self._traffic(kernel, moved, near)
        products = self._products(kernel, cost, form, traffic)
        return Seconds(
            min_times=self._min_times(max(at_peak, others), moved),
            fewest=self._min_times(max(min_products, others), fewest),
            products=min_products,
            arithmetic=max(products, others / VECTORS, self._seconds_of(kernel.cycles)),
            traffic=traffic,
            around=self._serial_seconds(kernel, near),
        )

    def _traffic(self, kernel: Kernel, moved: _MovedBytes, near: Near) -> float:
        """Return the seconds of reading and writing, at the rates that the kernel reaches."""
        rates = self._rates
        efficiency = kernel.traffic * rates.streamed
        if self._compiled:
            efficiency *= kernel.among_compiled
        by_memory = max(0.0, moved.by_memory - EPILOGUES * near.handed_over)
        return by_memory / (rates.bandwidth * efficiency) + moved.by_cache / rates.cache_estimate

    def _serial_seconds(self, kernel: Kernel, near: Near) -> float:
        """Return the seconds before and after, and of unpacking weights, without overlap."""
        rates = self._rates
        streamed = rates.bandwidth * STREAMING * rates.streamed
        again = kernel.more_bytes / streamed
        apart = kernel.turned_bytes + self._quantization_bytes(near)
        if not self._compiled:
            again = max(again, self._seconds_of(kernel.more_cycles))
            apart += kernel.bias_bytes
        latency = 0.0 if near.is_joined else kernel.alone
        waiting = again + apart / streamed + kernel.cached_bytes / rates.cache_estimate + latency
        return waiting + UNPACKING * near.unpacked / rates.vector_peak("fp32")

    def _quantization_bytes(self, near: Near) -> float:
        """Return the bytes that are read in 16 bits and written in the format of a product."""
        compute = self._serving.compute
        if not near.quantized or compute is None:
            return 3.0 * near.cast
        if near.is_quantized_before:
            return 0.0
        return near.quantized + near.quantized * BITS[compute] / 16

    def _min_times(self, arithmetic: float, moved: _MovedBytes) -> Times:
        by_memory = moved.by_memory / self._rates.bandwidth
        by_cache = moved.by_cache / self._rates.cache_bound
        return arithmetic, by_memory, by_cache

    def _products(self, kernel: Kernel, cost: OpCost, form: Format, traffic: float) -> float:
        if not cost.macs:
            return 0.0
        flops = 2 * cost.macs * kernel.executed
        at_full_clock = flops / (self._rates.reachable(form) * kernel.matrices)
        overlapped = float((at_full_clock**OVERLAP + traffic**OVERLAP) ** (1 / OVERLAP))
        utilization = 1.0
        if not kernel.keeps_busy:
            utilization = flops / (overlapped * self._rates.peak(form))
        clock_share = self._rates.clock_share(form, utilization, sustained=self._sustained)
        on_matrices = at_full_clock / clock_share
        on_vectors = flops / (self._rates.vector_peak(form) * kernel.vectors)
        if kernel.units == "faster":
            return min(on_matrices, on_vectors)
        return on_matrices if kernel.units == "matrix" else on_vectors

    def _seconds_of(self, cycles: float) -> float:
        """Return the seconds that all multiprocessors need for these cycles, if these are known."""
        device = self._rates.device
        if not device.multiprocessors or not device.clock_hz:
            return 0.0
        return cycles / (device.multiprocessors * device.clock_hz)


def _for_few_rows(kernel: Kernel, cost: OpCost, near: Near) -> Kernel:
    """Return the kernel of a product that unpacks weights, if there are few rows.

    Such kernels are written for decoding: their tiles have as few rows as matrix units take.
    """
    if not near.unpacked:
        return kernel
    rows = cost.macs / near.unpacked
    if rows > ROWS_UNPACKED:
        return kernel
    return Kernel(executed=ROWS_UNPACKED / max(rows, 1.0))


def _is_cast_before(signature: OpSignature, form: Format) -> bool:
    """Return whether a product in 8 bits has operands in 16, which are cast before it."""
    return form == "fp8" and all(spec.dtype.itemsize > 1 for spec in signature.inputs)


def _in_eight_bits(signature: OpSignature, cost: OpCost) -> OpCost:
    """Return the cost if both factors of a product take half of their 16 bits."""
    factors = [spec for spec in signature.distinct_inputs if len(spec.shape) >= 2]
    read = cost.bytes_read - sum(spec.stored_bytes for spec in factors) // 2
    avoidable = cost.avoidable_bytes_read * read // max(cost.bytes_read, 1)
    return replace(cost, bytes_read=read, avoidable_bytes_read=avoidable)
