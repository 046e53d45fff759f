"""Costs of operator calls and module calls, and the operators without a cost formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torchscan.analyses.conventions import Convention, convention_macs
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.ops import OpCost, compute_cost
from torchscan.trace.trace import Trace


def call_costs(
    trace: Trace, convention: Convention = "torchscan", *, routed: RoutedCalls | None = None
) -> tuple[OpCost, ...]:
    """The cost of each call of ``trace.ops``, in order; ``macs`` as the convention counts them.

    Calls with the same signature cost the same if their indices were picked alike, and models repeat themselves.
    """
    routed = routed or RoutedCalls(trace)
    routings = list(map(routed.routing, range(len(trace.ops))))
    keys = [
        (id(op.signature), id(routing)) for op, routing in zip(trace.ops, routings, strict=True)
    ]
    distinct = {
        key: (op.signature, routing)
        for key, op, routing in zip(keys, trace.ops, routings, strict=True)
    }
    prices = {key: compute_cost(*each).cost for key, each in distinct.items()}
    costs = routed.with_avoidable_bytes(tuple(prices[key] for key in keys))
    if convention == "torchscan":
        return costs
    return tuple(
        replace(cost, macs=macs)
        for cost, macs in zip(costs, convention_macs(trace, convention), strict=True)
    )


def module_costs(trace: Trace, costs: Sequence[OpCost]) -> tuple[OpCost, ...]:
    """The own cost of each call of ``trace.modules``: of the operators that ran in it but not in its children.

    A call is complete if every operator in it and in the calls below it has a price.
    """
    nothing = OpCost()
    own = [nothing] * len(trace.modules)
    for op, cost in zip(trace.ops, costs, strict=True):
        before = own[op.module_call]
        own[op.module_call] = cost if before is nothing else before + cost
    own[0] = replace(
        own[0], is_complete=own[0].is_complete and not trace.provenance.unrecorded_modules
    )
    for call in reversed(trace.modules):  # children come after their parents
        if call.parent is not None and not own[call.index].is_complete:
            own[call.parent] = replace(own[call.parent], is_complete=False)
    return tuple(own)


def operators_without_formula(trace: Trace, costs: Sequence[OpCost]) -> dict[str, dict[str, int]]:
    """Operator name -> layer path -> calls, for the operators that have no price."""
    found: dict[str, Counter[str]] = {}
    for op, cost in zip(trace.ops, costs, strict=True):
        if not cost.is_complete:
            found.setdefault(str(op.signature.op), Counter())[trace.path_of(op)] += 1
    return {name: dict(paths) for name, paths in found.items()}
