"""The graph between models and a loss, seen from the tensor that ``backward()`` is called on.

It shows what a script computes outside of modules. Operators are known from the nodes of the graph, which keep some of their
operands and results until the backward pass. Lines are known because torch's anomaly mode notes them: it is on from the result
of a model to the loss.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from torchscan.inspecting.finiteness import (
    FINE,
    NonFiniteCount,
    check_values,
    is_on_device,
    max_magnitudes_of,
)
from torchscan.observing.readable_tensors import is_readable
from torchscan.torch_versions import without_torch_function, without_tracing

#: nodes that are followed
_MAX_NODES = 256
_SAVED = "_saved_"
#: results that nodes keep
_RESULTS = ("result", "output", "result0", "output0")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_TORCH = str(PurePath(torch.__file__).parent)
_OURS = str(PurePath(__file__).parent.parent)
#: nodes that fill in values from outside, which are masks
_FILLS = frozenset(
    {
        "MaskedFillBackward0",
        "MaskedFillBackward1",
        "WhereBackward0",
        "FillBackward0",
        "ScatterBackward1",
    }
)
#: nodes whose result is NaN only if an operand is not finite
_SUMS = ("AddBackward", "SubBackward", "RsubBackward")
#: nodes whose result has the values of their operand, in another type or shape
_PASS_ON = (
    *("ToCopyBackward", "CloneBackward", "AliasBackward", "ViewBackward", "UnsafeViewBackward"),
    *("ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward", "TransposeBackward"),
    *("PermuteBackward", "TBackward", "SelectBackward", "SliceBackward", "ExpandBackward"),
)
#: gradients of a CPU that are this small are kept instead of checked
_SMALL = 2**16


class LossGraph:
    """The nodes between roots' results and the tensor that a backward pass starts at, in the order of their creation."""

    def __init__(self, start: Iterable[Tensor], is_inside: Callable[[int], bool]) -> None:
        """Collect the nodes behind ``start``, up to those whose number ``is_inside`` a call of a module with parameters."""
        nodes: dict[Node, None] = {}
        #: numbers of nodes that are inside of calls, where the search has ended
        self.reached: list[int] = []
        waiting = [each.grad_fn for each in start]
        while waiting and len(nodes) < _MAX_NODES:
            node = waiting.pop()
            if node is None or node in nodes or hasattr(node, "variable"):
                continue
            if is_inside(node._sequence_nr()):
                self.reached.append(node._sequence_nr())
                continue
            nodes[node] = None
            waiting.extend(following for following, _ in node.next_functions)
        #: True if there are more nodes than are followed
        self.is_truncated = bool(waiting)
        self.nodes = sorted(nodes, key=_number_of)
        self.names = tuple(each.name() for each in self.nodes)
        self._index = {node: index for index, node in enumerate(self.nodes)}
        #: gradients that each node computed: kept, or their norms, or how they looked
        self._gradients: dict[int, NonFiniteCount | list[Tensor]] = {}
        self._handles: list[RemovableHandle] = []
        self._operands_of: dict[Node, Tensor] | None = None

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def number(self, index: int) -> int:
        """Return the number that torch gave a node."""
        return _number_of(self.nodes[index])

    def line(self, index: int) -> str | None:
        """Return the line that created a node."""
        return _line_of(self.nodes[index]) if self.nodes else None

    # -- forward -------------------------------------------------------------------------------------------------------

    def source(self, *, nan: bool) -> int | None:
        """Return the index of the first node whose result is NaN (or else infinite), or None.

        Results are known as far as nodes keep results and operands. An infinity that becomes NaN is the source of it.
        """
        first_inf = None
        for index, node in enumerate(self.nodes):
            look = self._result_of(node)
            if look is None or look is FINE:
                continue
            if node.name() in _FILLS:
                if not look.nan:
                    continue
            elif not look.nan and first_inf is None and not self._has_bad_operand(node):
                first_inf = index
            if look.nan or not nan:
                return index if first_inf is None else first_inf
        return first_inf

    def becomes_nan(self, index: int) -> int | None:
        """Return the node after ``index`` that makes NaN of infinities."""
        for other in range(index, len(self.nodes)):
            look = self._result_of(self.nodes[other])
            if look is not None and look.nan:
                return other
        return None

    def operands(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the operands that the node keeps."""
        for name, value in _saved(self.nodes[index]):
            if name not in _RESULTS and isinstance(value, Tensor) and is_readable(value):
                yield name, value

    def first_look(self, index: int) -> NonFiniteCount:
        """Return how the result of a node looks."""
        return self._result_of(self.nodes[index]) or FINE

    def size(self, index: int) -> int:
        """Return the number of values of a node's result, or 0 if it is not known."""
        shapes = getattr(self.nodes[index], "_input_metadata", ())
        return sum(math.prod(each.shape) for each in shapes)

    def has_bad_constant(self, index: int) -> bool:
        """Return whether an operand without a gradient must have been NaN, given that the results of models are finite.

        A sum or difference of finite values is never NaN.
        """
        node = self.nodes[index]
        if not node.name().startswith(_SUMS) or not self.first_look(index).nan:
            return False
        operands = [following for following, _ in node.next_functions]
        for operand in operands:
            while operand in self._index and operand.name().startswith(_PASS_ON):
                operand = operand.next_functions[0][0]
            if operand in self._index:  # something is computed from the result of a model
                return False
        return None in operands

    def _result_of(self, node: Node) -> NonFiniteCount | None:
        """Return how its result looks, or None if nothing tells."""
        saved = dict(_saved(node))
        for name in _RESULTS:
            if isinstance(saved.get(name), Tensor):
                return _look(saved[name])
        operand = self._operands().get(node)
        if operand is not None:
            return _look(operand)
        again = _computed(node, saved)
        if again is not None:
            return _look(again)
        factors = [
            saved[name] for name in _operand_names(node) if isinstance(saved.get(name), Tensor)
        ]
        looks = [look for look in map(_look, factors) if look.nan]
        return looks[0] if looks else None

    def _operands(self) -> dict[Node, Tensor]:
        """Return the results of nodes that later nodes keep as operands."""
        if self._operands_of is None:
            self._operands_of = {}
            for node in self.nodes:
                saved = dict(_saved(node))
                for (following, _), name in zip(
                    node.next_functions, _operand_names(node), strict=False
                ):
                    if following is not None and isinstance(saved.get(name), Tensor):
                        self._operands_of.setdefault(following, saved[name])
        return self._operands_of

    def _has_bad_operand(self, node: Node) -> bool:
        saved = dict(_saved(node))
        values = [
            saved[name] for name in _operand_names(node) if isinstance(saved.get(name), Tensor)
        ]
        return any(_look(each) is not FINE for each in values)

    # -- backward ------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Record the gradients that the nodes compute."""
        for index, node in enumerate(self.nodes):
            handle = node.register_hook(_Noted(self._gradients, index))
            self._handles.append(handle)

    def gradient_source(self) -> tuple[int, NonFiniteCount] | None:
        """Return the first node, in the order of the backward pass, whose gradient is not finite."""
        for index in reversed(range(len(self.nodes))):
            noted = self._gradients.get(index, FINE)
            look = noted if isinstance(noted, NonFiniteCount) else sum(map(_look, noted), FINE)
            if not look.is_fine:
                return index, look
        return None

    def close(self) -> None:
        """Release the gradients, and take the hooks away: a graph that is kept is followed again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._gradients.clear()


class _Noted:
    """A hook on a node that keeps small gradients and checks large ones.

    On a CUDA device it neither waits for a check nor keeps a gradient: it keeps the largest
    magnitude, which the device computes.
    """

    __slots__ = ("_gradients", "_index")

    def __init__(self, gradients: dict[int, NonFiniteCount | list[Tensor]], index: int) -> None:
        self._gradients = gradients
        self._index = index

    def __call__(self, made: Sequence[Tensor | None], _given: object) -> None:
        tensors = [each for each in made if each is not None and is_readable(each)]
        if any(is_on_device(each) for each in tensors):
            self._gradients[self._index] = max_magnitudes_of(tensors)
        elif sum(each.numel() for each in tensors) <= _SMALL:
            self._gradients[self._index] = tensors
        else:
            self._gradients[self._index] = sum(map(_look, tensors), FINE)


def operator_of(name: str) -> str:
    """Return the operator that a node belongs to: ``aten.log`` of ``LogBackward0``."""
    stem = re.sub(r"Backward\d*$", "", name)
    if stem == name or "::" in name or not re.search(r"Backward\d+$", name):
        return name  # a function of the user's
    return f"aten.{_snake(stem)}"


def _snake(stem: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def _number_of(node: Node) -> int:
    number: int = node._sequence_nr()
    return number


def _look(tensor: Tensor) -> NonFiniteCount:
    return check_values(tensor) if is_readable(tensor) else FINE


def _saved(node: Node) -> Iterator[tuple[str, Any]]:
    for name in dir(node):
        if name.startswith(_SAVED):
            try:
                value = getattr(node, name)
            except RuntimeError:  # it is freed
                continue
            is_negative = type(value) is int and value >= 2**63  # torch shows it without its sign
            yield name.removeprefix(_SAVED), value - 2**64 if is_negative else value


def _operand_names(node: Node) -> tuple[str, ...]:
    """Return the names of operands in the order of the nodes that made them."""
    name = node.name()
    if name.startswith(("Mul", "Div", "Pow", "Xlogy", "Atan2", "Fmod", "Remainder")):
        return ("self", "exponent" if name.startswith("Pow") else "other")
    return ("self",)


def _computed(node: Node, saved: dict[str, Any]) -> Tensor | None:
    """Compute the result of a node again from what it keeps, or return None if that is not enough."""
    stem = re.sub(r"Backward\d+$", "", node.name())
    if stem == "Mean" and saved.get("self_sym_numel") == 0:
        return torch.tensor(math.nan)
    if (
        stem == "Div"
        and isinstance(saved.get("other"), Tensor)
        and not isinstance(saved.get("self"), Tensor)
    ):
        return _quotient_by(saved["other"])
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


def _quotient_by(other: Tensor) -> Tensor | None:
    """Return what no numerator saves from being infinite or NaN."""
    with without_tracing():
        return 1 / other if bool((other == 0).any()) else None


def _arguments_for(declared: Sequence[Any], saved: dict[str, Any]) -> dict[str, Any] | None:
    arguments = {}
    for each in declared:
        if each.name in saved and (
            saved[each.name] is not None or not isinstance(each.type, torch.TensorType)
        ):
            arguments[each.name] = saved[each.name]
        elif not each.has_default_value():
            return None
    has_tensor = any(isinstance(value, Tensor) for value in arguments.values())
    return arguments if has_tensor else None


def _line_of(node: Node) -> str | None:
    """Return ``train.py:12 (in loss)``: as the guard noted it, or as torch did, if the user has anomaly mode on."""
    metadata: Any = node.metadata
    for entry in reversed(metadata.get("traceback_") or []):
        frame = _FRAME.search(entry)
        if frame is None:
            return str(entry)
        if not frame["file"].startswith((_TORCH, _OURS)):
            return f"{PurePath(frame['file']).name}:{frame['line']} (in {frame['function']})"
    return None
