"""The registry of cost formulas and window rules of operators.

A formula is a function of the operator's arguments, named as in its schema, with a
:class:`TensorSpec` for each tensor, and of ``out``, the spec (or specs) of its result::

    @cost_of(aten.linear)
    def linear(input: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *, out: TensorSpec) -> Work:
        '''MACs = numel(out) · in_features.'''
        return Work(macs=out.numel * weight.shape[-1])

Counts that a formula leaves out follow from the specs: see :class:`Work`. A window rule takes the
same arguments and returns which elements of the operands each element of a result depends on: see
:mod:`torchscan.ops.windows`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeVar

import torch

from torchscan.errors import InputError, warn_user
from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.ops.windows import Windows, checked, elementwise
from torchscan.torch_versions import (
    CustomOpDef,
    MissingOperator,
    OpOverload,
    OpOverloadPacket,
    aten,
)
from torchscan.trace.events import OpSignature, TensorSpec, names_of_arguments

#: an overload, a packet (all its overloads), the name of either, or the result of ``torch.library.custom_op``
Operator = OpOverload | OpOverloadPacket | CustomOpDef | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one operator call, as its formula returns it.

    A count of None follows from the specs of operands and results.
    """

    macs: int = 0
    #: floating-point operations other than the two of each multiply-accumulate
    other_flops: int = 0
    #: elements read without a cache; None: every element of every operand once
    elements_read: int | None = None
    #: bytes that must at least be read; None: the distinct elements of every distinct operand
    bytes_read: int | None = None
    #: bytes of these that another routing of the same rows would not read
    avoidable_bytes_read: int = 0
    #: elements written; None: every element of every result and of every operand that is written to
    elements_written: int | None = None
    #: bytes written; None: those of the same elements
    bytes_written: int | None = None
    #: the true numbers depend on values, and are no less than these
    is_lower_bound: bool = False

    def __post_init__(self) -> None:
        """Check that counts are whole numbers, of any type."""
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "is_lower_bound" or (type(value) is int and value >= 0):
                continue
            if value is None and name not in ("macs", "other_flops", "avoidable_bytes_read"):
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
                raise ValueError(f"{name} is {value!r}: give a whole number")
            object.__setattr__(self, name, int(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """The cost of one or more operator calls. docs/conventions.md explains each number."""

    macs: int = 0
    flops: int = 0
    elements_read: int = 0
    elements_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    #: bytes of the expected reads that another routing of the same rows would not read: of experts
    avoidable_bytes_read: int = 0
    #: False if an operator without a cost formula is included: then every number is a lower bound
    is_complete: bool = True

    @property
    def dmas(self) -> int:
        """Memory accesses without a cache: elements read plus elements written."""
        return self.elements_read + self.elements_written

    @property
    def min_bytes_read(self) -> int:
        """Bytes that are read with any routing of the rows."""
        return self.bytes_read - self.avoidable_bytes_read

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(
            macs=self.macs + other.macs,
            flops=self.flops + other.flops,
            elements_read=self.elements_read + other.elements_read,
            elements_written=self.elements_written + other.elements_written,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
            avoidable_bytes_read=self.avoidable_bytes_read + other.avoidable_bytes_read,
            is_complete=self.is_complete and other.is_complete,
        )


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a call, and whether it has a formula, costs nothing or has no formula."""

    state: Literal["formula", "costless", "unknown"]
    cost: OpCost


#: returns None if the cost of a call does not follow from shapes
Formula = Callable[..., Work | None]
#: returns the elements that an operator reads for each result, or None if they are unknown
WindowRule = Callable[..., Windows | None]
F = TypeVar("F", bound=Formula)
W = TypeVar("W", bound=WindowRule)
T = TypeVar("T")

_NOTHING = OpCost()
_UNKNOWN_COST = CallCost("unknown", OpCost(is_complete=False))


@dataclass(frozen=True, slots=True)
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
    """Register a formula for operators without arithmetic that move other bytes than their operands."""

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


def windows(signature: OpSignature) -> Windows | None:
    """Return the elements of its operands that a call reads, or None if they are unknown.

    A rule that fails gives a warning, so that all other numbers stay available.
    """
    rule = _find(_window_rules, signature.op)
    if rule is None:
        return None
    try:
        return checked(_apply(rule, signature), signature)
    except Exception as error:
        call = f"{signature.op}({', '.join(map(str, signature.args))})"
        warn_user(
            f"the window rule {rule.__qualname__} failed on {call} ({error!r}): its receptive "
            "fields are unknown"
        )
        return None


def compute_cost(signature: OpSignature, routing: Routing = UNKNOWN) -> CallCost:
    """Return the cost of a call. Views cost nothing; integer arithmetic counts only as traffic.

    ``routing``: how a router picked the indices among the operands.
    """
    if signature.is_view or _makes_nothing(signature):
        return CallCost("costless", _NOTHING)
    entry = _find(_entries, signature.op)
    if any(spec.is_nested for spec in signature.inputs) and not _goes_by_elements(
        entry, signature.op
    ):
        return _UNKNOWN_COST
    if not _is_integer_arithmetic(signature):
        return _UNKNOWN_COST if entry is None else _cost_by_formula(entry, signature, routing)
    if entry is None:
        return _cost_by_formula(_Entry(_copies, "costless"), signature, routing)
    found = _cost_by_formula(entry, signature, routing)
    return found if entry.of_integers else _without_arithmetic(found)


#: products whose formulas count rows, of any lengths
_BY_ROWS = frozenset({aten.linear.default, aten.linear_backward.default})


def _goes_by_elements(entry: _Entry | None, op: OpOverload) -> bool:
    """Return whether the formula holds for nested tensors, which have rows of different lengths.

    It does if it counts elements: the shape of a nested tensor has only their number.
    """
    if entry is None or entry.state == "costless" or op in _BY_ROWS:
        return True
    return _find(_window_rules, op) is elementwise


_numel, _is_arithmetic = attrgetter("numel"), attrgetter("is_arithmetic")


def _makes_nothing(signature: OpSignature) -> bool:
    """Return whether all results are empty, as of an expert without rows, whose weights are unread."""
    written = signature.all_written
    if not written or any(map(_numel, written)):
        return False
    return torch.Tag.dynamic_output_shape not in signature.op.tags


def _without_arithmetic(found: CallCost) -> CallCost:
    if found.state == "unknown":
        return found
    return CallCost("costless", dataclasses.replace(found.cost, macs=0, flops=0))


def _cost_by_formula(entry: _Entry, signature: OpSignature, routing: Routing) -> CallCost:
    """Return the cost that a formula gives.

    A formula that fails gives a warning, and the call counts as one without a formula, so that all
    other numbers stay available.
    """
    try:
        work = _apply(entry.formula, signature, routing)
        if work is None:
            return _UNKNOWN_COST
        cost = _complete(work, signature)
        return (
            CallCost("unknown", dataclasses.replace(cost, is_complete=False))
            if work.is_lower_bound
            else CallCost(entry.state, cost)
        )
    except Exception as error:
        call = f"{signature.op}({', '.join(map(str, signature.args))})"
        warn_user(
            f"the cost formula {entry.formula.__qualname__} failed on {call} ({error!r}): totals "
            "are lower bounds"
        )
        return _UNKNOWN_COST


def _is_integer_arithmetic(signature: OpSignature) -> bool:
    """Return whether this is an operator of torch on integers or booleans only.

    What operators of other libraries do with integers is unknown.
    """
    if any(map(_is_arithmetic, (*signature.inputs, *signature.outputs))):
        return False
    return signature.op.namespace in ("aten", "prims")


def _apply(formula: Callable[..., T], signature: OpSignature, routing: Routing = UNKNOWN) -> T:
    """Call a formula or a rule with the arguments that it has parameters for.

    Its positional parameters take the operator's first arguments, under any name; its keyword
    parameters are matched by name with the schema, if the overload has them. ``inputs`` takes all
    operands, ``routing`` how a router picked the indices.
    """
    layout = _layout(formula)
    names = names_of_arguments(signature.op)
    named = signature.arguments
    positional = [named[name] for name in names[: layout.positional] if name in named]
    if layout.takes_rest:
        positional += signature.args[layout.positional :]
    keywords = {name: value for name, value in named.items() if name in layout.keywords}
    if layout.takes_inputs:
        keywords["inputs"] = signature.inputs
    if layout.takes_routing:
        keywords["routing"] = routing
    return formula(*positional, **keywords, out=signature.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The parameters of a formula."""

    positional: int
    takes_rest: bool
    takes_inputs: bool
    takes_routing: bool
    keywords: frozenset[str]


@functools.cache
def _layout(formula: Callable[..., object]) -> _Layout:
    parameters = inspect.signature(formula).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    by_keyword = [
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return _Layout(
        positional=kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        + kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD),
        takes_rest=inspect.Parameter.VAR_POSITIONAL in kinds,
        takes_inputs="inputs" in by_keyword,
        takes_routing="routing" in by_keyword,
        keywords=frozenset(by_keyword) - {"out", "inputs", "routing"},
    )


def elements(specs: Iterable[TensorSpec]) -> int:
    """Return the number of elements that one access of each of these tensors touches."""
    return sum(spec.accessed_numel for spec in specs)


def stored_bytes(specs: Iterable[TensorSpec]) -> int:
    """Return the bytes of the distinct elements of these tensors."""
    return sum(spec.stored_bytes for spec in specs)


def _copies(**_kwargs: object) -> Work:
    return Work()


def _complete(work: Work, signature: OpSignature) -> OpCost:
    """Return the cost: ``FLOPs = 2·MACs + other FLOPs``, and missing counts from the specs."""
    written = signature.all_written
    return OpCost(
        macs=work.macs,
        flops=2 * work.macs + work.other_flops,
        elements_read=_value_or_count(work.elements_read, elements, signature.inputs),
        elements_written=_value_or_count(work.elements_written, elements, written),
        bytes_read=_value_or_count(work.bytes_read, stored_bytes, signature.distinct_inputs),
        bytes_written=_value_or_count(work.bytes_written, stored_bytes, written),
        avoidable_bytes_read=work.avoidable_bytes_read,
    )


def _value_or_count(
    figure: int | None, count: Callable[[Iterable[TensorSpec]], int], specs: Iterable[TensorSpec]
) -> int:
    return count(specs) if figure is None else figure


def _name_of(operator: Operator) -> str:
    """Return the name of an operator, as torch prints it: ``aten.add`` or ``aten.add.Tensor``."""
    if isinstance(operator, CustomOpDef):
        operator = operator._qualname
    if isinstance(operator, OpOverload | OpOverloadPacket | MissingOperator):
        return str(operator)
    if not isinstance(operator, str) or not all(operator.partition("::")):
        raise InputError(
            f"{operator!r} is not an operator: give torch.ops.mylib.my_op, or its name, "
            "'mylib::my_op'"
        )
    return operator.replace("::", ".")


def _register(
    entries: dict[str, T], operators: tuple[Operator, ...], entry: T, replace: bool
) -> None:
    if not operators:
        raise InputError("there is no operator: give one, @cost_of(torch.ops.mylib.my_op)")
    names = [_name_of(operator) for operator in operators]
    taken = [name for name in names if name in entries]
    if taken and not replace:
        kind = "a cost" if isinstance(entry, _Entry) else "a window rule"
        raise ValueError(f"{taken[0]} already has {kind}: give replace=True to replace it")
    for name in names:
        for narrower in (
            [each for each in entries if each.startswith(f"{name}.")] if replace else ()
        ):
            del entries[narrower]
        entries[name] = entry


def _find(entries: Mapping[str, T], operator: OpOverload) -> T | None:
    for name in _names_to_find(operator):
        entry = entries.get(name)
        if entry is not None:
            return entry
    return None


@functools.cache
def _names_to_find(operator: OpOverload) -> tuple[str, ...]:
    """Return the names to look up: the overload, the packet, and those of the functional operator.

    An in-place operator without an entry has the cost of its functional counterpart.
    """
    packet = str(operator.overloadpacket)
    functional = packet.removesuffix("_")
    return str(operator), packet, f"{functional}.{operator._overloadname}", functional
