"""Seconds of each call of a pass: calls run one after another, once the host has launched them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import NamedTuple

from torchscan.analyses.roofline.bound import min_bytes, needed_calls
from torchscan.analyses.roofline.call_seconds import Seconds
from torchscan.analyses.roofline.constants import (
    HOST_BACKWARD,
    HOST_CALL,
    HOST_COMPILED,
    HOST_FUNCTION,
    HOST_VIEW,
    LAUNCH,
    LAUNCH_COMPILED,
)
from torchscan.analyses.roofline.executed_pass import ExecutedPass
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.analyses.roofline.roofline_result import Limiter
from torchscan.recording.folding.left_out_layers import LeftOut
from torchscan.trace.events import OpCall


class KernelShare(NamedTuple):
    """Seconds of a call: its share of the time of its kernel."""

    bound: float
    busy: float


class Timing(NamedTuple):
    """One call of the pass."""

    #: index in the trace
    call: int
    #: layer that repeats that call, or None if it is in the trace
    layer: LeftOut | None
    seconds: float
    limiter: Limiter


def share_kernels(execution: ExecutedPass) -> dict[int, KernelShare]:
    """Return the seconds of each call by its index; calls in one kernel run together."""
    kernels = execution.kernels
    together: dict[int | None, Seconds] = {}
    apart: dict[int | None, KernelShare] = {}
    for run in execution.runs:
        kernel = kernels[run.index]
        others = together.get(kernel)
        together[kernel] = run.work if others is None else others + run.work
        bound, busy = apart.get(kernel, KernelShare(0.0, 0.0))
        apart[kernel] = KernelShare(bound + run.work.bound, busy + run.work.busy)

    shares = {}
    for run in execution.runs:
        kernel = kernels[run.index]
        work, alone = together[kernel], apart[kernel]
        shares[run.index] = KernelShare(
            run.work.bound * _ratio(work.bound, alone.bound),
            run.work.busy * _ratio(work.busy, alone.busy),
        )
    return shares


def _ratio(whole: float, parts: float) -> float:
    return whole / parts if parts else 1.0


def scale_bounds(execution: ExecutedPass, bounds: Mapping[int, float]) -> dict[int, float]:
    """Scale the bounds of calls to that of the compiled pass, which has a bound only as a whole.

    Calls share it in proportion to the time that they would take alone.
    """
    rates, counts, repeats = execution.rates, execution.counts, execution.repeats
    needed = needed_calls(execution.trace)
    products = math.fsum(
        counts[run.index] * run.work.products for run in execution.runs if needed[run.index]
    )
    count_by_storage = {} if repeats is None else repeats.count_by_storage
    total = min_bytes(execution.trace, execution.costs, needed, count_by_storage)
    from_memory = max(0, total - (rates.device.l2_bytes or 0))
    bound = max(products, from_memory / rates.bandwidth)
    if rates.cache:
        bound = max(bound, total / rates.cache_bound)
    apart = math.fsum(counts[index] * seconds for index, seconds in bounds.items())
    share = min(1.0, _ratio(bound, apart))
    return {index: share * seconds for index, seconds in bounds.items()}


def time_calls(
    execution: ExecutedPass, shares: Mapping[int, KernelShare], *, has_host: bool
) -> list[Timing]:
    """Return the calls one after the other on the device; collectives get their time later."""
    trace, repeats = execution.trace, execution.repeats
    device = _device_seconds(execution, shares)
    host = [0.0] * len(trace.ops)
    if has_host:
        host = [_host_seconds(execution, index, op) for index, op in enumerate(trace.ops)]
    limiters = {run.index: run.work.limiter for run in execution.runs}
    order: Iterable[tuple[int, LeftOut | None]] = zip(range(len(trace.ops)), repeat(None))
    if repeats is not None:
        order = repeats.order()

    queue = _Queue()
    timings: list[Timing] = []
    for index, layer in order:
        if index in device:
            seconds = queue.take(host[index], device[index])
            is_waiting = seconds > 2 * shares[index].busy
            limiter = "launch" if is_waiting else limiters[index]
            timings.append(Timing(index, layer, seconds, limiter))
            continue
        queue.wait(host[index])
        if index in execution.collectives:
            timings.append(Timing(index, layer, 0.0, "links"))
    return timings


def _device_seconds(execution: ExecutedPass, shares: Mapping[int, KernelShare]) -> dict[int, float]:
    """Return the seconds of each call on the device, the launch of its kernel included.

    Of calls beside others, the work counts, and not the time of launches and of chains.
    """
    launch = LAUNCH_COMPILED if execution.compiled else LAUNCH
    if execution.rates.is_host:
        launch = HOST_FUNCTION
    experts = execution.experts
    device: dict[int, float] = {}
    for run in execution.runs:
        index = run.index
        device[index] = shares[index].busy
        if index in experts.beside:
            device[index] = max(run.work.arithmetic, run.work.traffic)
        elif index in experts.seconds:
            device[index] += launch + experts.seconds[index]
        elif execution.kernels[index] == index:
            device[index] += launch * run.launches
    return device


def _host_seconds(execution: ExecutedPass, index: int, op: OpCall) -> float:
    """Return the seconds until the host has launched a call, after the one before."""
    if execution.compiled:
        begins_kernel = execution.kernels[index] == index
        return HOST_COMPILED if begins_kernel else 0.0
    if not is_launched(op.signature):
        return HOST_VIEW
    return HOST_CALL if op.phase == "forward" else HOST_BACKWARD


class _Queue:
    """Kernels run one after another, each as soon as the host has launched it."""

    def __init__(self) -> None:
        self._launched = 0.0
        self._done = 0.0

    def wait(self, seconds: float) -> None:
        """Add seconds in which the host is busy."""
        self._launched += seconds

    def take(self, host: float, device: float) -> float:
        """Return the time that this call adds to the total."""
        self._launched += host
        waited = max(0.0, self._launched - self._done)
        self._done = max(self._done, self._launched) + device
        return waited + device
