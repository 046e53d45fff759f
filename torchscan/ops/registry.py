"""The registry of cost formulas and window rules of operators.

A formula is a function of the operator's arguments, named as in its schema, with a
:class:`TensorSpec` for each tensor, and of ``out``, the spec (or specs) of its result::

    @cost_of(aten.linear)
    def linear(
        input: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *, out: TensorSpec
    ) -> Work:
        '''MACs = numel(out) · in_features.'''
        return Work(macs=out.numel * weight.shape[-1])

Counts that a formula leaves out follow from the specs: see :class:`Work`. A window rule takes the
same arguments and returns which elements of the operands each element of a result depends on: see
:mod:`torchscan.ops.windows`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Literal, TypeVar

import torch

from torchscan.errors import InputError
from torchscan.ops.formula_calls import apply_formula, describe_failure, is_of_package
from torchscan.ops.nested_samples import split_samples
from torchscan.ops.op_costs import CallCost, OpCost, Work, complete_work
from torchscan.ops.operator_names import Operator, name_of, names_to_find
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.ops.windows import Windows, checked, elementwise
from torchscan.torch_versions import OpOverload, aten
from torchscan.trace.events import OpSignature
from torchscan.user_warnings import warn_user

#: returns None if the cost of a call does not follow from shapes
Formula = Callable[..., Work | None]
#: returns the elements that an operator reads for each result, or None if they are unknown
WindowRule = Callable[..., Windows | None]
F = TypeVar("F", bound=Formula)
W = TypeVar("W", bound=WindowRule)
T = TypeVar("T")

_NOTHING = OpCost()
_UNKNOWN_COST = CallCost("unknown", OpCost(is_complete=False))


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """The formula that is registered for the name of an operator."""

    formula: Formula
    state: Literal["formula", "costless"]
    #: whether integer arithmetic counts
    of_integers: bool = False


_entries: dict[str, _Entry] = {}
_window_rules: dict[str, WindowRule] = {}


def cost_of(
    *operators: Operator, of_integers: bool = False, replace: bool = False
) -> Callable[[F], F]:
    """Register a formula for operators.

    Args:
        operators: an overload (``torch.ops.aten.add.Tensor``), a packet for all its overloads
            (``torch.ops.aten.add``), the name of either (``"mylib::add"``; the library need not
            be loaded yet), or the result of ``torch.library.custom_op``.
        of_integers: count integer arithmetic, for example of quantized weights. By default,
            integers are assumed to be positions and masks, and cost nothing.
        replace: replace an existing formula. Otherwise a second formula raises an error.

    """

    def register(formula: F) -> F:
        _register(_entries, operators, _Entry(formula, "formula", of_integers), replace)
        return formula

    return register


def traffic_of(*operators: Operator) -> Callable[[F], F]:
    """Register a formula for operators without arithmetic.

    They move other bytes than those of their operands.
    """

    def register(formula: F) -> F:
        _register(_entries, operators, _Entry(formula, "costless"), replace=False)
        return formula

    return register


def declare_costless(*operators: Operator) -> None:
    """Declare operators without arithmetic: views and copies.

    A copy reads its operands and writes its result; a view does neither.
    """
    traffic_of(*operators)(_copies)


def window_of(*operators: Operator, replace: bool = False) -> Callable[[W], W]:
    """Register a window rule for operators, given as in :func:`cost_of`."""

    def register(rule: W) -> W:
        any_rule: WindowRule = rule
        _register(_window_rules, operators, any_rule, replace)
        return rule

    return register


def pointwise(*operators: Operator) -> None:
    """Declare operators that compute each element from the operands' elements at its index."""
    window_of(*operators)(elementwise)


def is_known(operator: OpOverload) -> bool:
    """Return whether this operator has a cost formula."""
    return _find(_entries, operator) is not None


def formula_of(operator: OpOverload) -> Formula | None:
    """Return the cost formula of this operator, or None if it has none."""
    entry = _find(_entries, operator)
    return None if entry is None else entry.formula


def names_of_own_formulas() -> list[str]:
    """Return the names of operators whose formulas were registered by the user."""
    names = []
    for name, entry in _entries.items():
        if not is_of_package(entry.formula):
            names.append(name)
    return names


def windows(signature: OpSignature) -> Windows | None:
    """Return the elements of its operands that a call reads, or None if they are unknown.

    A rule that fails gives a warning, so that all other numbers stay available.
    """
    rule = _find(_window_rules, signature.op)
    if rule is None:
        return None
    try:
        return checked(apply_formula(rule, signature), signature)
    except Exception as error:
        call = describe_failure(signature, error)
        warn_user(
            f"the window rule {rule.__qualname__} failed on {call}; its receptive fields are "
            "unknown"
        )
        return None


def compute_cost(signature: OpSignature, routing: Routing = UNKNOWN) -> CallCost:
    """Return the cost of a call. Views cost nothing; integer arithmetic counts only as traffic.

    ``routing``: how a router picked the indices among the operands.
    """
    if signature.is_view or _makes_nothing(signature):
        return CallCost("costless", _NOTHING)
    entry = _find(_entries, signature.op)
    is_nested = any(spec.is_nested for spec in signature.inputs)
    if is_nested and not _goes_by_elements(entry, signature.op):
        return _cost_by_samples(signature, routing)
    has_floats = any(map(_is_arithmetic, (*signature.inputs, *signature.outputs)))
    if has_floats or signature.op.namespace not in ("aten", "prims"):
        # What operators of other libraries do with integers is unknown.
        return _UNKNOWN_COST if entry is None else _cost_by_formula(entry, signature, routing)
    if entry is None:
        return _cost_by_formula(_Entry(_copies, "costless"), signature, routing)
    call_cost = _cost_by_formula(entry, signature, routing)
    if entry.of_integers or call_cost.state == "unknown":
        return call_cost
    return CallCost("costless", dataclasses.replace(call_cost.cost, macs=0, flops=0))


#: products whose formulas count rows, of any lengths
_BY_ROWS = frozenset({aten.linear.default, aten.linear_backward.default})


def _goes_by_elements(entry: _Entry | None, op: OpOverload) -> bool:
    """Return whether the formula holds for nested tensors, which have rows of different lengths.

    It does if it counts elements: the shape of a nested tensor has only their number.
    """
    if entry is None or entry.state == "costless" or op in _BY_ROWS:
        return True
    return _find(_window_rules, op) is elementwise


def _cost_by_samples(signature: OpSignature, routing: Routing) -> CallCost:
    """Return the sum of the costs of each sample of nested tensors."""
    calls = split_samples(signature)
    if calls is None:
        return _UNKNOWN_COST
    if not calls:
        return CallCost("costless", _NOTHING)
    total, states = _NOTHING, set()
    for call, number in calls:
        sample = compute_cost(call, routing)
        states.add(sample.state)
        for _ in range(number):
            total += sample.cost
    state = min(states, key=("unknown", "formula", "costless").index)
    return CallCost(state, total)


_numel, _is_arithmetic = attrgetter("numel"), attrgetter("is_arithmetic")


def _makes_nothing(signature: OpSignature) -> bool:
    """Return whether all results are empty.

    This is the case for an expert without rows, whose weights are unread.
    """
    written = signature.all_written
    if not written or any(map(_numel, written)):
        return False
    return torch.Tag.dynamic_output_shape not in signature.op.tags


def _cost_by_formula(entry: _Entry, signature: OpSignature, routing: Routing) -> CallCost:
    """Return the cost that a formula gives.

    A formula that fails gives a warning, and the call counts as one without a formula, so that all
    other numbers stay available.
    """
    try:
        work = apply_formula(entry.formula, signature, routing)
        if work is None:
            return _UNKNOWN_COST
        cost = complete_work(work, signature)
        if work.is_lower_bound:
            return CallCost("unknown", dataclasses.replace(cost, is_complete=False))
        return CallCost(entry.state, cost)
    except Exception as error:
        call = describe_failure(signature, error)
        warn_user(
            f"the cost formula {entry.formula.__qualname__} failed on {call}; totals are lower "
            "bounds"
        )
        return _UNKNOWN_COST


def _copies(**_kwargs: object) -> Work:
    return Work()


def _register(
    entries: dict[str, T], operators: tuple[Operator, ...], entry: T, replace: bool
) -> None:
    if not operators:
        raise InputError("there is no operator: give one, @cost_of(torch.ops.mylib.my_op)")
    names = list(map(name_of, operators))
    taken = [name for name in names if name in entries]
    if taken and not replace:
        kind = "a cost" if isinstance(entry, _Entry) else "a window rule"
        raise ValueError(f"{taken[0]} already has {kind}: give replace=True to replace it")
    for name in names:
        if replace:
            for overload in [each for each in entries if each.startswith(f"{name}.")]:
                del entries[overload]
        entries[name] = entry


def _find(entries: Mapping[str, T], operator: OpOverload) -> T | None:
    for name in names_to_find(operator):
        entry = entries.get(name)
        if entry is not None:
            return entry
    return None
