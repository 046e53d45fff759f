"""Limits on what one rank of a plan holds, sends and takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict

from torchscan import units
from torchscan.analyses.plan_result import Plan
from torchscan.budgets.excess_layers import MAX_LAYERS, Layers, launch_overhead


class PlanLimits(TypedDict, total=False):
    """The most that one rank of a plan may hold, send and wait, as numbers or as text with a unit.

    Memory and time have the limits of a model, ``max_peak_memory`` and ``max_latency``.

    Args:
        max_local_params: parameters that a rank of a plan holds: ``"1.2G"``.
        max_sent: bytes that the rank sends to others, at least.
        max_waiting: the share of its time that the rank waits for links: ``"20%"``, 0.2.
    """

    max_local_params: float | str | None
    max_sent: float | str | None
    max_waiting: float | str | None


def layers_of_plan(name: str, plan: Plan) -> Layers:
    """Return what occupies memory at the peak; for other metrics, the layers that have the most."""
    if name == "peak_memory":
        return _find_largest(plan.memory.by_kind.items(), units.memory)
    if name == "sent":
        sent = [(each.layer, each.sent_bytes) for each in plan.collectives]
        return _find_largest(sent, units.memory)
    if name == "local_params":
        slots = enumerate(plan.largest_rank.trace.parameters)
        params = [each for place, each in slots if each.identity == place and not each.is_buffer]
        return _find_largest(((each.owner, each.local_numel) for each in params), units.count)
    return _find_slowest(name, plan)


def _find_slowest(name: str, plan: Plan) -> Layers:
    """Return the layers that take the longest, or that wait for links the longest."""
    if plan.roofline is None:
        return ()
    loads = [*plan.roofline.operators]
    if name == "latency":
        overhead = launch_overhead(plan.roofline)
        if overhead:
            return overhead
    else:
        loads = [each for each in loads if each.limiter == "links"]
    return _find_largest(((each.layer, each.time_estimate) for each in loads), units.duration)


def _find_largest(amounts: Iterable[tuple[str, float]], text: Callable[[float], str]) -> Layers:
    """Return the largest sums by name."""
    sums: dict[str, float] = {}
    for name, amount in amounts:
        sums[name] = sums.get(name, 0) + amount
    largest = sorted(sums.items(), key=lambda each: -each[1])[:MAX_LAYERS]
    return tuple((name or "the model itself", text(amount)) for name, amount in largest if amount)
