"""From a record to its roofline: calls one after the other on the device, then what they are together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from typing import Any, NamedTuple

from torchscan.analyses.generation.serving_costs import (
    AS_IT_IS,
    Repriced,
    Served,
    Serving,
    joined_projections,
    prepared_calls,
)
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.roofline.async_products import overlap_with_products
from torchscan.analyses.roofline.bound import min_bytes, needed_calls
from torchscan.analyses.roofline.cache import bytes_in_cache
from torchscan.analyses.roofline.call_times import NO_TIME, CallTimes, DeviceCall, Near, Seconds
from torchscan.analyses.roofline.channels_last import makes_channels_last
from torchscan.analyses.roofline.common_subexpressions import MergedCalls, merge_equal_calls
from torchscan.analyses.roofline.compiled_regions import compiled_regions
from torchscan.analyses.roofline.constants import (
    HOST_BACKWARD,
    HOST_CALL,
    HOST_COMPILED,
    HOST_FUNCTION,
    HOST_VIEW,
    LAUNCH,
    LAUNCH_COMPILED,
)
from torchscan.analyses.roofline.error_margin import Kind, Mode, Passed, error_margin_of
from torchscan.analyses.roofline.expert_kernels import (
    FUSED_EXPERTS_ARCHS,
    ExpertKernels,
    expert_kernels,
)
from torchscan.analyses.roofline.fusion import (
    Needed,
    fused_kernels,
    handed_over,
    traffic_when_fused,
)
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.analyses.roofline.links import (
    Fabric,
    exposed,
    hidden_share,
    is_in_background,
    link_times,
)
from torchscan.analyses.roofline.rates import Numbers, Rates
from torchscan.analyses.roofline.roofline_result import GroupLoad, Limiter, OperatorLoad, Roofline
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.analyses.totals import enclosing_paths
from torchscan.garbage import collected_later
from torchscan.notes import Note
from torchscan.ops import OpCost
from torchscan.recording.folding.layer_repeats import Repeats
from torchscan.recording.folding.unfolded import LeftOut
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace

#: bytes that a pass must read for layers not to find anything in the cache, in sizes of it
_CACHES_READ = 2
_LOAD_FIELDS = [each.name for each in fields(OperatorLoad)]
_GROUP_FIELDS = [each.name for each in fields(GroupLoad)]
#: for a bound that does not hold for any routing
_ROUTING_OF_THIS_PASS = Note.of("routing-of-this-pass")


@collected_later()
def roofline_of(
    trace: Trace,
    rates: Rates,
    *,
    precision: str | None = None,
    numbers: Numbers | None = None,
    compiled: bool = False,
    warnings: Sequence[Note] = (),
    serving: Serving | None = None,
    fabric: Fabric | None = None,
    graphed: bool = False,
    repeats: Repeats | None = None,
) -> Roofline:
    """The roofline of a record on a device; ``compiled`` as ``torch.compile`` would run it, ``serving`` as it is served.

    ``fabric``: what joins the devices among which the pass is spread; ``graphed``: kernels are in a CUDA graph.
    ``repeats``: the layers that the record lacks, which are timed as the equal ones that it has.
    """
    routed = RoutedCalls(trace)
    served = Repriced(trace, serving or AS_IT_IS).served(call_costs(trace, routed=routed))
    costs = served.costs
    times = {} if fabric is None else link_times(trace, fabric)
    if repeats is not None and not _stays_equal(trace, rates, costs, times):
        return roofline_of(
            repeats.unfold(),
            rates,
            precision=precision,
            numbers=numbers,
            compiled=compiled,
            warnings=warnings,
            serving=serving,
            fabric=fabric,
            graphed=graphed,
        )
    trace, left_out = _without_equal_calls(trace, served, serving, compiled=compiled)
    own = _EngineKernels(left_out=left_out)
    if serving is not None:
        own = _engine_kernels(trace, served, routed, serving, rates, compiled=compiled)
        served = own.experts.served(served, serving.compute)
        costs = served.costs
    experts, joined = own.experts, own.joined
    kernels = _kernels(trace, served, own, compiled=compiled)
    needed = Needed(trace, kernels) if compiled else None
    moved = traffic_when_fused(trace, costs, kernels, needed) if needed else costs
    handed = handed_over(trace, costs, kernels, needed) if needed else [0] * len(costs)
    cached, cached_at_least = _in_cache(trace, rates, costs, served.appends)
    turned = compiled and makes_channels_last(trace, costs)
    device = CallTimes(
        rates,
        numbers or Numbers(),
        compiled=compiled,
        turned=turned,
        serving=serving,
        sustained=any(op.phase != "forward" for op in trace.ops),
    )
    runs = [
        device.run(
            index,
            op,
            moved[index],
            Near(
                cached[index],
                cached_at_least[index],
                handed[index],
                *served.packed[index],
                is_joined=index in joined,
            ),
        )
        for index, op in enumerate(trace.ops)
        if kernels[index] is not None and index not in times
    ]
    shares = _shares(runs, kernels)
    timings = _timed(
        trace,
        rates,
        runs,
        shares,
        kernels,
        times,
        repeats,
        compiled=compiled,
        has_host=not (rates.is_host or graphed),
        experts=experts,
    )
    bounds = {index: each.bound for index, each in shares.items()}
    if compiled:
        bounds = _with_bound_of_whole(trace, rates, costs, runs, bounds, repeats)
    seconds = {each.at: each.seconds for each in timings}
    visible = overlap_with_products(trace, fabric, times, seconds)
    waits = exposed(trace, visible, _computing(trace, timings))
    timings = [each._replace(seconds=waits.get(each.at, each.seconds)) for each in timings]
    loads = list(map(_Loads(trace, rates, runs, bounds).load, timings))
    warned = [*warnings]
    unknown = operators_without_formula(trace, costs)
    if unknown:
        warned.append(Note.of("costs-unknown", operators=list(unknown)))
    warned += _kernels_not_modeled(trace)
    result = _result(trace, rates, runs, (timings, loads), precision, compiled, warned, repeats)
    assumed = [_ROUTING_OF_THIS_PASS] if routed.is_split_by_counts else []
    if experts.head_of:
        assumed.append(Note.of("experts-fused"))
    if fabric is not None and times:
        assumed.append(fabric.assumption)
        hidden = hidden_share(times, waits)
        if hidden:
            assumed.append(Note.of("collectives-hidden", share=hidden))
    return replace(
        result,
        assumptions=(*result.assumptions, *assumed),
        without_formula=(*unknown, *trace.provenance.unrecorded_modules),
    )


def _without_equal_calls(
    trace: Trace, served: Served, serving: Serving | None, *, compiled: bool
) -> MergedCalls:
    """Return the trace as a compiler runs it; inference engines have kernels of their own."""
    if compiled and serving is None:
        return merge_equal_calls(trace, served.costs)
    return MergedCalls(trace, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineKernels:
    """The calls that an inference engine runs in fewer kernels than a compiler."""

    experts: ExpertKernels = field(default_factory=ExpertKernels)
    #: the first of the products that an engine computes as one, by each other
    joined: Mapping[int, int] = field(default_factory=dict)
    #: calls that do not run: on weights alone, or equal to an earlier call
    left_out: Collection[int] = ()


def _engine_kernels(
    trace: Trace,
    served: Served,
    routed: RoutedCalls,
    serving: Serving,
    rates: Rates,
    *,
    compiled: bool,
) -> _EngineKernels:
    joined = joined_projections(trace) if serving.joins_projections else {}
    if not (compiled and serving.joins_experts):
        return _EngineKernels(joined=joined)
    is_fused = serving.fuses_experts and rates.device.arch.startswith(FUSED_EXPERTS_ARCHS)
    return _EngineKernels(
        experts=expert_kernels(trace, served.costs, routed, is_fused=is_fused),
        joined=joined,
        left_out=prepared_calls(trace),
    )


def _kernels(
    trace: Trace, served: Served, own: _EngineKernels, *, compiled: bool
) -> list[int | None]:
    """Return the number of each call's kernel, or None for views.

    Args:
        trace: the trace.
        served: the costs of its calls.
        own: the calls that an engine runs in its own way.
        compiled: True if a compiler fuses calls.
    """
    kernels = [index if is_launched(op.signature) else None for index, op in enumerate(trace.ops)]
    if compiled:
        apart = {*own.experts.head_of, *own.left_out}
        regions = compiled_regions(trace)
        fused = fused_kernels(trace, served.costs, served.appends, apart, regions)
        kernels = own.experts.joined(fused)
    for index in own.left_out:
        kernels[index] = None
    return [kernels[own.joined.get(index, index)] for index in range(len(kernels))]


def _stays_equal(
    trace: Trace, rates: Rates, costs: Sequence[OpCost], collectives: Collection[int]
) -> bool:
    """Return whether layers take the same time in a pass of fewer layers.

    They may not if these fit into the cache, or if collectives of one layer run behind another.
    """
    if any(is_in_background(trace, index) for index in collectives):
        return False
    if not rates.cache:
        return True
    num_read = sum(cost.min_bytes_read for cost in costs)
    return num_read > _CACHES_READ * rates.cache


class _Timing(NamedTuple):
    """One call of the pass."""

    #: index in the trace, and the layer that repeats that call, if one does
    at: int
    layer: LeftOut | None
    seconds: float
    limiter: Limiter


def _counts(trace: Trace, repeats: Repeats | None) -> Sequence[int]:
    """Return how often each call takes place."""
    return [1] * len(trace.ops) if repeats is None else repeats.counts


def _waiting(trace: Trace, rates: Rates, index: int, seconds: float) -> OperatorLoad:
    """Return the load of a collective that the computation waits for.

    Its lower bound is zero, as if links were infinitely fast.
    """
    op = trace.ops[index]
    return OperatorLoad(
        operator=op.signature.operator,
        layer=trace.path_of(op),
        call=trace.modules[op.module_call].call,
        phase=op.phase,
        precision="fp32",
        macs=0,
        flops=0,
        elements_read=0,
        elements_written=0,
        bytes_read=0,
        bytes_written=0,
        intensity=None,
        ridge=rates.ridge("fp32", of_products=False),
        limiter="links",
        time_bound=0.0,
        time_estimate=seconds,
    )


def _with_bound_of_whole(
    trace: Trace,
    rates: Rates,
    costs: Sequence[OpCost],
    runs: Sequence[DeviceCall],
    bounds: Mapping[int, float],
    repeats: Repeats | None,
) -> dict[int, float]:
    """Scale the bounds of calls to that of the compiled pass, which has a bound only as a whole.

    Calls share it in proportion to the time that they would take alone.
    """
    needed, counts = needed_calls(trace), _counts(trace, repeats)
    products = math.fsum(counts[run.index] * run.work.products for run in runs if needed[run.index])
    count_by_storage = {} if repeats is None else repeats.count_by_storage
    total, cache = min_bytes(trace, costs, needed, count_by_storage), rates.device.l2_bytes or 0
    bound = max(
        products,
        max(0, total - cache) / rates.bandwidth,
        total / rates.cache_bound if rates.cache else 0.0,
    )
    apart = math.fsum(counts[index] * each for index, each in bounds.items())
    share = min(1.0, _ratio(bound, apart))
    return {index: share * each for index, each in bounds.items()}


def _in_cache(
    trace: Trace, rates: Rates, costs: Sequence[OpCost], appends: Collection[int]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the bytes in the cache for the expected reads, and for the smallest possible ones."""
    expected, fewest = (
        [cost.bytes_read for cost in costs],
        [cost.min_bytes_read for cost in costs],
    )
    cached = bytes_in_cache(trace, rates.cache, expected, appends)
    return cached, cached if fewest == expected else bytes_in_cache(
        trace, rates.cache, fewest, appends
    )


class _Apart(NamedTuple):
    """Seconds of a call: its share of the time of its kernel."""

    bound: float
    busy: float


def _shares(runs: Sequence[DeviceCall], kernels: Sequence[int | None]) -> dict[int, _Apart]:
    """Return the seconds of each call by its index; calls in one kernel run together."""
    together: dict[int | None, Seconds] = {}
    apart: dict[int | None, _Apart] = {}
    for run in runs:
        kernel = kernels[run.index]
        together[kernel] = together.get(kernel, NO_TIME) + run.work
        bound, busy = apart.get(kernel, _Apart(0.0, 0.0))
        apart[kernel] = _Apart(bound + run.work.bound, busy + run.work.busy)
    found = {}
    for run in runs:
        work, alone = together[kernels[run.index]], apart[kernels[run.index]]
        found[run.index] = _Apart(
            run.work.bound * _ratio(work.bound, alone.bound),
            run.work.busy * _ratio(work.busy, alone.busy),
        )
    return found


def _timed(
    trace: Trace,
    rates: Rates,
    runs: Sequence[DeviceCall],
    shares: Mapping[int, _Apart],
    kernels: Sequence[int | None],
    collectives: Collection[int],
    repeats: Repeats | None,
    *,
    compiled: bool,
    has_host: bool,
    experts: ExpertKernels,
) -> list[_Timing]:
    """Return the calls one after the other on the device; collectives get their time later."""
    device = _device_seconds(rates, runs, shares, kernels, experts, compiled=compiled)
    host = [0.0] * len(trace.ops)
    if has_host:
        host = [
            _host_time(op, compiled=compiled, is_first=kernels[index] == index)
            for index, op in enumerate(trace.ops)
        ]
    limiters = {run.index: run.work.limiter for run in runs}
    order: Iterable[tuple[int, LeftOut | None]] = zip(range(len(trace.ops)), repeat(None))
    if repeats is not None:
        order = repeats.order()
    queue, timings = _Queue(), []
    for index, layer in order:
        if index in device:
            seconds = queue.take(host[index], device[index])
            is_waiting = seconds > 2 * shares[index].busy
            limiter = "launch" if is_waiting else limiters[index]
            timings.append(_Timing(index, layer, seconds, limiter))
            continue
        queue.wait(host[index])
        if index in collectives:
            timings.append(_Timing(index, layer, 0.0, "links"))
    return timings


def _device_seconds(
    rates: Rates,
    runs: Sequence[DeviceCall],
    shares: Mapping[int, _Apart],
    kernels: Sequence[int | None],
    experts: ExpertKernels,
    *,
    compiled: bool,
) -> dict[int, float]:
    """Return the seconds of each call on the device, the launch of its kernel included.

    Of calls beside others, the work counts, and not the time of launches and of chains.
    """
    launch = HOST_FUNCTION if rates.is_host else LAUNCH
    if compiled and not rates.is_host:
        launch = LAUNCH_COMPILED
    device = {run.index: shares[run.index].busy for run in runs}
    for run in runs:
        if run.index in experts.beside:
            device[run.index] = max(run.work.arithmetic, run.work.traffic)
        elif run.index in experts.seconds:
            device[run.index] += launch + experts.seconds[run.index]
        elif kernels[run.index] == run.index:
            device[run.index] += launch * run.launches
    return device


class _Loads:
    """The loads of calls; those of layers that are repeated are copies."""

    def __init__(
        self,
        trace: Trace,
        rates: Rates,
        runs: Sequence[DeviceCall],
        bounds: Mapping[int, float],
    ) -> None:
        self._trace = trace
        self._rates = rates
        self._runs = {run.index: run for run in runs}
        self._bounds = bounds
        #: loads of calls in the trace, with their values
        self._known: dict[tuple[int, float, Limiter], tuple[OperatorLoad, dict[str, Any]]] = {}

    def load(self, timing: _Timing) -> OperatorLoad:
        key = timing.at, timing.seconds, timing.limiter
        if key not in self._known:
            new = self._new(timing)
            self._known[key] = new, {name: getattr(new, name) for name in _LOAD_FIELDS}
        load, values = self._known[key]
        if timing.layer is None:
            return load
        layer = timing.layer.renamed(load.layer) or load.layer
        return OperatorLoad(**{**values, "layer": layer})

    def _new(self, timing: _Timing) -> OperatorLoad:
        index, seconds = timing.at, timing.seconds
        if index not in self._runs:
            return _waiting(self._trace, self._rates, index, seconds)
        op, run = self._trace.ops[index], self._runs[index]
        bound = self._bounds[index]
        return _load(self._trace, op, run, self._rates, bound, seconds, timing.limiter)


def _ratio(whole: float, parts: float) -> float:
    return whole / parts if parts else 1.0


def _host_time(op: OpCall, *, compiled: bool, is_first: bool) -> float:
    """Seconds until the host has launched a call, after the one before."""
    if compiled:
        return HOST_COMPILED if is_first else 0.0
    if not is_launched(op.signature):
        return HOST_VIEW
    return HOST_CALL if op.phase == "forward" else HOST_BACKWARD


class _Queue:
    """Kernels run one after another, each as soon as the host has launched it."""

    def __init__(self) -> None:
        self._launched = self._done = 0.0

    def wait(self, seconds: float) -> None:
        """The host is busy."""
        self._launched += seconds

    def take(self, host: float, device: float) -> float:
        """Return the time that this call adds to the total."""
        self._launched += host
        waited = max(0.0, self._launched - self._done)
        self._done = max(self._done, self._launched) + device
        return waited + device


def _load(
    trace: Trace,
    op: OpCall,
    run: DeviceCall,
    rates: Rates,
    bound: float,
    time: float,
    limiter: Limiter,
) -> OperatorLoad:
    cost = run.cost
    return OperatorLoad(
        operator=op.signature.operator,
        layer=trace.path_of(op),
        call=trace.modules[op.module_call].call,
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
        limiter=limiter,
        time_bound=bound,
        time_estimate=time,
    )


def _intensity(flops: int, moved: int) -> float | None:
    return flops / moved if moved else None


def _result(
    trace: Trace,
    rates: Rates,
    runs: Sequence[DeviceCall],
    timed: tuple[Sequence[_Timing], Sequence[OperatorLoad]],
    precision: str | None,
    compiled: bool,
    warnings: Sequence[Note],
    repeats: Repeats | None,
) -> Roofline:
    timings, loads = timed
    equal = _EqualLoads(loads, timings)
    counts = _counts(trace, repeats)
    time = math.fsum(each.time_estimate for each in loads)
    forms = list(dict.fromkeys(run.form for run in runs if run.cost.macs))
    return Roofline(
        device=rates.device.name,
        precision=precision,
        batch_size=trace.provenance.batch_size,
        compiled=compiled,
        time_bound=math.fsum(each.time_bound for each in loads),
        time_estimate=time,
        error_margin=error_margin_of(rates.device, _passed(loads, compiled=compiled)),
        time_by_phase=_by_phase(loads),
        peak_flops={form: rates.peak(form) for form in forms},
        bandwidth=rates.bandwidth,
        compute_utilization=_utilization(
            [counts[run.index] * run.work.min_times[0] for run in runs if run.cost.macs], time
        ),
        memory_utilization=_utilization(
            [counts[run.index] * run.work.min_times[1] for run in runs], time
        ),
        operators=tuple(loads),
        layers=_layers(trace, equal, timings, repeats),
        by_kind=_kinds(equal),
        assumptions=(
            *trace.provenance.assumptions,
            *_unverified_values(rates, forms),
            *rates.assumed,
        ),
        warnings=tuple(warnings),
    )


def _utilization(seconds: Sequence[float], time: float) -> float:
    return math.fsum(seconds) / time if time else 0.0


def _computing(trace: Trace, timings: Sequence[_Timing]) -> dict[Phase, float]:
    """Return the seconds of each phase without its collectives."""
    found: dict[Phase, float] = {}
    for each in timings:
        if each.limiter != "links":
            phase = trace.ops[each.at].phase
            found[phase] = found.get(phase, 0.0) + each.seconds
    return found


def _by_phase(loads: Sequence[OperatorLoad]) -> dict[Phase, float]:
    found: dict[Phase, float] = {}
    for each in loads:
        found[each.phase] = found.get(each.phase, 0.0) + each.time_estimate
    return found


def _passed(loads: Sequence[OperatorLoad], *, compiled: bool) -> Passed:
    has_backward = any(each.phase != "forward" for each in loads)
    mode: Mode = "training" if has_backward else "eager"
    if compiled:
        mode = "compiled training" if has_backward else "compiled"
    products = [each for each in loads if each.macs]
    waiting = [each for each in loads if each.limiter == "launch"]
    return Passed(
        mode,
        kind_of(loads),
        in_half=_share_of_formats(products, ("fp16", "bf16")),
        launched=_share(waiting, loads),
        in_eight=_share_of_formats(products, ("fp8",)),
        has_attention=any("attention" in each.operator for each in products),
    )


def _share_of_formats(products: Sequence[OperatorLoad], formats: Collection[str]) -> float:
    """Return the share of the time of products that is spent in these formats."""
    return _share([each for each in products if each.precision in formats], products)


def _share(some: Sequence[OperatorLoad], all_: Sequence[OperatorLoad]) -> float:
    """Return the time of some loads as a share of that of all."""
    whole = math.fsum(each.time_estimate for each in all_)
    return math.fsum(each.time_estimate for each in some) / whole if whole else 0.0


def kind_of(loads: Sequence[OperatorLoad]) -> Kind | None:
    """Return the kind of product that takes most of their time, or None without convolutions."""
    products = [each for each in loads if each.macs]
    convolutions = [each for each in products if "convolution" in each.operator]
    return (
        None
        if not convolutions
        else "convolutions"
        if _share(convolutions, products) > 0.5
        else "matrices"
    )


#: operators whose kernels go over their operands an unknown number of times
_DECOMPOSITIONS = (
    "linalg_",
    "_linalg_",
    "cholesky",
    "qr",
    "svd",
    "geqrf",
    "triangular_solve",
    "lu_",
    "_sparse",
    "sparse_",
)


def _kernels_not_modeled(trace: Trace) -> list[Note]:
    names = dict.fromkeys(op.signature.operator.removeprefix("aten.") for op in trace.ops)
    found = [name for name in names if name.startswith(_DECOMPOSITIONS) and "norm" not in name]
    return [Note.of("kernels-not-modeled", operators=found)] if found else []


def _unverified_values(rates: Rates, forms: Iterable[str]) -> list[Note]:
    used = [
        "bandwidth_gbs",
        *forms,
        *(["l2_mb"] if rates.cache else []),
        *(["power_w"] if rates.power_factor < 1 else []),
    ]
    values = [
        each for each in (*used, "multiprocessors", "boost_mhz") if rates.device.is_unverified(each)
    ]
    if not values:
        return []
    return [Note.of("unverified-values", device=rates.device.name, values=values)]


def _kinds(equal: _EqualLoads) -> dict[str, GroupLoad]:
    members: dict[str, list[int]] = {}
    for number in equal.numbers:
        members.setdefault(equal.loads[number].operator, []).append(number)
    groups = [equal.group(name, each) for name, each in members.items()]
    return {
        each.name: each for each in sorted(groups, key=lambda each: -rounded(each.time_estimate))
    }


class _EqualLoads:
    """The loads of a pass, where equal calls of layers that are repeated have the same number."""

    def __init__(self, loads: Sequence[OperatorLoad], timings: Sequence[_Timing]) -> None:
        known: dict[tuple[int, float, Limiter], int] = {}
        #: the number of each call in order
        self.numbers: list[int] = []
        #: the load by number
        self.loads: list[OperatorLoad] = []
        self._groups: dict[tuple[int, ...], dict[str, Any]] = {}
        for load, (at, _, seconds, limiter) in zip(loads, timings, strict=True):
            number = known.setdefault((at, seconds, limiter), len(self.loads))
            if number == len(self.loads):
                self.loads.append(load)
            self.numbers.append(number)

    def group(self, name: str, numbers: Sequence[int]) -> GroupLoad:
        """Return several calls as one; equal groups are added up once."""
        key = tuple(numbers)
        if key not in self._groups:
            counts = Counter(numbers)
            added = group(name, [self.loads[each] for each in counts], list(counts.values()))
            self._groups[key] = {each: getattr(added, each) for each in _GROUP_FIELDS}
        return GroupLoad(**{**self._groups[key], "name": name})


def rounded(time: float) -> float:
    """To nine digits: equal work has equal times, which sorting leaves in the order of the model."""
    return float(f"{time:.8e}")


def _layers(
    trace: Trace, equal: _EqualLoads, timings: Sequence[_Timing], repeats: Repeats | None
) -> tuple[GroupLoad, ...]:
    """Each layer with everything that it calls, in order of first call; equal ones are added up once."""
    around = enclosing_paths(trace)
    members: dict[str, list[int]] = {path: [] for path in _paths(trace, repeats)}
    known: dict[tuple[int, int | None], list[list[int]]] = {}
    for number, (at, layer, _, _) in zip(equal.numbers, timings, strict=True):
        place = trace.ops[at].module_call
        key = place, None if layer is None else layer.call.index
        if key not in known:
            renamed = [(layer and layer.renamed(path)) or path for path in around[place]]
            known[key] = [members[path] for path in renamed]
        for each in known[key]:
            each.append(number)
    return tuple(equal.group(path, inside) for path, inside in members.items())


def _paths(trace: Trace, repeats: Repeats | None) -> Iterable[str]:
    """Return the paths of all modules that are called, in order of first call."""
    left_out = () if repeats is None else repeats.layers
    layers = {each.call.index: each for each in left_out}
    paths: dict[str, None] = {}
    for call in trace.modules:
        layer = layers.get(call.index)
        inside = [call] if layer is None else layer.calls_in(trace)
        for each in inside:
            paths[(layer and layer.renamed(each.path)) or each.path] = None
    return paths


def group(
    name: str, loads: Sequence[OperatorLoad], counts: Sequence[int] | None = None
) -> GroupLoad:
    """Several calls as one; ``counts`` is how often each takes place."""
    counted = list(zip(loads, counts or [1] * len(loads), strict=True))
    heaviest = max(loads, key=lambda each: each.time_estimate, default=None)
    lost: dict[Limiter, float] = {}
    for each, count in counted:
        lost[each.limiter] = lost.get(each.limiter, 0.0) + count * each.time_estimate

    def total(figure: str) -> int:
        return sum(count * getattr(each, figure) for each, count in counted)

    flops, read, written = map(total, ("flops", "bytes_read", "bytes_written"))
    return GroupLoad(
        name=name,
        calls=sum(count for _, count in counted),
        macs=total("macs"),
        flops=flops,
        elements_read=total("elements_read"),
        elements_written=total("elements_written"),
        bytes_read=read,
        bytes_written=written,
        intensity=_intensity(flops, read + written),
        ridge=heaviest.ridge if heaviest else None,
        precision=heaviest.precision if heaviest else None,
        limiter=max(lost, key=lambda limiter: lost[limiter]) if lost else "memory",
        time_bound=math.fsum(count * each.time_bound for each, count in counted),
        time_estimate=math.fsum(count * each.time_estimate for each, count in counted),
    )
