"""The roofline of a trace: calls one after the other on a device, and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from torchscan.analyses.generation.serving_costs import Serving
from torchscan.analyses.module_costs import operators_without_formula, unknown_cost_notes
from torchscan.analyses.roofline.async_products import overlap_with_products
from torchscan.analyses.roofline.error_margin import Kind, Mode, Passed, error_margin_of
from torchscan.analyses.roofline.executed_pass import CountedPass, ExecutedPass, execute
from torchscan.analyses.roofline.exposed_collectives import exposed, hidden_share
from torchscan.analyses.roofline.links import Fabric
from torchscan.analyses.roofline.number_formats import Numbers
from torchscan.analyses.roofline.pass_loads import EqualLoads, PassLoads
from torchscan.analyses.roofline.pass_times import (
    Timing,
    scale_bounds,
    share_kernels,
    time_calls,
)
from torchscan.analyses.roofline.rates import Rates
from torchscan.analyses.roofline.roofline_result import OperatorLoad, Roofline
from torchscan.garbage import collected_later
from torchscan.notes import Note
from torchscan.recording.folding.layer_repeats import Repeats
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace

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
    """Return the roofline of a trace on a device.

    Args:
        trace: the trace.
        rates: what the device reaches.
        precision: the name under which the result shows the precision.
        numbers: the number formats of products.
        compiled: True if ``torch.compile`` runs the pass.
        warnings: warnings that the result shows first.
        serving: how an inference engine serves the model.
        fabric: the links between the devices among which the pass is sharded.
        graphed: True if kernels are in a CUDA graph.
        repeats: the layers that the trace lacks, which are timed as the equal ones that it has.
    """
    costs = CountedPass.of(trace, serving, fabric)
    if repeats is not None and not costs.has_equal_layers(rates):
        costs = CountedPass.of(repeats.unfold(), serving, fabric)
        repeats = None
    execution = execute(
        costs, rates, numbers=numbers, compiled=compiled, serving=serving, repeats=repeats
    )
    shares = share_kernels(execution)
    bounds = {index: share.bound for index, share in shares.items()}
    if compiled:
        bounds = scale_bounds(execution, bounds)
    timings = time_calls(execution, shares, has_host=not (rates.is_host or graphed))
    waits = _find_waits(execution, timings, fabric)
    timings = [each._replace(seconds=waits.get(each.call, each.seconds)) for each in timings]

    assumed = _find_assumptions(execution, waits, fabric)
    if costs.routed.is_split_by_counts:
        assumed.insert(0, _ROUTING_OF_THIS_PASS)
    loads = list(map(PassLoads(execution, bounds).load, timings))
    return _add_up(execution, timings, loads, precision, warnings, assumed)


def _find_waits(
    execution: ExecutedPass, timings: Sequence[Timing], fabric: Fabric | None
) -> Mapping[int, float]:
    """Return the exposed seconds of each collective."""
    seconds = {each.call: each.seconds for each in timings}
    visible = overlap_with_products(execution.trace, fabric, execution.collectives, seconds)
    computing = _sum_by_phase(
        (execution.trace.ops[each.call].phase, each.seconds)
        for each in timings
        if each.limiter != "links"
    )
    return exposed(execution.trace, visible, computing)


def _find_assumptions(
    execution: ExecutedPass, waits: Mapping[int, float], fabric: Fabric | None
) -> list[Note]:
    """Return notes on how experts and collectives run."""
    assumed: list[Note] = []
    if execution.experts.head_of:
        assumed.append(Note.of("experts-fused"))
    if fabric is not None and execution.collectives:
        assumed.append(fabric.assumption)
        hidden = hidden_share(execution.collectives, waits)
        if hidden:
            assumed.append(Note.of("collectives-hidden", share=hidden))
    return assumed


def _sum_by_phase(seconds: Iterable[tuple[Phase, float]]) -> dict[Phase, float]:
    sums: dict[Phase, float] = {}
    for phase, each in seconds:
        sums[phase] = sums.get(phase, 0.0) + each
    return sums


def _add_up(
    execution: ExecutedPass,
    timings: Sequence[Timing],
    loads: Sequence[OperatorLoad],
    precision: str | None,
    warnings: Sequence[Note],
    assumed: Sequence[Note],
) -> Roofline:
    trace, rates = execution.trace, execution.rates
    equal = EqualLoads(loads, timings)
    time = math.fsum(each.time_estimate for each in loads)
    compute_utilization, memory_utilization = _find_utilization(execution, time)
    forms = list(dict.fromkeys(run.form for run in execution.runs if run.cost.macs))
    # Peaks come before the assumptions: they note the rates that are assumed.
    peaks: dict[str, float] = {form: rates.peak(form) for form in forms}
    time_bound = math.fsum(each.time_bound for each in loads)
    time_by_phase = _sum_by_phase((each.phase, each.time_estimate) for each in loads)
    passed = _describe_pass(loads, compiled=execution.compiled)
    unknown = operators_without_formula(trace, execution.costs)
    return Roofline(
        device=rates.device.name,
        precision=precision,
        batch_size=trace.provenance.batch_size,
        compiled=execution.compiled,
        time_bound=time_bound,
        time_estimate=time,
        error_margin=error_margin_of(rates.device, passed),
        time_by_phase=time_by_phase,
        peak_flops=peaks,
        bandwidth=rates.bandwidth,
        compute_utilization=compute_utilization,
        memory_utilization=memory_utilization,
        operators=tuple(loads),
        layers=equal.group_by_layer(trace, execution.repeats),
        by_kind=equal.group_by_kind(),
        assumptions=(
            *trace.provenance.assumptions,
            *_unverified_values(rates, forms),
            *rates.assumed,
            *assumed,
        ),
        warnings=(*warnings, *_find_warnings(trace, unknown)),
        without_formula=(*unknown, *trace.provenance.unrecorded_modules),
    )


def _find_utilization(execution: ExecutedPass, time: float) -> tuple[float, float]:
    """Return the shares of the time that products, and traffic, take at the data sheet's rates."""
    if not time:
        return 0.0, 0.0
    counts = execution.counts
    computing: list[float] = []
    moving: list[float] = []
    for run in execution.runs:
        compute, memory, _ = run.work.min_times
        moving.append(counts[run.index] * memory)
        if run.cost.macs:
            computing.append(counts[run.index] * compute)
    return math.fsum(computing) / time, math.fsum(moving) / time


def _describe_pass(loads: Sequence[OperatorLoad], *, compiled: bool) -> Passed:
    """Return the properties of the pass that its error margin depends on."""
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
    if not whole:
        return 0.0
    return math.fsum(each.time_estimate for each in some) / whole


def kind_of(loads: Sequence[OperatorLoad]) -> Kind | None:
    """Return the kind of product that takes most of their time, or None without convolutions."""
    products = [each for each in loads if each.macs]
    convolutions = [each for each in products if "convolution" in each.operator]
    if not convolutions:
        return None
    return "convolutions" if _share(convolutions, products) > 0.5 else "matrices"


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


def _find_warnings(trace: Trace, unknown: Collection[str]) -> list[Note]:
    """Return warnings about operators without a cost formula, and about unknown kernels."""
    warnings = unknown_cost_notes(trace, unknown)
    names = dict.fromkeys(op.signature.operator.removeprefix("aten.") for op in trace.ops)
    unmodeled = [name for name in names if name.startswith(_DECOMPOSITIONS) and "norm" not in name]
    if unmodeled:
        warnings.append(Note.of("kernels-not-modeled", operators=unmodeled))
    return warnings


def _unverified_values(rates: Rates, forms: Iterable[str]) -> list[Note]:
    """Return a note that names the values of the data sheet that no source confirms."""
    used = ["bandwidth_gbs", *forms]
    if rates.cache:
        used.append("l2_mb")
    if rates.power_factor < 1:
        used.append("power_w")
    used += ["multiprocessors", "boost_mhz"]
    values = [each for each in used if rates.device.is_unverified(each)]
    if not values:
        return []
    return [Note.of("unverified-values", device=rates.device.name, values=values)]
