"""The graph between models and a loss, seen from the tensor that ``backward()`` is called on.

It shows what a script computes outside of modules. Operators are known from the nodes of the graph,
which keep some of their operands and results until the backward pass. Lines are known because
torch's anomaly mode notes them: it is on from the result of a model to the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import Node
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from torchscan.inspecting.finiteness import FINE, NonFiniteCount, is_on_device, max_magnitudes_of
from torchscan.inspecting.graph_nodes import (
    check_readable,
    compute_again,
    number_of_node,
    operand_names_of,
    operands_in,
    saved_values_of,
)
from torchscan.inspecting.line_notes import line_of
from torchscan.observing.readable_tensors import is_readable

#: nodes that are followed
_MAX_NODES = 256
#: results that nodes keep
_RESULTS = ("result", "output", "result0", "output0")
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
        self.nodes = sorted(nodes, key=number_of_node)
        self.names = tuple(each.name() for each in self.nodes)
        self._index = {node: index for index, node in enumerate(self.nodes)}
        #: gradients that each node computed: themselves, their norms, or their counts
        self._gradients: dict[int, NonFiniteCount | list[Tensor]] = {}
        self._handles: list[RemovableHandle] = []
        self._operands_of: dict[Node, Tensor] | None = None

    # -- nodes -------------------------------------------------------------------------------------

    def number(self, index: int) -> int:
        """Return the number that torch gave a node."""
        return number_of_node(self.nodes[index])

    def line(self, index: int) -> str | None:
        """Return the line that created a node."""
        return line_of(self.nodes[index]) if self.nodes else None

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
                operands = operands_in(node, dict(saved_values_of(node)))
                if all(check_readable(each) is FINE for each in operands):
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
        for name, value in saved_values_of(self.nodes[index]):
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
        saved = dict(saved_values_of(node))
        for name in _RESULTS:
            if isinstance(saved.get(name), Tensor):
                return check_readable(saved[name])
        operand = self._find_operands().get(node)
        if operand is not None:
            return check_readable(operand)
        again = compute_again(node, saved)
        if again is not None:
            return check_readable(again)
        for factor in operands_in(node, saved):
            counts = check_readable(factor)
            if counts.nan:
                return counts
        return FINE

    def _find_operands(self) -> dict[Node, Tensor]:
        """Return the results of nodes that later nodes keep as operands."""
        if self._operands_of is None:
            self._operands_of = {}
            for node in self.nodes:
                saved = dict(saved_values_of(node))
                names = operand_names_of(node)
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
            counts = (
                noted
                if isinstance(noted, NonFiniteCount)
                else sum(map(check_readable, noted), FINE)
            )
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
            self._gradients[self._index] = sum(map(check_readable, tensors), FINE)
