"""The graph between models and a loss, seen from the tensor that ``backward()`` is called on.

It shows what a script computes outside of modules. Operators are known from the nodes of the graph,
which keep some of their operands and results until the backward pass. Lines are known because
torch's anomaly mode notes them: it is on from the result of a model to the loss.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from torchscan.inspecting.finiteness import (
    FINE,
    NonFiniteCount,
    check_values,
    is_on_device,
    max_magnitudes_of,
)
from torchscan.observing.readable_tensors import is_readable
from torchscan.observing.wrapped_functions import wrap_function
from torchscan.recording.places import place_of_user
from torchscan.torch_versions import (
    FORMATS_STACK,
    anomaly_flags,
    set_anomaly_flags,
    without_torch_function,
    without_tracing,
)

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

#: undoes the notes of lines, while they are on
_undo_notes: Callable[[], None] | None = None
#: True if the anomaly mode, were it on, would check for NaN; notes do not
_checks_nan = True
_ends_in_children = False


class LossGraph:
    """The nodes between roots' results and the tensor that a backward pass starts at.

    They are in the order of their creation.
    """

    def __init__(self, start: Iterable[Tensor], is_inside: Callable[[int], bool]) -> None:
        """Collect the nodes behind ``start``.

        The search ends at nodes whose number ``is_inside`` a call of a module with parameters.
        """
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
        #: gradients that each node computed: themselves, their norms, or their counts
        self._gradients: dict[int, NonFiniteCount | list[Tensor]] = {}
        self._handles: list[RemovableHandle] = []
        self._operands_of: dict[Node, Tensor] | None = None

    # -- nodes -------------------------------------------------------------------------------------

    def number(self, index: int) -> int:
        """Return the number that torch gave a node."""
        return _number_of(self.nodes[index])

    def line(self, index: int) -> str | None:
        """Return the line that created a node."""
        return _line_of(self.nodes[index]) if self.nodes else None

    # -- forward --------------------------------------------------------------------------------

    def find_source(self, *, nan: bool) -> int | None:
        """Return the index of the first node whose result is NaN (or else infinite), or None.

        Results are known as far as nodes keep results and operands. An infinity that becomes NaN is
        the source of it.
        """
        first_inf = None
        for index, node in enumerate(self.nodes):
            counts = self.check_result(index)
            if counts is FINE:
                continue
            if node.name() in _FILLS:
                if not counts.nan:
                    continue
            elif not counts.nan and first_inf is None:
                operands = _operands_in(node, dict(_saved(node)))
                if all(_check(each) is FINE for each in operands):
                    first_inf = index
            if counts.nan or not nan:
                return index if first_inf is None else first_inf
        return first_inf

    def find_nan_after(self, index: int) -> int | None:
        """Return the node after ``index`` that makes NaN of infinities."""
        for other in range(index, len(self.nodes)):
            if self.check_result(other).nan:
                return other
        return None

    def operands(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the operands that the node keeps."""
        for name, value in _saved(self.nodes[index]):
            if name not in _RESULTS and isinstance(value, Tensor) and is_readable(value):
                yield name, value

    def size(self, index: int) -> int:
        """Return the number of values of a node's result, or 0 if it is not known."""
        shapes = getattr(self.nodes[index], "_input_metadata", ())
        return sum(math.prod(each.shape) for each in shapes)

    def has_bad_constant(self, index: int) -> bool:
        """Return whether an operand without a gradient must have been NaN.

        The results of models are known to be finite, and a sum or difference of finite values is
        never NaN.
        """
        node = self.nodes[index]
        if not node.name().startswith(_SUMS) or not self.check_result(index).nan:
            return False
        operands = [following for following, _ in node.next_functions]
        for operand in operands:
            while operand in self._index and operand.name().startswith(_PASS_ON):
                operand = operand.next_functions[0][0]
            if operand in self._index:  # something is computed from the result of a model
                return False
        return None in operands

    def check_result(self, index: int) -> NonFiniteCount:
        """Return the counts of a node's result, as far as it or its operands are kept."""
        node = self.nodes[index]
        saved = dict(_saved(node))
        for name in _RESULTS:
            if isinstance(saved.get(name), Tensor):
                return _check(saved[name])
        operand = self._find_operands().get(node)
        if operand is not None:
            return _check(operand)
        again = _compute(node, saved)
        if again is not None:
            return _check(again)
        for factor in _operands_in(node, saved):
            counts = _check(factor)
            if counts.nan:
                return counts
        return FINE

    def _find_operands(self) -> dict[Node, Tensor]:
        """Return the results of nodes that later nodes keep as operands."""
        if self._operands_of is None:
            self._operands_of = {}
            for node in self.nodes:
                saved = dict(_saved(node))
                names = _operand_names(node)
                for (following, _), name in zip(node.next_functions, names, strict=False):
                    if following is not None and isinstance(saved.get(name), Tensor):
                        self._operands_of.setdefault(following, saved[name])
        return self._operands_of

    # -- backward -------------------------------------------------------------------------------

    def follow(self) -> None:
        """Record the gradients that the nodes compute."""
        for index, node in enumerate(self.nodes):
            handle = node.register_hook(_NodeHook(self._gradients, index))
            self._handles.append(handle)

    def find_gradient_source(self) -> tuple[int, NonFiniteCount] | None:
        """Return the first node of the backward pass with a non-finite gradient, and its counts."""
        for index in reversed(range(len(self.nodes))):
            noted = self._gradients.get(index, FINE)
            counts = noted if isinstance(noted, NonFiniteCount) else sum(map(_check, noted), FINE)
            if not counts.is_fine:
                return index, counts
        return None

    def close(self) -> None:
        """Release the gradients, and remove the hooks: a graph that is kept is followed again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._gradients.clear()


class _NodeHook:
    """A hook on a node that keeps small gradients and checks large ones.

    On a CUDA device it neither waits for a check nor keeps a gradient: it keeps the largest
    magnitude, which the device computes.
    """

    __slots__ = ("_gradients", "_index")

    def __init__(self, gradients: dict[int, NonFiniteCount | list[Tensor]], index: int) -> None:
        self._gradients = gradients
        self._index = index

    def __call__(self, made: Sequence[Tensor | None], _given: object) -> None:
        if is_compiling():
            return
        tensors = [each for each in made if each is not None and is_readable(each)]
        if any(is_on_device(each) for each in tensors):
            self._gradients[self._index] = max_magnitudes_of(tensors)
        elif sum(each.numel() for each in tensors) <= _SMALL:
            self._gradients[self._index] = tensors
        else:
            self._gradients[self._index] = sum(map(_check, tensors), FINE)


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


def _check(tensor: Tensor) -> NonFiniteCount:
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


def _operands_in(node: Node, saved: dict[str, Any]) -> list[Tensor]:
    """Return the operands that a node has saved."""
    values = [saved.get(name) for name in _operand_names(node)]
    return [each for each in values if isinstance(each, Tensor)]


def _compute(node: Node, saved: dict[str, Any]) -> Tensor | None:
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


def _line_of(node: Node) -> str | None:
    """Return ``train.py:12 (in loss)``, as :class:`LineNotes` noted it.

    If the user has anomaly mode on, torch has noted the stack, of which it is the innermost line.
    """
    metadata: Any = node.metadata
    for entry in reversed(metadata.get("traceback_") or []):
        frame = _FRAME.search(entry)
        if frame is None:
            return str(entry)
        if not frame["file"].startswith((_TORCH, _OURS)):
            return f"{PurePath(frame['file']).name}:{frame['line']} (in {frame['function']})"
    return None


# -- lines ---------------------------------------------------------------------------------------


class LineNotes:
    """Notes of the user's lines in the nodes of a graph: anomaly mode, with one line for a stack.

    The mode is one for the process. While it is on for notes, torch's functions report it as off,
    and setting it ends the notes. An anomaly mode of the user's is left alone.
    """

    def __init__(self) -> None:
        self._wrapped: list[Callable[[], None]] = []

    def start(self) -> None:
        """Hide the notes from functions that return or set the mode."""
        global _ends_in_children
        if not _ends_in_children:
            _ends_in_children = True
            os.register_at_fork(after_in_child=_end_notes)

        def set_mode(set_mode: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            _end_notes()
            set_mode(*args, **kwargs)

        def is_mode_on(is_enabled: Callable[[], bool]) -> bool:
            return _undo_notes is None and is_enabled()

        def is_nan_checked(is_enabled: Callable[[], bool]) -> bool:
            return is_enabled() if _undo_notes is None else _checks_nan

        names = vars(torch)
        replacements: dict[str, Callable[..., Any]] = {
            "set_anomaly_enabled": set_mode,
            "is_anomaly_enabled": is_mode_on,
            "is_anomaly_check_nan_enabled": is_nan_checked,
        }
        self._wrapped = [
            wrap_function(names, name, function, names.__setitem__)
            for name, function in replacements.items()
        ]

    def finish(self) -> None:
        """End the notes, and restore torch's functions."""
        _end_notes()
        for undo in self._wrapped:
            undo()
        self._wrapped.clear()

    def switch_on(self) -> None:
        """Have torch note the line that creates each node."""
        global _undo_notes, _checks_nan
        is_on, checks_nan = anomaly_flags()
        if _undo_notes is None and self._wrapped and not is_on:
            names, name = FORMATS_STACK
            _undo_notes = wrap_function(names, name, _format_stack, names.__setitem__)
            _checks_nan = checks_nan
            set_anomaly_flags(True, False)

    def switch_off(self) -> None:
        """Restore torch's formatter and mode."""
        _end_notes()


def _end_notes() -> None:
    global _undo_notes
    undo, _undo_notes = _undo_notes, None
    if undo is not None:
        set_anomaly_flags(False, _checks_nan)
        undo()


def _format_stack(_format: Callable[[], list[str]]) -> list[str]:
    """Return the user's line, in place of torch's list of all frames."""
    place = place_of_user()
    return [] if place is None else [place]
