"""How long module calls take on the host: forward from start to end, backward node by node.

A node of the backward pass belongs to the call that made it, so a module's backward time is that of the nodes made in it. What
no module made (the loss, sums of gradients, autograd itself) is the rest, and is never spread over modules.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.call_tree import Call, CallTree, is_in_backward_pass
from torchscan.runtime.values import StepValues, moves

#: in place of a call: what stores gradients of parameters and inputs
LEAVES = -1
Gradients = tuple[Tensor | None, ...]


class StepTimes:
    """The times of one step, in nanoseconds."""

    def __init__(self) -> None:
        #: by index of a call
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        #: what nodes took, by the call that made them
        self.backward: dict[int, int] = defaultdict(int)
        #: of all nodes together
        self.in_nodes = 0
        #: what checkpoints took to compute again, by index of the call that was run again
        self.again: set[int] = set()
        self._first_node = self._last_node = 0
        #: nanoseconds that were spent on looking, which are nobody's
        self._looking = 0

    def now(self) -> int:
        """The time, on a clock that stands still while anything is looked at."""
        return perf_counter_ns() - self._looking

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """In which something is looked at."""
        start = perf_counter_ns()
        try:
            yield
        finally:
            self._looking += perf_counter_ns() - start

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
        self.started[call.index] = self.now()

    def note_end(self, call: Call) -> None:
        """A module has ended."""
        self.ended[call.index] = self.now()

    def note_node(self, call: int, start: int, inside: int) -> None:
        """A node has run, and ``inside`` it others, of a backward pass that it has started itself, as a checkpoint may."""
        end = self.now()
        self._first_node = self._first_node or start
        self._last_node = max(self._last_node, end)
        self.backward[call] += end - start - inside
        self.in_nodes += end - start - inside


class _NodeTimer:
    """Follows the runs of one node. It does not hold the node, which holds it."""

    __slots__ = ("_before", "_call", "_owner", "_start", "_times", "_values")

    def __init__(self, times: StepTimes, owner: Call | None, values: StepValues | None) -> None:
        self._times = times
        self._owner = owner
        self._call = LEAVES if owner is None else owner.index
        #: None: there is nothing to see
        self._values = values
        self._start = self._before = 0

    def before(self, *_gradients: Any) -> None:
        """The node starts."""
        self._before = self._times.in_nodes
        self._start = self._times.now()

    def after(self, made: Gradients, given: Gradients) -> None:
        """The node has ended."""
        self._times.note_node(self._call, self._start, self._times.in_nodes - self._before)
        if self._values is not None:
            with self._times.standing_still():
                self._values.note_node(self._owner, made, given)


class NodeWatch:
    """Follows the nodes that compute the gradients of the results of one step."""

    def __init__(self, tree: CallTree, times: StepTimes, values: StepValues) -> None:
        self._tree = tree
        self._times = times
        self._values = values
        #: by identity of what gradients are stored for: its node outlives the graph where somebody holds it, as DDP does
        self._leaves: dict[int, tuple[RemovableHandle, RemovableHandle]] = {}

    def watch(self, result: object, oldest: int) -> bool:
        """Follow the nodes behind a result that are numbered from ``oldest`` on. Whether there are any."""
        found = False
        for node in _nodes_behind(result, oldest):
            found = True
            if hasattr(node, "variable"):
                self._watch_leaf(node)
            else:
                self._follow(node, self._tree.maker_of(node), None if moves(node) else self._values)
        return found

    def watch_loss(self, result: object) -> None:
        """Look at the gradients of a result as they arrive."""
        for node in {tensor.grad_fn for tensor in tensors_in(result)}:
            if node is not None:
                node.register_prehook(partial(self._values.note_loss, self._tree.maker_of(node)))

    def forget_leaves(self) -> None:
        """The step is over."""
        for handles in self._leaves.values():
            for handle in handles:
                handle.remove()
        self._leaves.clear()

    def _watch_leaf(self, node: Any) -> None:
        key = id(node.variable)
        if key not in self._leaves:
            self._leaves[key] = self._follow(node, None, None)

    def _follow(self, node: Node, owner: Call | None, values: StepValues | None) -> tuple[RemovableHandle, RemovableHandle]:
        timer = _NodeTimer(self._times, owner, values)
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
