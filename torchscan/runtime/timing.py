"""How long module calls take on the host: forward from start to end, backward node by node.

A node of the backward pass belongs to the call that made it, so a module's backward time is that of the nodes made in it. What
no module made (the loss, sums of gradients, autograd itself) is the rest, and is never spread over modules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.call_tree import Call, CallTree, is_in_backward_pass

#: in place of a call: what stores gradients of parameters and inputs
LEAVES = -1


class StepTimes:
    """The times of one step, in nanoseconds."""

    def __init__(self) -> None:
        #: by index of a call
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        #: what nodes took, by the call that made them
        self.backward: dict[int, int] = defaultdict(int)
        #: what checkpoints took to compute again, by index of the call that was run again
        self.again: set[int] = set()
        self._first_node = self._last_node = 0

    @property
    def has_begun_backward(self) -> bool:
        """Whether a node has run."""
        return bool(self._first_node)

    @property
    def backward_span(self) -> int:
        """From the start of the first node to the end of the last."""
        return self._last_node - self._first_node

    def note_start(self, call: Call) -> None:
        """A module has started."""
        if is_in_backward_pass():
            self.again.add(call.index)
        self.started[call.index] = perf_counter_ns()

    def note_end(self, call: Call) -> None:
        """A module has ended."""
        self.ended[call.index] = perf_counter_ns()

    def note_node(self, call: int, start: int, end: int) -> None:
        """A node has run."""
        self._first_node = self._first_node or start
        self._last_node = end
        self.backward[call] += end - start


class _NodeTimer:
    """Times the runs of one node. It does not hold the node, which holds it."""

    __slots__ = ("_call", "_start", "_times")

    def __init__(self, times: StepTimes, call: int) -> None:
        self._times = times
        self._call = call
        self._start = 0

    def before(self, *_gradients: Any) -> None:
        """The node starts."""
        self._start = perf_counter_ns()

    def after(self, *_gradients: Any) -> None:
        """The node has ended."""
        self._times.note_node(self._call, self._start, perf_counter_ns())


class NodeWatch:
    """Times the nodes that compute the gradients of the results of one step."""

    def __init__(self, tree: CallTree, times: StepTimes) -> None:
        self._tree = tree
        self._times = times
        #: by identity of what gradients are stored for: its node outlives the graph where somebody holds it, as DDP does
        self._leaves: dict[int, tuple[RemovableHandle, RemovableHandle]] = {}

    def watch(self, result: object, oldest: int) -> bool:
        """Time the nodes behind a result that are numbered from ``oldest`` on. Whether there are any."""
        found = False
        for node in _nodes_behind(result, oldest):
            found = True
            if hasattr(node, "variable"):
                self._watch_leaf(node)
            else:
                owner = self._tree.owner_of(node)
                self._time(node, LEAVES if owner is None else owner.index)
        return found

    def forget_leaves(self) -> None:
        """The step is over."""
        for handles in self._leaves.values():
            for handle in handles:
                handle.remove()
        self._leaves.clear()

    def _watch_leaf(self, node: Any) -> None:
        key = id(node.variable)
        if key not in self._leaves:
            self._leaves[key] = self._time(node, LEAVES)

    def _time(self, node: Node, call: int) -> tuple[RemovableHandle, RemovableHandle]:
        timer = _NodeTimer(self._times, call)
        return node.register_prehook(timer.before), node.register_hook(timer.after)


def _nodes_behind(result: object, oldest: int) -> Iterator[Node]:
    """Each once; what is older was made in an earlier pass, and watched then."""
    seen: set[Node] = set()
    waiting = [tensor.grad_fn for tensor in tensors_in(result)]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen and node._sequence_nr() >= oldest:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
            yield node
