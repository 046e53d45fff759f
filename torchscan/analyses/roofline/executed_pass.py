"""A pass as a device executes it: the kernels of its calls, and the work of each call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchscan.analyses.compiled_regions import compiled_regions
from torchscan.analyses.generation.serving_costs import (
    AS_IT_IS,
    Repriced,
    Served,
    Serving,
    joined_projections,
    prepared_calls,
)
from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.roofline.call_times import CallTimes, DeviceCall
from torchscan.analyses.roofline.channels_last import makes_channels_last
from torchscan.analyses.roofline.common_subexpressions import merge_equal_calls
from torchscan.analyses.roofline.expert_kernels import (
    FUSED_EXPERTS_ARCHS,
    ExpertKernels,
    expert_kernels,
)
from torchscan.analyses.roofline.exposed_collectives import is_in_background
from torchscan.analyses.roofline.fused_traffic import kernel_traffic
from torchscan.analyses.roofline.fusion import fused_kernels
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.analyses.roofline.links import Fabric, link_times
from torchscan.analyses.roofline.near_bytes import find_near_bytes
from torchscan.analyses.roofline.number_formats import Numbers
from torchscan.analyses.roofline.rates import Rates
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.ops import OpCost
from torchscan.recording.folding.layer_repeats import Repeats
from torchscan.trace.trace import Trace

#: bytes that a pass must read for layers not to find anything in the cache, in sizes of it
_CACHES_READ = 2


class CountedPass(NamedTuple):
    """The costs of a pass before a compiler or an engine changes its kernels."""

    trace: Trace
    routed: RoutedCalls
    served: Served
    #: seconds of each collective by the index of its call
    collectives: Mapping[int, float]

    @classmethod
    def of(cls, trace: Trace, serving: Serving | None, fabric: Fabric | None) -> CountedPass:
        """Return the costs of a trace, as it is served and on these links."""
        routed = RoutedCalls(trace)
        served = Repriced(trace, serving or AS_IT_IS).served(call_costs(trace, routed=routed))
        collectives = {} if fabric is None else link_times(trace, fabric)
        return cls(trace, routed, served, collectives)

    def has_equal_layers(self, rates: Rates) -> bool:
        """Return whether layers take the same time in a pass of fewer layers.

        They may not if these fit into the cache, or if collectives of one layer run behind another.
        """
        if any(is_in_background(self.trace, index) for index in self.collectives):
            return False
        if not rates.cache:
            return True
        num_read = sum(cost.min_bytes_read for cost in self.served.costs)
        return num_read > _CACHES_READ * rates.cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedPass:
    """A pass as a device executes it."""

    trace: Trace
    rates: Rates
    compiled: bool
    costs: Sequence[OpCost]
    #: seconds of each collective by the index of its call
    collectives: Mapping[int, float]
    #: number of each call's kernel, or None for views and calls that do not run
    kernels: Sequence[int | None]
    experts: ExpertKernels
    #: calls that run on the device; collectives are not among them
    runs: Sequence[DeviceCall]
    #: layers that the trace lacks, or None if it has all
    repeats: Repeats | None

    @property
    def counts(self) -> Sequence[int]:
        """The number of times that each call takes place."""
        if self.repeats is None:
            return [1] * len(self.trace.ops)
        return self.repeats.counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineKernels:
    """The calls that an inference engine runs in fewer kernels than a compiler."""

    experts: ExpertKernels = field(default_factory=ExpertKernels)
    #: the first of the products that an engine computes as one, by each other
    joined: Mapping[int, int] = field(default_factory=dict)
    #: calls that do not run: on weights alone, or equal to an earlier call
    left_out: Collection[int] = ()


def execute(
    costs: CountedPass,
    rates: Rates,
    *,
    numbers: Numbers | None,
    compiled: bool,
    serving: Serving | None,
    repeats: Repeats | None,
) -> ExecutedPass:
    """Return a pass as a device executes it."""
    trace, served, own = _replace_kernels(costs, rates, serving, compiled=compiled)
    kernels = _number_kernels(trace, served, own, compiled=compiled)
    has_backward = any(op.phase != "forward" for op in trace.ops)
    device = CallTimes(
        rates,
        numbers or Numbers(),
        compiled=compiled,
        turned=compiled and makes_channels_last(trace, served.costs),
        serving=serving,
        sustained=has_backward,
    )
    moved, handed = served.costs, [0] * len(served.costs)
    if compiled:
        moved, handed = kernel_traffic(trace, served.costs, kernels)
    near = find_near_bytes(trace, rates.cache, served, own.joined, handed)
    runs = [
        device.run(index, op, moved[index], near[index])
        for index, op in enumerate(trace.ops)
        if kernels[index] is not None and index not in costs.collectives
    ]
    return ExecutedPass(
        trace=trace,
        rates=rates,
        compiled=compiled,
        costs=served.costs,
        collectives=costs.collectives,
        kernels=kernels,
        experts=own.experts,
        runs=runs,
        repeats=repeats,
    )


def _replace_kernels(
    costs: CountedPass, rates: Rates, serving: Serving | None, *, compiled: bool
) -> tuple[Trace, Served, _EngineKernels]:
    """Return the pass, its costs and the calls that run in fewer kernels.

    A compiler merges equal calls, but inference engines have kernels of their own.
    """
    trace, served = costs.trace, costs.served
    if serving is not None:
        own = _find_engine_kernels(costs, serving, rates, compiled=compiled)
        return trace, own.experts.served(served, serving.compute), own
    if compiled:
        trace, left_out = merge_equal_calls(trace, served.costs)
        return trace, served, _EngineKernels(left_out=left_out)
    return trace, served, _EngineKernels()


def _find_engine_kernels(
    costs: CountedPass, serving: Serving, rates: Rates, *, compiled: bool
) -> _EngineKernels:
    trace, routed, served, _ = costs
    joined = joined_projections(trace) if serving.joins_projections else {}
    if not (compiled and serving.joins_experts):
        return _EngineKernels(joined=joined)
    is_fused = serving.fuses_experts and rates.device.arch.startswith(FUSED_EXPERTS_ARCHS)
    return _EngineKernels(
        experts=expert_kernels(trace, served.costs, routed, is_fused=is_fused),
        joined=joined,
        left_out=prepared_calls(trace),
    )


def _number_kernels(
    trace: Trace, served: Served, own: _EngineKernels, *, compiled: bool
) -> list[int | None]:
    """Return the number of each call's kernel, or None for views and calls that do not run."""
    kernels: list[int | None] = []
    for index, op in enumerate(trace.ops):
        kernels.append(index if is_launched(op.signature) else None)
    if compiled:
        apart = {*own.experts.head_of, *own.left_out}
        regions = compiled_regions(trace)
        fused = fused_kernels(trace, served.costs, served.appends, apart, regions)
        kernels = own.experts.joined(fused)
    for index in own.left_out:
        kernels[index] = None
    return [kernels[own.joined.get(index, index)] for index in range(len(kernels))]
