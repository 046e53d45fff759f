"""Whether what a process of a mesh holds, sends and takes stays within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict, Unpack

from torchscan import units
from torchscan.analyses.plan_result import Plan
from torchscan.budgets.outcome import (
    MAX_LAYERS,
    Layers,
    Outcome,
    bounds_among,
    excesses_among,
    launch_overhead,
    shares_off_among,
)
from torchscan.errors import BudgetError, InputError, warn_user
from torchscan.metrics import OF_PLAN, limits_of
from torchscan.signatures import spelled_out


class PlanLimits(TypedDict, total=False):
    """The most that a process may hold, send and take, as numbers or as text with a unit.

    Args:
        max_local_params: parameters that it holds: ``"1.2G"``.
        max_peak_memory: peak bytes of everything: ``"70 GiB"``.
        max_sent: bytes that it sends to others, at least.
        max_latency: the estimated time of the pass or training step: ``"1.5 s"``.
        max_waiting: the share of that time that it waits for links: ``"20%"``, 0.2.
    """

    max_local_params: float | str | None
    max_peak_memory: float | str | None
    max_sent: float | str | None
    max_latency: float | str | None
    max_waiting: float | str | None


@spelled_out({}, [PlanLimits])
def assert_plan(plan: Plan, *, strict: bool = True, **limits: Unpack[PlanLimits]) -> None:
    """Raise :class:`BudgetError`, an ``AssertionError``, if a process of a mesh exceeds a limit.

    The process is the fullest that was planned. Times are compared as they are estimated; the message says how far they may
    be off.

    Args:
        plan: of :func:`plan`; times need a device.
        strict: raise :class:`UnpricedError` if only a bound is known for what is limited.
    """
    __tracebackhide__ = True  # pytest shows the test, and the message
    if not isinstance(plan, Plan):
        raise InputError(
            f"plan is a {type(plan).__name__}: give what torchscan.parallel.plan(…) returns"
        )
    given: dict[str, Any] = dict(limits)
    chosen = limits_of(given, OF_PLAN)
    if not chosen:
        raise InputError('no limit was given: try assert_plan(plan, max_peak_memory="70 GiB")')
    metrics = {name: OF_PLAN[name] for name in chosen}
    name = f"Process {plan.fullest.rank} of {plan.num_ranks:,}"
    outcome = Outcome(
        name=name,
        bounds=bounds_among(name, plan, metrics, strict=strict),
        values={each: metric.value(plan) for each, metric in metrics.items()},
        excesses=excesses_among(plan, metrics, chosen, _largest_layers),
        shares_off=shares_off_among(plan, metrics),
        remarks=plan.warnings,
    )
    for remark in outcome.remarks:
        warn_user(remark)
    if not outcome.is_fine:
        raise BudgetError(str(outcome))


def _largest_layers(name: str, plan: Plan) -> Layers:
    """Of memory what occupies it at the peak; of all else, the layers that have the most."""
    if name == "peak_memory":
        return _largest(plan.memory.by_kind.items(), units.memory)
    if name == "sent":
        return _largest(((each.layer, each.sent_bytes) for each in plan.collectives), units.memory)
    if name == "local_params":
        slots = enumerate(plan.fullest.trace.parameters)
        held = [each for place, each in slots if each.identity == place and not each.is_buffer]
        return _largest(((each.owner, each.local_numel) for each in held), units.count)
    if name == "latency" and plan.roofline is not None and launch_overhead(plan.roofline):
        return launch_overhead(plan.roofline)
    loads = () if plan.roofline is None else plan.roofline.operators
    chosen = [each for each in loads if name == "latency" or each.limiter == "links"]
    return _largest(((each.layer, each.time_estimate) for each in chosen), units.duration)


def _largest(amounts: Iterable[tuple[str, float]], text: Callable[[float], str]) -> Layers:
    """The largest sums by name."""
    sums: dict[str, float] = {}
    for name, amount in amounts:
        sums[name] = sums.get(name, 0) + amount
    largest = sorted(sums.items(), key=lambda each: -each[1])[:MAX_LAYERS]
    return tuple((name or "the model itself", text(amount)) for name, amount in largest if amount)
