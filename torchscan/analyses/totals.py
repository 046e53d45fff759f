"""The cost of a pass: in total, per module and per operator.

``convention`` counts MACs by the rules of another tool: see docs/coming-from.md. ``phase``
restricts the count to the forward or the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from torchscan.analyses.conventions import Convention
from torchscan.analyses.module_costs import call_costs, formula_problems, operators_without_formula
from torchscan.errors import Give, InputError, MissingFormulaError
from torchscan.notes import Note
from torchscan.ops import OpCost
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace
from torchscan.wording import write_choices
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def total_cost(
    trace: Trace,
    *,
    convention: Convention = "torchscan",
    phase: Phase | None = None,
    strict: bool = False,
) -> OpCost:
    """Return the cost of the complete pass.

    With ``strict``, an operator without a cost formula raises :class:`MissingFormulaError`.
    """
    costs = call_costs(trace, convention)
    if strict:
        require_prices(trace, costs)
    total = sum((cost for _, cost in _of_phase(trace, costs, phase)), OpCost())
    is_complete = total.is_complete and not trace.provenance.unrecorded_modules
    return replace(total, is_complete=is_complete)


@explain_wrong_types
def by_operator(
    trace: Trace, *, convention: Convention = "torchscan", phase: Phase | None = None
) -> dict[str, OpCost]:
    """Return the cost of all calls by operator, with all overloads together."""
    costs: dict[str, OpCost] = {}
    for op, cost in _of_phase(trace, call_costs(trace, convention), phase):
        _add(costs, op.signature.operator, cost)
    return costs


@explain_wrong_types
def by_module(
    trace: Trace, *, convention: Convention = "torchscan", phase: Phase | None = None
) -> dict[str, OpCost]:
    """Return the cost of all calls of each module, including what they call, by path.

    The path ``""`` is that of the model.
    """
    around = enclosing_paths(trace)
    costs = {call.path: OpCost() for call in trace.modules}
    for op, cost in _of_phase(trace, call_costs(trace, convention), phase):
        for path in around[op.module_call]:
            _add(costs, path, cost)
    return costs


def require_prices(trace: Trace, costs: Sequence[OpCost]) -> None:
    """Raise a MissingFormulaError that names operators without a cost formula, and their layers."""
    unknown = operators_without_formula(trace, costs)
    if trace.provenance.unrecorded_modules:
        modules = ", ".join(trace.provenance.unrecorded_modules)
        raise MissingFormulaError(
            f"modules ran in other threads, which are not recorded: {modules}"
        )
    if unknown:
        problems = formula_problems(trace, unknown)
        details = [str(note) for note in problems if "operator" not in note.values]
        raise MissingFormulaError(
            f"{_describe_unknown(unknown, problems)}: leave out ",
            Give("strict", True),
            " for lower bounds",
            details="; ".join(details) or None,
        )


def _describe_unknown(unknown: Mapping[str, Mapping[str, int]], problems: Sequence[Note]) -> str:
    """Return a text that names the operators without a cost, their layers and the reasons."""
    places = {}
    for name, paths in unknown.items():
        layers = [path or "(the model)" for path in paths]
        places[name] = f"{name} in {', '.join(layers)}"

    reasons = []
    for note in problems:
        if "operator" not in note.values:
            continue
        place = places.pop(note.values["operator"])
        if note.code == "formula-failed":
            reasons.append(f"the cost formula of {place} failed: {note.values['error']}")
        else:
            reasons.append(f"the cost of {place} depends on values of tensors")
    if places:
        reasons.insert(0, f"these operators have no cost formula: {'; '.join(places.values())}")
    return "; ".join(reasons)


def _add(costs: dict[str, OpCost], key: str, cost: OpCost) -> None:
    costs[key] = costs.get(key, OpCost()) + cost


def _of_phase(
    trace: Trace, costs: Sequence[OpCost], phase: Phase | None
) -> Iterator[tuple[OpCall, OpCost]]:
    _require_phase(trace, phase)
    for op, cost in zip(trace.ops, costs, strict=True):
        if phase is None or op.phase == phase:
            yield op, cost


def _require_phase(trace: Trace, phase: Phase | None) -> None:
    if phase is not None and phase not in get_args(Phase):
        raise InputError.of_value(
            "phase", phase, "choose from ", write_choices(get_args(Phase)), ", or None for all"
        )
    if phase == "backward" and all(op.phase == "forward" for op in trace.ops):
        raise InputError("this trace has no backward pass: record it with ", Give("training", True))


def enclosing_paths(trace: Trace) -> list[tuple[str, ...]]:
    """Return, for each module call, the distinct paths of itself and of the calls around it."""
    around: list[tuple[str, ...]] = []
    for call in trace.modules:  # parents come before their children
        outside = () if call.parent is None else around[call.parent]
        around.append(outside if call.path in outside else (*outside, call.path))
    return around
