"""The layers to look at if a metric exceeds its limit."""

from __future__ import annotations

from collections.abc import Collection

from torchscan import units
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.metrics import Metric, activation_peak
from torchscan.report.columns import full_name_of
from torchscan.report.info_data import Layer

#: number of layers that are named for each limit
MAX_LAYERS = 5
#: layers to look at, each with what it adds
Layers = tuple[tuple[str, str], ...]
#: of the time of a pass, the share of launches from which on no layer is to blame
_LAUNCH_BOUND = 0.5


def launch_overhead(roofline: Roofline, *, is_per_sample: bool = False) -> Layers:
    """Return what to look at in a pass that mostly waits for the host.

    It is () if operators are what takes the time. A larger batch launches no fewer kernels, so it
    helps only limits per sample.
    """
    if roofline.time_share("launch") < _LAUNCH_BOUND:
        return ()
    launched = sum(each.limiter == "launch" for each in roofline.operators)
    time = units.duration(roofline.time_by_limiter["launch"])
    ways: list[str] = []
    if is_per_sample:
        ways.append("a larger batch")
    if not roofline.compiled:
        ways.append(
            "torch.compile, which launches fewer kernels (analyze_roofline(compiled=True) "
            "estimates it)"
        )
    overhead = (f"launch overhead of {launched:,} operators", time)
    if not ways:
        return (overhead,)
    return (overhead, (f"try {', or '.join(ways)}", ""))


def slowest_layers(roofline: Roofline) -> Layers:
    """Return the layers without others inside that take the longest."""
    parents = {each.name.rpartition(".")[0] for each in roofline.layers if each.name}
    leaves = [each for each in roofline.layers if each.name not in parents and each.time_estimate]
    longest = sorted(leaves, key=lambda each: -each.time_estimate)[:MAX_LAYERS]
    return tuple((each.name or "the model", units.duration(each.time_estimate)) for each in longest)


def largest_layers(metric: Metric, layers: Collection[Layer], samples: int = 1) -> Layers:
    """Return the layers that have the most of a metric of the info dict, divided by ``samples``."""
    named = []
    for layer in sorted(layers, key=metric.of_info, reverse=True)[:MAX_LAYERS]:
        value = metric.of_info(layer)
        if value:
            name = f"{full_name_of(layer)} ({layer['type']})"
            named.append((name, metric.text(value / samples)))
    return tuple(named)


def peak_layer(name: str, estimate: MemoryEstimate) -> Layers:
    """Return the layer in which memory is at its peak, or activations are."""
    if name == "peak_memory":
        return ((f"peak in {estimate.peak_layer or 'the model'}", estimate.peak_operator),)
    moment = activation_peak(estimate)
    if moment is None:
        return ()
    return ((f"peak in {moment.layer or 'the model'}", moment.operator),)
