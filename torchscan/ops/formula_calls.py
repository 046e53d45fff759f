"""Calls of formulas and window rules with the arguments of an operator call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torchscan.ops.routing import UNKNOWN, Routing
from torchscan.trace.events import OpSignature, TensorSpec, names_of_arguments
from torchscan.trace.kernel_operators import KERNELS, names_in_kernel

T = TypeVar("T")
#: parameters that are not arguments of the operator
_OWN = frozenset({"out", "inputs", "routing"})
#: types of a kernel's arguments by annotation
_TYPES = {"TensorSpec": TensorSpec, "int": int, "str": str}


#: maximum number of characters of an exception, and of operands, in a message
_MAX_ERROR, _MAX_OPERANDS = 160, 3


def apply_formula(
    formula: Callable[..., T], signature: OpSignature, routing: Routing = UNKNOWN
) -> T | None:
    """Call a formula or a rule with the arguments that it has parameters for.

    Its positional parameters take the operator's first arguments, under any name; its keyword
    parameters are matched by name with the schema, if the overload has them. ``inputs`` takes all
    operands, ``routing`` the way in which a router picked the indices. The result is None for a
    kernel that has the name of a known kernel but lacks its parameters.
    """
    layout = _layout(formula)
    names = names_of_arguments(signature.op)
    named = signature.arguments
    by_name = {**signature.kwargs, **named}  # with tensors that are only written to
    if signature.op.namespace == KERNELS:  # whose parameters are all positional
        names, named = names_in_kernel(signature.op), by_name
        if not layout.suits(by_name):
            return None
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
    #: types of the arguments that a kernel must have for a formula of this package to apply
    required: Mapping[str, type]

    def suits(self, arguments: Mapping[str, object]) -> bool:
        """Return whether a kernel has all required arguments."""
        return all(isinstance(arguments.get(name), kind) for name, kind in self.required.items())


@functools.cache
def _layout(formula: Callable[..., object]) -> _Layout:
    parameters = inspect.signature(formula).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    by_keyword = {
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    required = {
        parameter.name: _TYPES.get(str(parameter.annotation), object)
        for parameter in parameters
        if parameter.name in by_keyword - _OWN and parameter.default is parameter.empty
    }
    either = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return _Layout(
        positional=either + kinds.count(inspect.Parameter.POSITIONAL_ONLY),
        takes_rest=inspect.Parameter.VAR_POSITIONAL in kinds,
        takes_inputs="inputs" in by_keyword,
        takes_routing="routing" in by_keyword,
        keywords=frozenset(by_keyword) - _OWN,
        required=required if is_of_package(formula) else {},
    )


def is_of_package(formula: Callable[..., object]) -> bool:
    """Return whether this package defines the formula."""
    module = getattr(formula, "__module__", None) or ""
    return module.startswith("torchscan.")


def describe_failure(signature: OpSignature, error: Exception) -> str:
    """Return the call on which a formula failed, and its error, in one line."""
    operands = []
    for spec in signature.inputs[:_MAX_OPERANDS]:
        dtype = str(spec.dtype).removeprefix("torch.")
        operands.append(f"{dtype} {list(spec.shape)}")
    if len(signature.inputs) > _MAX_OPERANDS:
        operands.append("…")
    return f"{signature.full_name}({', '.join(operands)}): {describe_error(error)}"


def describe_error(error: Exception) -> str:
    """Return an exception in one line, truncated if it is too long."""
    text = " ".join(repr(error).split())
    return text if len(text) <= _MAX_ERROR else f"{text[:_MAX_ERROR]}…"
