"""Building blocks of the rules of other tools: a number per operator call or module call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from torchscan.once import once
from torchscan.ops import compute_cost
from torchscan.ops.matmul import real_products
from torchscan.trace.events import ModuleCall, OpSignature, TensorSpec
from torchscan.trace.trace import Trace

#: what a tool reports for one operator call
OperatorRule = Callable[[OpSignature], int]
#: by the name of the operator without its overload; an in-place operator goes by the name of its functional counterpart
OperatorRules = Mapping[str, OperatorRule]

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


def products(signature: OpSignature) -> int:
    """The multiply-accumulates of the call as torchscan counts them, but complex numbers are multiplied like real ones."""
    return compute_cost(signature).cost.macs // real_products(signature.outputs[0])


def per_input(factor: int) -> OperatorRule:
    """A rule: ``factor · numel(first input)``."""
    return lambda signature: factor * signature.inputs[0].numel


def per_output(factor: int) -> OperatorRule:
    """A rule: ``factor · numel(first output)``."""
    return lambda signature: factor * signature.outputs[0].numel


def argument(signature: OpSignature, name: str) -> Any:
    """The value of an argument by the name that the operator's schema gives it; its default where it was left out."""
    for position, declared in enumerate(signature.op._schema.arguments):
        if declared.name == name:
            if position < len(signature.args):
                return signature.args[position]
            return signature.kwargs.get(name, declared.default_value)
    raise LookupError(f"{signature.op} has no argument {name}")


def by_operator(trace: Trace, rules: OperatorRules) -> list[int]:
    """The number of each operator call by itself. Calls with the same signature have the same number."""
    distinct = {id(op.signature): op.signature for op in trace.ops}
    figures = {key: figure_of(signature, rules) for key, signature in distinct.items()}
    return [figures[id(op.signature)] for op in trace.ops]


def figure_of(signature: OpSignature, rules: OperatorRules) -> int:
    """The number of one operator call; zero without a rule."""
    name = signature.operator
    rule = rules.get(name) or rules.get(name.removesuffix("_"))
    return 0 if rule is None else rule(signature)


@dataclass(frozen=True)
class CountedModule:
    """A module call, with what tools that count modules ask about it."""

    trace: Trace
    call: ModuleCall
    #: the elements of its own parameters by their names
    parameters: Mapping[str, int]
    #: whether it owns no other module
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
    def operators(self) -> tuple[OpSignature, ...]:
        """Its own operators: those that ran in it, but in no module that it called."""
        return tuple(self.trace.ops[index].signature for index in self.call.ops)

    def operator_among(self, names: Container[str]) -> OpSignature:
        """The first of its own operators that has one of these names."""
        for signature in self.operators:
            if signature.operator in names:
                return signature
        raise LookupError(f"{self.type_name} calls none of {names}")

    def operator_with(self, argument_name: str) -> OpSignature:
        """The first of its own operators that has an argument of that name."""
        for signature in self.operators:
            if any(each.name == argument_name for each in signature.op._schema.arguments):
                return signature
        raise LookupError(f"no operator of {self.type_name} has an argument {argument_name}")


#: what a tool reports for one module call
ModuleRule = Callable[[CountedModule], int]


def elements_in(layer: CountedModule) -> int:
    """A rule: 1 per element of the first input."""
    return layer.inputs[0].numel


def elements_out(layer: CountedModule) -> int:
    """A rule: 1 per element of the first output."""
    return layer.outputs[0].numel


def of_class(rules: Mapping[str, ModuleRule]) -> ModuleRule:
    """The rule of rules by the name of a class of torch's; zero without one, and for other classes of that name."""
    return lambda layer: (
        rules[layer.type_name](layer) if layer.is_of_torch and layer.type_name in rules else 0
    )


#: what a rule stumbles over in a mere namesake of the class that it is about, for which the tool reports nothing
_MADE_OTHERWISE = (LookupError, ValueError, ArithmeticError)


def by_module(trace: Trace, rule: ModuleRule) -> list[int]:
    """The figure of each module call, given to the first of its own operators; a call without any has nothing to count."""
    figures = [0] * len(trace.ops)
    parameters: dict[str, dict[str, int]] = {}
    for each in trace.parameters:
        if not each.is_buffer:
            parameters.setdefault(each.owner, {})[each.name] = each.numel
    owners = _owners(trace)
    for call in trace.modules:
        if call.ops:
            layer = CountedModule(
                trace, call, parameters.get(call.path, {}), call.path not in owners
            )
            with contextlib.suppress(*_MADE_OTHERWISE):
                figures[call.ops[0]] += rule(layer)
    return figures


def _owners(trace: Trace) -> set[str]:
    """The paths of modules that own other modules, as far as those were called or have parameters or buffers."""
    owned = {call.path for call in trace.modules} | {each.owner for each in trace.parameters}
    found = set()
    for path in owned - {""}:
        while path:
            path = path.rpartition(".")[0]
            found.add(path)
    return found


@dataclass(frozen=True)
class Recurrence:
    """The sizes of a recurrent layer or cell: a hidden state of ``hidden`` units behind ``gates`` gates."""

    hidden: int
    layers: int
    directions: int
    has_bias: bool


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrence(layer: CountedModule) -> Recurrence:
    """Read off the parameters: the first ``weight_ih`` is (gates · hidden, features of the input)."""
    names = [name for name in layer.parameters if name.startswith("weight_ih")]
    reverse = [name for name in names if name.endswith("_reverse")]
    gates = GATES[layer.type_name.removesuffix("Cell")]
    return Recurrence(
        hidden=layer.parameters[names[0]] // (gates * layer.inputs[0].shape[-1]),
        layers=len(names) - len(reverse),
        directions=2 if reverse else 1,
        has_bias=any(name.startswith("bias_ih") for name in layer.parameters),
    )
