"""Follows the nodes of the graph that a step makes, as the backward pass runs them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.call_tree import Call, CallTree
from torchscan.runtime.checks import StepChecks
from torchscan.runtime.memory import Allocator, MemoryWatch
from torchscan.runtime.timing import LEAVES, StepTimes
from torchscan.runtime.values import Gradients, Values, moves

_Handles = tuple[RemovableHandle, ...]


class NodeWatch:
    """Tells those that watch a step of each node behind its results."""

    def __init__(self, tree: CallTree, times: StepTimes, values: Values, memory: MemoryWatch, checks: StepChecks) -> None:
        self._tree = tree
        self.times = times
        self.values = values
        self.memory = memory
        self._checks = checks
        #: by identity of what gradients are stored for: its node outlives the graph where somebody holds it, as DDP does
        self._leaves: dict[int, _Handles] = {}

    def watch(self, result: object, oldest: int) -> bool:
        """Follow the nodes behind a result that are numbered from ``oldest`` on. Whether there are any."""
        found = False
        for node in _nodes_behind(result, oldest):
            found = True
            if hasattr(node, "variable"):
                self._watch_leaf(node)
            else:
                owner = self._tree.maker_of(node)
                self.memory.note_made(owner, node)
                _follow(node, _Followed(self, owner, is_looked_at=not moves(node)))
        return found

    def watch_loss(self, result: object) -> None:
        """Look at the gradients of a result as they arrive."""
        for node in {tensor.grad_fn for tensor in tensors_in(result)}:
            if node is not None:
                node.register_prehook(partial(self.values.note_loss, self._tree.maker_of(node)))

    def forget_leaves(self) -> None:
        """The step is over."""
        for handles in self._leaves.values():
            for handle in handles:
                handle.remove()
        self._leaves.clear()

    def _watch_leaf(self, node: Any) -> None:
        variable = node.variable
        if id(variable) not in self._leaves:
            handles = _follow(node, _Followed(self, None, is_looked_at=False))
            stored = node.register_hook(lambda *_: self._note_stored(variable))
            self._leaves[id(variable)] = (*handles, stored)

    def _note_stored(self, variable: Tensor) -> None:
        with self.times.standing_still():
            self.memory.note_stored(variable)
            self._checks.note_stored(variable)


class _Followed:
    """Follows the runs of one node. It does not hold the node, which holds it."""

    __slots__ = ("_allocated", "_before", "_is_looked_at", "_owner", "_start", "_watch")

    def __init__(self, watch: NodeWatch, owner: Call | None, *, is_looked_at: bool) -> None:
        self._watch = watch
        self._owner = owner
        self._is_looked_at = is_looked_at
        self._allocated: Allocator | None = None
        self._start = self._before = 0

    def before(self, *_gradients: Any) -> None:
        """The node starts."""
        times = self._watch.times
        if self._watch.memory.follows(self._owner):
            with times.standing_still():
                self._allocated = Allocator.read()
        self._before = times.in_nodes
        self._before = times.in_nodes
        self._start = times.note_node_start(self._index)

    def after(self, made: Gradients, given: Gradients) -> None:
        """The node has ended."""
        times = self._watch.times
        times.note_node(self._index, self._start, times.in_nodes - self._before)
        with times.standing_still():
            if self._allocated is not None and self._owner is not None:
                self._watch.memory.note_node(self._owner, self._allocated)
            if self._is_looked_at:
                self._watch.values.note_node(self._owner, made, given)

    @property
    def _index(self) -> int:
        return LEAVES if self._owner is None else self._owner.index


def _follow(node: Node, followed: _Followed) -> _Handles:
    return node.register_prehook(followed.before), node.register_hook(followed.after)


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
