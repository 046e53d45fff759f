"""Costs of operator calls and module calls, and the operators without a cost formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from torchscan.analyses.conventions import Convention, convention_macs
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.analyses.routing_operators import ROUTERS
from torchscan.notes import Note
from torchscan.ops import OpCost, compute_cost, find_formula_problem, operators_with_problem
from torchscan.trace.trace import Trace


def call_costs(
    trace: Trace, convention: Convention = "torchscan", *, routed: RoutedCalls | None = None
) -> tuple[OpCost, ...]:
    """Return the cost of each call of ``trace.ops``, in order.

    ``macs`` are counted by the convention. Calls with the same signature cost the same if their
    indices were picked alike, and models repeat themselves.
    """
    signatures = {id(op.signature): op.signature for op in trace.ops}
    if ROUTERS.keys().isdisjoint([each.operator for each in signatures.values()]):
        cost_by_signature = {key: compute_cost(each).cost for key, each in signatures.items()}
        costs = tuple([cost_by_signature[id(op.signature)] for op in trace.ops])
    else:
        costs = _costs_behind_routers(trace, routed or RoutedCalls(trace))
    if convention == "torchscan":
        return costs
    pairs = zip(costs, convention_macs(trace, convention), strict=True)
    return tuple(replace(cost, macs=macs) for cost, macs in pairs)


def _costs_behind_routers(trace: Trace, routed: RoutedCalls) -> tuple[OpCost, ...]:
    """Return the cost of each call, which may depend on what routers pick."""
    cost_by_key: dict[tuple[int, int], OpCost] = {}
    costs = []
    for index, op in enumerate(trace.ops):
        routing = routed.routing(index)
        key = (id(op.signature), id(routing))
        if key not in cost_by_key:
            cost_by_key[key] = compute_cost(op.signature, routing).cost
        costs.append(cost_by_key[key])
    return routed.with_avoidable_bytes(tuple(costs))


def module_costs(trace: Trace, costs: Sequence[OpCost]) -> tuple[OpCost, ...]:
    """Return the own cost of each call of ``trace.modules``.

    It is of the operators that ran in it but not in its children. A call is complete if every
    operator in it and in the calls below it has a cost formula.
    """
    nothing = OpCost()
    own = [nothing] * len(trace.modules)
    for op, cost in zip(trace.ops, costs, strict=True):
        before = own[op.module_call]
        own[op.module_call] = cost if before is nothing else before + cost
    if trace.provenance.unrecorded_modules:
        own[0] = replace(own[0], is_complete=False)
    for call in reversed(trace.modules):  # children come after their parents
        if call.parent is not None and not own[call.index].is_complete:
            own[call.parent] = replace(own[call.parent], is_complete=False)
    return tuple(own)


def operators_without_formula(trace: Trace, costs: Sequence[OpCost]) -> dict[str, dict[str, int]]:
    """Return the number of calls by layer, by operator without a cost formula."""
    found: dict[str, Counter[str]] = {}
    for op, cost in zip(trace.ops, costs, strict=True):
        if not cost.is_complete:
            found.setdefault(op.signature.full_name, Counter())[trace.path_of(op)] += 1
    return {name: dict(paths) for name, paths in found.items()}


def formula_problems(trace: Trace, unknown: Collection[str]) -> list[Note]:
    """Return why the costs of operators are unknown although a formula was meant for them.

    ``unknown`` has the names of operators with an unknown cost. Only the first problem of each is
    returned, and some of its calls may have a cost.
    """
    if not unknown:
        return []
    signatures = {id(op.signature): op.signature for op in trace.ops}
    used = {str(signature.op.overloadpacket) for signature in signatures.values()}
    problems: dict[str, Note] = {}
    for signature in signatures.values():
        name = signature.full_name
        if name not in unknown or name in problems:
            continue
        problem = find_formula_problem(signature, used)
        if problem is not None:
            problems[name] = problem
    return [problems[name] for name in unknown if name in problems]


def unknown_cost_notes(trace: Trace, unknown: Collection[str]) -> list[Note]:
    """Return notes on operators without a cost: those without a formula, and other reasons."""
    problems = formula_problems(trace, unknown)
    with_problem = operators_with_problem(problems)
    others = [name for name in unknown if name not in with_problem]
    if others:
        problems.insert(0, Note.of("costs-unknown", operators=others))
    return problems
