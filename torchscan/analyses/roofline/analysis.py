"""From a record to its roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchscan.analyses.module_costs import call_costs, unpriced_operators
from torchscan.analyses.roofline.cache import bytes_in_cache
from torchscan.analyses.roofline.constants import (
    HOST_BACKWARD,
    HOST_CALL,
    HOST_COMPILED,
    HOST_FUNCTION,
    HOST_VIEW,
    LAUNCH,
    OVERLAP,
    STREAMING,
    VECTORS,
)
from torchscan.analyses.roofline.fusion import fused_kernels, is_fusible, traffic_when_fused
from torchscan.analyses.roofline.kernels import Kernel, is_launched, kernel_of
from torchscan.analyses.roofline.rates import Format, Numbers, Rates, format_of
from torchscan.analyses.roofline.result import GroupLoad, Limiter, OperatorLoad, Roofline
from torchscan.analyses.totals import paths_around
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall, OpSignature, Phase
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class _Bound:
    """Seconds that arithmetic and traffic take at the rates of the data sheet."""

    compute: float
    memory: float
    cache: float

    @property
    def time(self) -> float:
        """They overlap at best."""
        return max(self.compute, self.memory, self.cache)

    @property
    def limiter(self) -> Limiter:
        by_time: dict[Limiter, float] = {"compute": self.compute, "memory": self.memory, "cache": self.cache}
        return max(by_time, key=lambda name: (by_time[name], name == "memory"))


@dataclass(frozen=True, slots=True)
class _Run:
    """One call on the device."""

    cost: OpCost
    form: Format
    bound: _Bound
    #: seconds that its kernels compute and move, and those until they do
    busy: float
    launching: float


class _Device:
    """Says how long calls take on a device, each distinct one once."""

    def __init__(self, rates: Rates, numbers: Numbers, *, compiled: bool) -> None:
        self._rates = rates
        self._numbers = numbers
        self._compiled = compiled
        self._kernels: dict[int, tuple[Kernel, Format]] = {}

    def run(self, op: OpCall, cost: OpCost, cached: tuple[int, int], *, is_first: bool) -> _Run:
        kernel, form = self._kernel(op, cost)
        cost = self._in_eight_bits(op.signature, cost) if form == "fp8" else cost
        hit = min(cached[0], cost.bytes_read) + min(cached[1], cost.bytes_written)
        moved = cost.bytes_read + cost.bytes_written - hit
        bound = self._bound(cost, form, moved, hit)
        busy = max(self._busy(kernel, cost, form, moved, hit), bound.time)
        launch = HOST_FUNCTION if self._rates.is_host else LAUNCH
        return _Run(cost, form, bound, busy, launch * kernel.launches if is_first else 0.0)

    def _kernel(self, op: OpCall, cost: OpCost) -> tuple[Kernel, Format]:
        key = id(op.signature)
        if key not in self._kernels:
            is_plain = self._rates.is_host or (self._compiled and is_fusible(op, cost))
            kernel = Kernel() if is_plain else kernel_of(op.signature, cost, self._rates.device.multiprocessors)
            self._kernels[key] = kernel, format_of(op.signature, cost, self._numbers)
        return self._kernels[key]

    @staticmethod
    def _in_eight_bits(signature: OpSignature, cost: OpCost) -> OpCost:
        """Both factors of a product take half of their 16 bits."""
        factors = [spec for spec in signature.inputs if len(spec.shape) >= 2]
        return replace(cost, bytes_read=cost.bytes_read - sum(spec.stored_bytes for spec in factors) // 2)

    def _bound(self, cost: OpCost, form: Format, moved: int, hit: int) -> _Bound:
        products = 2 * cost.macs / self._rates.peak(form) if cost.macs else 0.0
        others = max(0, cost.flops - 2 * cost.macs) / self._rates.vector_peak(form)
        return _Bound(max(products, others), moved / self._rates.bandwidth, hit / self._rates.cache_bound)

    def _busy(self, kernel: Kernel, cost: OpCost, form: Format, moved: int, hit: int) -> float:
        """``(arithmetic^p + traffic^p)^(1/p)``, and what comes before and after."""
        rates, efficiency = self._rates, kernel.traffic / (STREAMING if self._rates.device.is_measured else 1.0)
        arithmetic = max(self._products(kernel, cost, form), self._others(kernel, cost, form))
        traffic = moved / (rates.bandwidth * efficiency) + hit / rates.cache_estimate
        turned = 0.0 if self._compiled else kernel.turned_bytes
        around = (kernel.more_bytes + turned + self._quantised(cost, form)) / (rates.bandwidth * STREAMING)
        return float((arithmetic**OVERLAP + traffic**OVERLAP) ** (1 / OVERLAP)) + around + kernel.alone

    def _products(self, kernel: Kernel, cost: OpCost, form: Format) -> float:
        if not cost.macs:
            return 0.0
        on_matrices = 2 * cost.macs / (self._rates.sustained(form) * kernel.matrices)
        on_vectors = 2 * cost.macs / (self._rates.vector_peak(form) * kernel.vectors)
        return {"matrix": on_matrices, "vector": on_vectors, "faster": min(on_matrices, on_vectors)}[kernel.units]

    def _others(self, kernel: Kernel, cost: OpCost, form: Format) -> float:
        device = self._rates.device
        cycles = 0.0
        if device.multiprocessors and device.clock:
            cycles = kernel.cycles / (device.multiprocessors * device.clock)
        return max(cycles, max(0, cost.flops - 2 * cost.macs) / (self._rates.vector_peak(form) * VECTORS))

    @staticmethod
    def _quantised(cost: OpCost, form: Format) -> int:
        """Operands are read in 16 bits and written in 8 before they are multiplied."""
        return 3 * cost.bytes_read if form == "fp8" else 0


def roofline_of(
    trace: Trace,
    rates: Rates,
    *,
    precision: str | None = None,
    numbers: Numbers | None = None,
    compiled: bool = False,
    warnings: Sequence[str] = (),
) -> Roofline:
    """The roofline of a record on a device; ``compiled`` as ``torch.compile`` would run it."""
    costs = call_costs(trace)
    kernels = fused_kernels(trace, costs) if compiled else _each_its_own(trace)
    moved = traffic_when_fused(trace, costs, kernels) if compiled else costs
    cached = bytes_in_cache(trace, rates.device.l2)
    device = _Device(rates, numbers or Numbers(), compiled=compiled)
    queue = _Queue()
    loads: list[OperatorLoad] = []
    places: list[int] = []
    for index, op in enumerate(trace.ops):
        is_first = kernels[index] == index
        ready = 0.0 if rates.is_host else _host_time(op, compiled=compiled, is_first=is_first)
        if kernels[index] is None:
            queue.wait(ready)
            continue
        run = device.run(op, moved[index], cached[index], is_first=is_first)
        loads.append(_load(trace, op, run, queue.take(ready, run.busy + run.launching), rates))
        places.append(op.module_call)
    return _result(trace, rates, loads, places, precision, compiled, [*warnings], unpriced_operators(trace, costs))


def _each_its_own(trace: Trace) -> list[int | None]:
    return [index if is_launched(op.signature) else None for index, op in enumerate(trace.ops)]


def _host_time(op: OpCall, *, compiled: bool, is_first: bool) -> float:
    """Seconds until the host has launched a call, after the one before."""
    if compiled:
        return HOST_COMPILED if is_first else 0.0
    if op.signature.is_view or not is_launched(op.signature):
        return HOST_VIEW
    return HOST_CALL if op.phase == "forward" else HOST_BACKWARD


class _Queue:
    """Kernels run one after the other, each as soon as the host has launched it."""

    def __init__(self) -> None:
        self._launched = self._done = 0.0

    def wait(self, seconds: float) -> None:
        """The host is busy."""
        self._launched += seconds

    def take(self, host: float, device: float) -> float:
        """How much longer all takes with this call."""
        self._launched += host
        before = self._done
        self._done = max(self._done, self._launched) + device
        return self._done - before


def _load(trace: Trace, op: OpCall, run: _Run, time: float, rates: Rates) -> OperatorLoad:
    cost = run.cost
    return OperatorLoad(
        operator=op.signature.operator,
        layer=trace.path_of(op),
        phase=op.phase,
        precision=run.form,
        macs=cost.macs,
        flops=cost.flops,
        elements_read=cost.elements_read,
        elements_written=cost.elements_written,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        intensity=_intensity(cost.flops, cost.bytes_read + cost.bytes_written),
        ridge=rates.ridge(run.form, of_products=bool(cost.macs)),
        limiter="launch" if time > 2 * run.busy else run.bound.limiter,
        time_bound=run.bound.time,
        time_estimate=time,
    )


def _intensity(flops: int, moved: int) -> float | None:
    return flops / moved if moved else None


def _result(
    trace: Trace,
    rates: Rates,
    loads: list[OperatorLoad],
    places: list[int],
    precision: str | None,
    compiled: bool,
    warnings: list[str],
    unpriced: dict[str, dict[str, int]],
) -> Roofline:
    if unpriced:
        warnings.append(f"a lower bound: the cost of {', '.join(unpriced)} is not known")
    time = math.fsum(each.time_estimate for each in loads)
    forms: dict[Format, int] = {}
    for each in loads:
        if each.macs:
            forms[each.precision] = forms.get(each.precision, 0) + each.macs
    products = math.fsum(2 * macs / rates.peak(form) for form, macs in forms.items())
    by_phase: dict[Phase, float] = {}
    for each in loads:
        by_phase[each.phase] = by_phase.get(each.phase, 0.0) + each.time_estimate
    moved = sum(each.bytes_read + each.bytes_written for each in loads)
    return Roofline(
        device=rates.device.name,
        precision=precision,
        batch_size=trace.provenance.batch_size,
        compiled=compiled,
        time_bound=math.fsum(each.time_bound for each in loads),
        time_estimate=time,
        time_by_phase=by_phase,
        peak_flops={form: rates.peak(form) for form in forms},
        bandwidth=rates.bandwidth,
        compute_utilisation=products / time if time else 0.0,
        memory_utilisation=moved / rates.bandwidth / time if time else 0.0,
        operators=tuple(loads),
        layers=_layers(trace, loads, places),
        by_kind=_kinds(loads),
        assumptions=(*trace.provenance.assumptions, *_unverified(rates, forms), *rates.assumed),
        warnings=tuple(warnings),
    )


def _unverified(rates: Rates, forms: Iterable[str]) -> list[str]:
    figures = [each for each in ("bandwidth_gbs", *forms) if rates.device.is_unverified(each)]
    return [f"unverified figures of {rates.device.name}: {', '.join(figures)}"] if figures else []


def _kinds(loads: Sequence[OperatorLoad]) -> dict[str, GroupLoad]:
    members: dict[str, list[OperatorLoad]] = {}
    for load in loads:
        members.setdefault(load.operator, []).append(load)
    groups = [group(name, each) for name, each in members.items()]
    return {each.name: each for each in sorted(groups, key=lambda each: -each.time_estimate)}


def _layers(trace: Trace, loads: Sequence[OperatorLoad], places: Sequence[int]) -> tuple[GroupLoad, ...]:
    """Each layer with all that it calls, in the order of the first calls."""
    around = paths_around(trace)
    members: dict[str, list[OperatorLoad]] = {call.path: [] for call in trace.modules}
    for load, place in zip(loads, places, strict=True):
        for path in around[place]:
            members[path].append(load)
    return tuple(group(path, each) for path, each in members.items())


def group(name: str, loads: Sequence[OperatorLoad]) -> GroupLoad:
    """Several calls as one."""
    heaviest = max(loads, key=lambda each: each.time_estimate, default=None)
    lost: dict[Limiter, float] = {}
    for each in loads:
        lost[each.limiter] = lost.get(each.limiter, 0.0) + each.time_estimate
    flops, read, written = (sum(getattr(each, figure) for each in loads) for figure in ("flops", "bytes_read", "bytes_written"))
    return GroupLoad(
        name=name,
        calls=len(loads),
        macs=sum(each.macs for each in loads),
        flops=flops,
        elements_read=sum(each.elements_read for each in loads),
        elements_written=sum(each.elements_written for each in loads),
        bytes_read=read,
        bytes_written=written,
        intensity=_intensity(flops, read + written),
        ridge=heaviest.ridge if heaviest else 0.0,
        precision=heaviest.precision if heaviest else None,
        limiter=max(lost, key=lambda limiter: lost[limiter]) if lost else "memory",
        time_bound=math.fsum(each.time_bound for each in loads),
        time_estimate=math.fsum(each.time_estimate for each in loads),
    )
