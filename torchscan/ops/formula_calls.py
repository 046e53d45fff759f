"""Calls of formulas and window rules with the arguments of an operator call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.trace.events import OpSignature, names_of_arguments
from torchscan.trace.kernel_operators import KERNELS, names_in_kernel

T = TypeVar("T")


def apply_formula(
    formula: Callable[..., T], signature: OpSignature, routing: Routing = UNKNOWN
) -> T:
    """Call a formula or a rule with the arguments that it has parameters for.

    Its positional parameters take the operator's first arguments, under any name; its keyword
    parameters are matched by name with the schema, if the overload has them. ``inputs`` takes all
    operands, ``routing`` how a router picked the indices.
    """
    layout = _layout(formula)
    names = names_of_arguments(signature.op)
    named = signature.arguments
    by_name = {**signature.kwargs, **named}  # with tensors that are only written to
    if signature.op.namespace == KERNELS:  # whose parameters are all positional
        names, named = names_in_kernel(signature.op), by_name
    positional = [named[name] for name in names[: layout.positional] if name in named]
    if layout.takes_rest:
        positional += signature.args[layout.positional :]
    keywords = {name: value for name, value in by_name.items() if name in layout.keywords}
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
    by_keyword = {
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    either = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return _Layout(
        positional=either + kinds.count(inspect.Parameter.POSITIONAL_ONLY),
        takes_rest=inspect.Parameter.VAR_POSITIONAL in kinds,
        takes_inputs="inputs" in by_keyword,
        takes_routing="routing" in by_keyword,
        keywords=frozenset(by_keyword) - {"out", "inputs", "routing"},
    )
