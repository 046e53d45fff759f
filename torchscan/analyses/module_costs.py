"""What each module call costs by itself, and what could not be priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchscan.ops import OpCost, Price, price
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class CallCost:
    """The own cost of one module call: of the operators that ran in it, but in none of its children."""

    own: OpCost
    #: False: an operator in it or in a call below it is unpriced, so that totals are lower bounds
    is_complete: bool
    unpriced: Mapping[str, int]


def module_costs(trace: Trace) -> tuple[CallCost, ...]:
    """The cost of each call of ``trace.modules``, in their order."""
    prices = _prices(trace)
    own = [OpCost()] * len(trace.modules)
    unpriced: list[Counter[str]] = [Counter() for _ in trace.modules]
    for op in trace.ops:
        priced = prices[id(op.signature)]
        own[op.module_call] += priced.cost
        if priced.state == "unpriced":
            unpriced[op.module_call][str(op.signature.op)] += 1
    complete = _complete_calls(trace, unpriced)
    return tuple(CallCost(*each) for each in zip(own, complete, unpriced, strict=True))


def unpriced_operators(trace: Trace, costs: Sequence[CallCost]) -> dict[str, dict[str, int]]:
    """Operator name -> layer path -> calls, for the operators that have no price."""
    found: dict[str, dict[str, int]] = {}
    for call, cost in zip(trace.modules, costs, strict=True):
        for name, calls in cost.unpriced.items():
            paths = found.setdefault(name, {})
            paths[call.path] = paths.get(call.path, 0) + calls
    return found


def _prices(trace: Trace) -> dict[int, Price]:
    """By identity of the signature: calls that share one cost the same, and a model repeats itself."""
    distinct = {id(op.signature): op.signature for op in trace.ops}
    return {key: price(signature) for key, signature in distinct.items()}


def _complete_calls(trace: Trace, unpriced: list[Counter[str]]) -> list[bool]:
    complete = [not names for names in unpriced]
    complete[0] = complete[0] and not trace.provenance.missed
    for call in reversed(trace.modules):  # children come after their parents
        if call.parent is not None and not complete[call.index]:
            complete[call.parent] = False
    return complete
