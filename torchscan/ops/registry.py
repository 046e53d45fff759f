"""Which operator costs what: formulas are registered here and looked up here.

A formula is a function of the operator's arguments, as its schema names them, with a :class:`TensorSpec` for each tensor,
and of ``out``, the spec (or specs) of what it returned::

    @cost_of(aten.linear)
    def linear(input: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *, out: TensorSpec) -> Work:
        '''MACs = numel(out) · in_features.'''
        return Work(macs=out.numel * weight.shape[-1])

Whatever a formula leaves out follows from the specs: see :class:`Work`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch._ops import OpOverload, OpOverloadPacket

from torchscan.trace.events import OpSignature, TensorSpec

Operator = OpOverload | OpOverloadPacket


@dataclass(frozen=True, slots=True)
class Work:
    """What a formula says of one call. ``None`` stands for what the specs alone tell."""

    macs: int = 0
    #: floating-point operations besides the two of each multiply-accumulate
    other_flops: int = 0
    #: elements read without a cache; None: every element of every operand once
    elements_read: int | None = None
    #: bytes that have to be read at least; None: the distinct elements of every distinct operand
    bytes_read: int | None = None
    #: whether the output is written (a bare allocation leaves that to whoever fills it)
    writes: bool = True


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of one call, or of several; see docs/conventions.md for what each figure means."""

    macs: int = 0
    flops: int = 0
    dmas: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(
            self.macs + other.macs,
            self.flops + other.flops,
            self.dmas + other.dmas,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a call and how it is known: by a formula, because it does no arithmetic, or not at all."""

    state: Literal["priced", "free", "unpriced"]
    cost: OpCost


Formula = Callable[..., Work]
F = TypeVar("F", bound=Formula)

_NOTHING = OpCost()
_UNPRICED = Price("unpriced", _NOTHING)

_formulas: dict[str, Formula] = {}
_free: dict[str, Formula] = {}
_count_integers: set[Formula] = set()


def cost_of(*operators: Operator, of_integers: bool = False) -> Callable[[F], F]:
    """Register a formula for operators (an overload, or all overloads of a packet).

    Integer arithmetic is positions and masks, and free, unless the formula is one ``of_integers``, of quantised weights say.
    """
    register = _registrar(_formulas, operators)
    if not of_integers:
        return register

    def register_of_integers(formula: F) -> F:
        _count_integers.add(formula)
        return register(formula)

    return register_of_integers


def traffic_of(*operators: Operator) -> Callable[[F], F]:
    """Register a formula for operators that do no arithmetic, but move other data than their operands and results."""
    return _registrar(_free, operators)


def free(*operators: Operator) -> None:
    """Declare operators that do no arithmetic: views, copies. Whatever is no view reads its operands and writes its result."""
    _registrar(_free, operators)(_copies)


def is_known(operator: OpOverload) -> bool:
    """Whether calls of this operator can be priced as a whole."""
    return _find(_formulas, operator) is not None or _find(_free, operator) is not None


def price(signature: OpSignature) -> Price:
    """What a call costs. Views cost nothing; integer arithmetic counts for traffic only."""
    if signature.is_view:
        return Price("free", _NOTHING)
    mover = _find(_free, signature.op)
    if mover is not None:
        return _priced("free", mover, signature)
    formula = _find(_formulas, signature.op)
    if _is_integer_arithmetic(signature) and formula not in _count_integers:
        return _priced("free", _copies, signature)
    return _UNPRICED if formula is None else _priced("priced", formula, signature)


def _priced(state: Literal["priced", "free"], formula: Formula, signature: OpSignature) -> Price:
    """A formula that fails must not cost the user the other figures: then the call counts as unpriced."""
    try:
        return Price(state, _complete(_apply(formula, signature), signature))
    except Exception as error:
        call = f"{signature.op}({', '.join(map(str, signature.args))})"
        warnings.warn(f"the formula {formula.__qualname__} failed on {call}: {error!r}; it is not priced", stacklevel=2)
        return _UNPRICED


def _is_integer_arithmetic(signature: OpSignature) -> bool:
    """Operators of torch itself on integers and booleans; what others do with integers is not known."""
    is_torchs = signature.op.namespace in ("aten", "prims")
    return is_torchs and not any(spec.is_arithmetic for spec in (*signature.inputs, *signature.outputs))


def _apply(formula: Formula, signature: OpSignature) -> Work:
    """Call a formula with what it has parameters for.

    Its positional parameters are the operator's first arguments, whatever the overload calls them; keyword parameters go by
    the schema's names, wherever an overload has them.
    """
    layout = _layout(formula)
    names = [argument.name for argument in signature.op._schema.arguments]
    named = dict(zip(names, signature.args, strict=False)) | dict(signature.inputs_by_keyword)
    positional = [named[name] for name in names[: layout.positional] if name in named]
    if layout.takes_rest:
        positional += signature.args[layout.positional :]
    keywords = {name: value for name, value in named.items() if name in layout.keywords}
    return formula(*positional, **keywords, out=signature.out)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The parameters of a formula."""

    positional: int
    takes_rest: bool
    keywords: frozenset[str]


@functools.cache
def _layout(formula: Formula) -> _Layout:
    parameters = inspect.signature(formula).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    return _Layout(
        positional=kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD),
        takes_rest=inspect.Parameter.VAR_POSITIONAL in kinds,
        keywords=frozenset(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY) - {"out"},
    )


def elements(specs: Iterable[TensorSpec]) -> int:
    """The logical elements of several tensors."""
    return sum(spec.numel for spec in specs)


def _copies(**_kwargs: object) -> Work:
    return Work()


def _complete(work: Work, signature: OpSignature) -> OpCost:
    """``FLOPs = 2·MACs + the rest``; ``DMAs = elements read + elements written``."""
    read = elements(signature.inputs) if work.elements_read is None else work.elements_read
    bytes_read = work.bytes_read
    if bytes_read is None:
        bytes_read = sum(spec.stored_bytes for spec in signature.distinct_inputs)
    written = signature.outputs if work.writes else ()
    return OpCost(
        macs=work.macs,
        flops=2 * work.macs + work.other_flops,
        dmas=read + elements(written),
        bytes_read=bytes_read,
        bytes_written=sum(spec.stored_bytes for spec in written),
    )


def _registrar(table: dict[str, Formula], operators: tuple[Operator, ...]) -> Callable[[F], F]:
    def register(formula: F) -> F:
        for operator in operators:
            name = str(operator)
            if name in _formulas or name in _free:
                raise ValueError(f"{name} has a cost already: one operator, one formula")
            table[name] = formula
        return formula

    return register


def _find(table: dict[str, Formula], operator: OpOverload) -> Formula | None:
    """By overload, then by packet; an in-place operator costs what its functional twin does."""
    overload, packet = str(operator), str(operator.overloadpacket)
    for name in (overload, packet, packet.removesuffix("_")):
        formula = table.get(name)
        if formula is not None:
            return formula
    return None
