"""Building blocks of the rules of other tools: a number per operator call or module call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torchscan.once import once
from torchscan.ops import compute_cost
from torchscan.ops.matmul import real_products
from torchscan.trace.events import ModuleCall, OpSignature, TensorSpec
from torchscan.trace.trace import Trace

#: what a tool reports for one operator call
OperatorRule = Callable[[OpSignature], int]
#: by the name of the operator without its overload; an in-place operator goes by the name of its
#: functional counterpart
OperatorRules = Mapping[str, OperatorRule]
_Rule = TypeVar("_Rule", bound=Callable[..., int])

CONVOLUTIONS = tuple(f"aten.conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3))
#: what a convolution is made of, in a record that has no composite operators
PLAIN_CONVOLUTIONS = (
    "aten.convolution",
    "aten._convolution",
    "aten.cudnn_convolution",
    "aten.convolution_overrideable",
)
RECURRENT = ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")
RECURRENT_CELLS = tuple(f"{name}_cell" for name in RECURRENT)
ATTENTION = (
    "aten.scaled_dot_product_attention",
    "aten._scaled_dot_product_attention_math",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._flash_attention_forward",
    "aten._efficient_attention_forward",
)


def rule_for(rules: dict[str, _Rule], *names: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that adds a function to the rules, for each of these names.

    It raises an error if a name has a rule already.
    """

    def register(rule: _Rule) -> _Rule:
        for name in names:
            if name in rules:
                raise ValueError(f"{name} already has a rule: register one for each name")
            rules[name] = rule
        return rule

    return register


def products(signature: OpSignature) -> int:
    """Return the MACs of the call in torchscan's count, but of complex numbers as of real ones."""
    return compute_cost(signature).cost.macs // real_products(signature.outputs[0])


def per_input(factor: int) -> OperatorRule:
    """Return the rule ``factor · numel(first input)``."""
    return lambda signature: factor * signature.inputs[0].numel


def per_output(factor: int) -> OperatorRule:
    """Return the rule ``factor · numel(first output)``."""
    return lambda signature: factor * signature.outputs[0].numel


def argument(signature: OpSignature, name: str) -> Any:
    """Return the argument that the operator's schema names so, or its default if left out."""
    for position, declared in enumerate(signature.op._schema.arguments):
        if declared.name != name:
            continue
        if position < len(signature.args):
            return signature.args[position]
        return signature.kwargs.get(name, declared.default_value)
    raise LookupError(f"{signature.op} has no argument {name}")


def by_operator(trace: Trace, rules: OperatorRules) -> list[int]:
    """Return the number of each operator call, 0 if it has no rule."""

    def apply(signature: OpSignature) -> int:
        name = signature.operator
        rule = rules.get(name) or rules.get(name.removesuffix("_"))
        return 0 if rule is None else rule(signature)

    return by_signature(trace, apply)


def by_signature(trace: Trace, rule: OperatorRule) -> list[int]:
    """Return the number of each operator call; the rule is applied once to each signature."""
    distinct = {id(op.signature): op.signature for op in trace.ops}
    figures = {key: rule(signature) for key, signature in distinct.items()}
    return [figures[id(op.signature)] for op in trace.ops]


@dataclass(frozen=True)
class CountedModule:
    """A module call, with the values that tools which count modules read."""

    trace: Trace
    call: ModuleCall
    #: the elements of its own parameters by their names
    parameters: Mapping[str, int]
    #: True if it owns no other module
    is_leaf: bool

    @property
    def type_name(self) -> str:
        """The name of its class."""
        return self.call.type_name

    @property
    def is_of_torch(self) -> bool:
        """True if torch defines the class of the module."""
        return self.call.type_module.startswith("torch.nn.modules.")

    @once
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors among its arguments, in their order."""
        return tuple(self.trace.tensors[index].spec for index in self.call.inputs)

    @once
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that it returned, in their order."""
        return tuple(self.trace.tensors[index].spec for index in self.call.outputs)

    @property
    def input(self) -> TensorSpec:
        """The first of its inputs."""
        return self.inputs[0]

    @property
    def output(self) -> TensorSpec:
        """The first of its outputs."""
        return self.outputs[0]

    @property
    def operators(self) -> tuple[OpSignature, ...]:
        """Its own operators: those that ran in it, but in no module that it called."""
        return tuple(self.trace.ops[index].signature for index in self.call.ops)

    def operator_among(self, names: Container[str]) -> OpSignature:
        """Return the first of its own operators that has one of these names."""
        for signature in self.operators:
            if signature.operator in names:
                return signature
        raise LookupError(f"{self.type_name} calls none of {names}")

    def operator_with(self, argument_name: str) -> OpSignature:
        """Return the first of its own operators that has an argument of that name."""
        for signature in self.operators:
            declared = signature.op._schema.arguments
            if any(each.name == argument_name for each in declared):
                return signature
        raise LookupError(f"no operator of {self.type_name} has an argument {argument_name}")


#: what a tool reports for one module call
ModuleRule = Callable[[CountedModule], int]


def elements_in(layer: CountedModule) -> int:
    """Return the number of a module that counts 1 per element of its first input."""
    return layer.input.numel


def elements_out(layer: CountedModule) -> int:
    """Return the number of a module that counts 1 per element of its first output."""
    return layer.output.numel


def of_class(rules: Mapping[str, ModuleRule]) -> ModuleRule:
    """Return a rule that applies those of torch's classes, and is 0 for all other classes."""

    def apply(layer: CountedModule) -> int:
        if not layer.is_of_torch or layer.type_name not in rules:
            return 0
        return rules[layer.type_name](layer)

    return apply


#: raised by a rule for a different class of the same name, for which the tool reports nothing
_ERRORS_OF_NAMESAKES = (LookupError, ValueError, ArithmeticError)


def by_module(trace: Trace, rule: ModuleRule) -> list[int]:
    """Return the number of each module call at the first of its own operators.

    A call without operators has nothing to count.
    """
    figures = [0] * len(trace.ops)
    parameters: dict[str, dict[str, int]] = {}
    for each in trace.parameters:
        if not each.is_buffer:
            parameters.setdefault(each.owner, {})[each.name] = each.numel

    owners = _owners(trace)
    for call in trace.modules:
        if not call.ops:
            continue
        own = parameters.get(call.path, {})
        layer = CountedModule(trace, call, own, is_leaf=call.path not in owners)
        with contextlib.suppress(*_ERRORS_OF_NAMESAKES):
            figures[call.ops[0]] += rule(layer)
    return figures


def _owners(trace: Trace) -> set[str]:
    """Return the paths of modules that own others with calls, parameters or buffers."""
    owned = {call.path for call in trace.modules}
    owned |= {each.owner for each in trace.parameters}
    found = set()
    for path in owned - {""}:
        while path:
            path = path.rpartition(".")[0]
            found.add(path)
    return found


@dataclass(frozen=True)
class Recurrence:
    """The sizes of a recurrent layer or cell."""

    hidden: int
    layers: int
    directions: int
    has_bias: bool


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrence(layer: CountedModule) -> Recurrence:
    """Read the sizes off the parameters: ``weight_ih`` is (gates · hidden, features of input)."""
    names = [name for name in layer.parameters if name.startswith("weight_ih")]
    reverse = [name for name in names if name.endswith("_reverse")]
    gates = GATES[layer.type_name.removesuffix("Cell")]
    has_bias = any(name.startswith("bias_ih") for name in layer.parameters)
    return Recurrence(
        hidden=layer.parameters[names[0]] // (gates * layer.input.shape[-1]),
        layers=len(names) - len(reverse),
        directions=2 if reverse else 1,
        has_bias=has_bias,
    )
