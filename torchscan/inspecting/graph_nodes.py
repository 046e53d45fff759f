"""Names, operands and saved values of autograd nodes, and their operators computed again."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.observing.readable_tensors import is_readable
from torchscan.torch_versions import without_torch_function, without_tracing

_SAVED = "_saved_"


def operator_of(name: str) -> str:
    """Return the operator that a node belongs to: ``aten.log`` of ``LogBackward0``."""
    stem = re.sub(r"Backward\d*$", "", name)
    if stem == name or "::" in name or not re.search(r"Backward\d+$", name):
        return name  # a function of the user's
    return f"aten.{_snake(stem)}"


def _snake(stem: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def number_of_node(node: Node) -> int:
    """Return the number that autograd has given to a node."""
    number: int = node._sequence_nr()
    return number


def check_readable(tensor: Tensor) -> NonFiniteCount:
    """Return the counts of a tensor's values, or those of finite ones if it cannot be read."""
    return check_values(tensor) if is_readable(tensor) else FINE


def saved_values_of(node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a node has saved and not freed."""
    for name in dir(node):
        if name.startswith(_SAVED):
            try:
                value = getattr(node, name)
            except RuntimeError:  # it is freed
                continue
            is_negative = type(value) is int and value >= 2**63  # torch shows it without its sign
            yield name.removeprefix(_SAVED), value - 2**64 if is_negative else value


def operand_names_of(node: Node) -> tuple[str, ...]:
    """Return the names of operands in the order of the nodes that made them."""
    name = node.name()
    if name.startswith(("Mul", "Div", "Pow", "Xlogy", "Atan2", "Fmod", "Remainder")):
        return ("self", "exponent" if name.startswith("Pow") else "other")
    return ("self",)


def operands_in(node: Node, saved: dict[str, Any]) -> list[Tensor]:
    """Return the operands that a node has saved."""
    values = [saved.get(name) for name in operand_names_of(node)]
    return [each for each in values if isinstance(each, Tensor)]


def compute_again(node: Node, saved: dict[str, Any]) -> Tensor | None:
    """Return the result of a node, computed again from what it keeps, or None if it cannot be."""
    stem = re.sub(r"Backward\d+$", "", node.name())
    if stem == "Mean" and saved.get("self_sym_numel") == 0:
        return torch.tensor(math.nan)
    divisor = saved.get("other")
    if stem == "Div" and isinstance(divisor, Tensor) and not isinstance(saved.get("self"), Tensor):
        return _divide_by(divisor)
    packet = getattr(torch.ops.aten, _snake(stem), None)
    if packet is None or not saved:
        return None
    for overload in packet.overloads():
        arguments = _arguments_for(getattr(packet, overload)._schema.arguments, saved)
        if arguments is not None:
            with contextlib.suppress(Exception):  # the node may keep something else under this name
                with without_tracing(), without_torch_function():
                    made = getattr(packet, overload)(**arguments)
                first = made[0] if isinstance(made, tuple) else made
                return first if isinstance(first, Tensor) else None
    return None


def _divide_by(other: Tensor) -> Tensor | None:
    """Return a quotient that is not finite with any numerator, or None if 0 is not in ``other``."""
    with without_tracing():
        return 1 / other if bool((other == 0).any()) else None


def _arguments_for(declared: Sequence[Any], saved: dict[str, Any]) -> dict[str, Any] | None:
    arguments = {}
    for each in declared:
        value = saved.get(each.name)
        is_missing = value is None and isinstance(each.type, torch.TensorType)
        if each.name in saved and not is_missing:
            arguments[each.name] = value
        elif not each.has_default_value():
            return None
    has_tensor = any(isinstance(value, Tensor) for value in arguments.values())
    return arguments if has_tensor else None
