"""Follows the nodes of the graph that a step makes, as the backward pass runs them.

A hook on a node takes a few microseconds to put there, and there are hundreds in a step. Those that
store gradients of the model's parameters are held, with their hooks, for as long as the inspection
goes on, as DistributedDataParallel does.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from torchscan.errors import TorchscanError
from torchscan.inspecting.call_memory import Allocator, MemoryWatch
from torchscan.inspecting.checks import StepChecks
from torchscan.inspecting.timing import LEAVES, StepTimes
from torchscan.inspecting.values import (
    Gradients,
    Leaf,
    Source,
    Values,
    makes_none_backward,
    moves,
    reveals,
)
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import (
    LEAF_NODE,
    NO_BACKWARD_PASS,
    at_end_of_backward_pass,
    backward_pass,
)

#: nodes that return a view of the gradient that they are given
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("Alias", "Permute", "Squeeze", "T", "Transpose", "UnsafeView", "Unsqueeze", "View")
)

_NONE: Collection[int] = ()


class _Origin(NamedTuple):
    """The node that produces a gradient: the index of its call, and its name."""

    call: int
    name: str
    #: indices of the calls that made the nodes which move the gradient on before it is seen
    through: tuple[int, ...]


def _index_of(owner: Call | None) -> int:
    return LEAVES if owner is None else owner.index


class _Graph(NamedTuple):
    """The nodes that a pass has made."""

    #: the nodes that take the gradients of each
    edges: Mapping[Node, Sequence[Node | None]]
    #: how many gradients each node is given
    uses: Counter[Node | None]
    #: where gradients come from that are only checked by the node that takes them
    sources: dict[Node, _Origin]

    def behind(self, node: Node) -> Sequence[Node | None]:
        """Return the nodes that take the gradients of one, which may be of an earlier pass."""
        known = self.edges.get(node)
        if known is not None:
            return known
        return [each for each, _ in node.next_functions]


class HeldLeaves:
    """The nodes that accumulate gradients of parameters, and the step to notify when one runs."""

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], give_up: Callable[[Exception], None]
    ) -> None:
        #: called with an internal error
        self.give_up = give_up
        self._parameters: dict[int, tuple[Tensor, Leaf]] = {}
        for path, module in modules:
            for name, each in module._parameters.items():
                if each is not None:
                    self._parameters.setdefault(
                        id(each), (each, Leaf(path, type_name_of(module), name))
                    )
        self._held: dict[int, tuple[Node, tuple[RemovableHandle, ...]]] = {}
        #: of the step that goes on; None once the inspection is over
        self.watch: NodeWatch | None = None
        #: of all steps whose graphs are there
        self.watches: weakref.WeakSet[NodeWatch] = weakref.WeakSet()
        self._start = 0

    def hold(self, node: Any) -> bool:
        """Return whether a node accumulates a parameter's gradient, and follow it if so."""
        variable = node.variable
        known = self._parameters.get(id(variable))
        if known is None:
            return False
        held = self._held.get(id(variable))
        if held is None or held[0] is not node:
            self._held[id(variable)] = (
                node,
                (
                    node.register_prehook(self._before),
                    node.register_hook(partial(self._after, variable, known[1])),
                ),
            )
        return True

    def let_go(self) -> None:
        """Release the nodes: the next pass creates others."""
        for _, handles in self._held.values():
            for handle in handles:
                handle.remove()
        self._held.clear()

    def close(self) -> None:
        """Follow none any more."""
        self.let_go()
        self._parameters.clear()
        self.watch = None
        self.give_up = lambda _: None
        for watch in self.watches:
            watch.forget()

    def _before(self, *_: Any) -> None:
        watch = self.watch
        if watch is None or is_compiling():
            return
        times = watch.times
        if times.device is not None and times.is_captured:
            return
        looking = times.begin_looking()
        try:
            self._start = watch.note_node_start(LEAVES, looking)
        except Exception as error:
            times.end_looking(looking)
            self.give_up(error)

    def _after(self, variable: Tensor, leaf: Leaf, _: Gradients, given: Gradients) -> None:
        if is_compiling():
            return
        if self.watch is not None and self._start:
            self.watch.note_stored(variable, leaf, given, self._start)
        self._start = 0


class NodeWatch:
    """Tells those that watch a step of each node behind its results."""

    def __init__(
        self,
        tree: CallTree,
        leaves: HeldLeaves,
        times: StepTimes,
        values: Values,
        memory: MemoryWatch,
        checks: StepChecks,
    ) -> None:
        self._tree = tree
        self._leaves = leaves
        self.times = times
        self.values = values
        self.memory = memory
        self.checks = checks
        self._calls = tree.calls
        #: the backward pass whose end is awaited
        self._awaited = NO_BACKWARD_PASS
        leaves.watch = self
        leaves.watches.add(self)

    def forget(self) -> None:
        """Release the model at the end of the inspection, because a kept graph keeps its hooks."""
        leaves = self._leaves
        self.checks.is_over = True
        vars(self).clear()
        self._leaves = leaves

    @property
    def is_over(self) -> bool:
        """True if the inspection has ended. Nodes of a kept graph keep their hooks."""
        return self._leaves.watch is None

    def watch(
        self, results: Sequence[Tensor], made: Iterable[Node], oldest: int
    ) -> list[weakref.ref[object]]:
        """Follow the nodes from number ``oldest`` on behind results and what else modules made.

        What is returned lives as long as the results' nodes do.
        """
        last = {tensor.grad_fn for tensor in results}
        edges = edges_behind([*last, *made], oldest)
        graph = _Graph(edges, Counter(chain.from_iterable(edges.values())), {})
        is_reading = self.memory.is_reading
        maker_of = self._tree.maker_of
        alive: list[weakref.ref[object]] = []
        for node in edges:
            if type(node) is LEAF_NODE:
                if not self._leaves.hold(node):
                    _follow(node, _Followed(self, None))
                continue
            owner = maker_of(node)
            if is_reading:
                self.memory.note_made(owner, node)
            name, is_last = node.name(), node in last
            if name in _VIEWS and not is_last and self._is_negligible(node, graph, owner):
                self.times.num_untimed += 1
                continue
            followed = self._follow_node(node, name, graph, owner)
            if is_last:
                alive.append(weakref.ref(followed))
            if is_last or not graph.uses[node]:  # its gradient comes from outside
                node.register_prehook(partial(self._note_loss, _index_of(owner)))
        return alive

    def _follow_node(self, node: Node, name: str, graph: _Graph, owner: Call | None) -> _Followed:
        unseen = origin = None
        # gradients are added up for a node with several uses
        if graph.uses[node] > 1 or not makes_none_backward(name):
            unseen, origin = self._unseen(node, name, graph, owner), graph.sources.get(node)
        followed = _Followed(self, owner, unseen, origin)
        _follow(node, followed)
        return followed

    def _is_negligible(self, node: Node, graph: _Graph, owner: Call | None) -> bool:
        """Return whether a node that returns a view takes no time, within its call.

        Once anything was found, all gradients are counted. On CUDA, memory is read at each node.
        """
        if graph.uses[node] != 1 or self.values.sees_all or self.times.device is not None:
            return False
        (following,) = graph.edges[node]
        if following is None or type(following) is LEAF_NODE:
            return True
        return self._tree.maker_of(following) is owner

    def give_up(self, error: Exception) -> None:
        """End the inspection, and not the run, after an internal error."""
        self._leaves.give_up(error)

    def call_at(self, index: int) -> Call | None:
        """The call of this index. Hooks hold no call: it has the module."""
        return self._calls[index] if index >= 0 else None

    def source_at(self, origin: _Origin) -> Source:
        """Return the call, node and path that a gradient comes from."""
        through = tuple(self.call_at(each) for each in origin.through)
        return Source(self.call_at(origin.call), origin.name, through)

    def _unseen(
        self,
        node: Node,
        name: str,
        graph: _Graph,
        owner: Call | None,
    ) -> Collection[int]:
        """Return the positions of the node's gradients that need no check.

        The only node that takes one shows in its own whether it is finite.
        """
        unseen = []
        for number, following in enumerate(graph.edges[node]):
            found = self._find_revealing(following, graph)
            if found is not None:
                taker, through = found
                graph.sources[taker] = _Origin(_index_of(owner), name, tuple(through))
                unseen.append(number)
        return unseen or _NONE

    def _find_revealing(
        self, following: Node | None, graph: _Graph
    ) -> tuple[Node, Sequence[int]] | None:
        """Return the node that shows whether a gradient is finite, and calls on the way."""
        through: list[int] = []
        # nodes that accumulate gradients neither move nor reveal them
        while following is not None and type(following) is not LEAF_NODE:
            if graph.uses[following] != 1:
                return None
            behind, name = graph.behind(following), following.name()
            if reveals(name, behind):
                return following, through
            if len(behind) != 1 or not moves(name):
                return None
            through.append(_index_of(self._tree.maker_of(following)))
            (following,) = behind
        return None

    def _note_loss(self, index: int, gradients: Gradients) -> None:
        if self.is_over or is_compiling():
            return
        with self._looking():
            self.values.note_loss(self.call_at(index), gradients)

    @property
    def entered(self) -> int:
        """When torch last came to a hook of a module."""
        return self._tree.entered

    def note_node_start(self, index: int, looking: int) -> int:
        """Note that a node of a call starts, after checks since ``looking``. Return the time."""
        if self.values.awaits_end_of_backward and self._awaited != (going_on := backward_pass()):
            # Not that of an earlier one, which may have been left by an exception.
            self._awaited = going_on
            at_end_of_backward_pass(self._note_end)
        self.times.end_looking(looking)
        return self.times.note_node_start(index)

    def _note_end(self) -> None:
        """Note that a backward pass is over; another may follow, or go on around it."""
        if self.is_over:
            return

        self._awaited = NO_BACKWARD_PASS
        with self._looking():
            self.values.note_end_of_backward()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Exclude the time inside the context.

        An internal error ends the inspection, not the run.
        """
        times = self.times  # a listener may end the inspection
        start = times.begin_looking()
        try:
            yield
        except TorchscanError:
            raise
        except Exception as error:
            self.give_up(error)
        finally:  # a listener may raise
            times.end_looking(start)

    def note_stored(self, variable: Tensor, leaf: Leaf, given: Gradients, start: int) -> None:
        """A gradient was stored."""
        times = self.times  # a listener may end the inspection
        looking = times.begin_looking()
        try:
            times.note_node(LEAVES, start, 0)
            self.memory.note_stored(variable)
            self.checks.note_stored(variable)
            self.values.note_stored(leaf, variable, given)
        except TorchscanError:
            raise
        except Exception as error:
            self.give_up(error)
        finally:  # a listener may raise
            times.end_looking(looking)


class _Followed:
    """Follows the runs of one node. It does not hold the node, which holds it."""

    __slots__ = (
        "__weakref__",
        "_allocated",
        "_in_nodes",
        "_index",
        "_origin",
        "_reads",
        "_start",
        "_unseen",
        "_watch",
    )

    def __init__(
        self,
        watch: NodeWatch,
        owner: Call | None,
        unseen: Collection[int] | None = None,
        origin: _Origin | None = None,
    ) -> None:
        self._watch = watch
        self._index = _index_of(owner)
        #: positions of the gradients that later nodes check, or None if none is checked
        self._unseen = unseen
        #: the node that has produced the gradient that is checked here
        self._origin = origin
        self._reads = watch.memory.follows(owner)
        self._allocated: Allocator | None = None
        self._start = self._in_nodes = 0

    def __call__(self, gradients: Gradients, given: Gradients | None = None) -> None:
        """Note that the node starts with gradients, or has made some of those that it was given.

        One object is both hooks: two methods of it would keep Python's collector busier.
        """
        if is_compiling():  # compiled autograd traces hooks
            return
        if given is None:
            self._before()
        else:
            self._after(gradients, given)

    def _before(self) -> None:
        if self._watch.is_over:
            return
        times = self._watch.times
        looking = times.begin_looking()
        try:
            if self._reads:
                self._allocated = self._watch.memory.allocated()
            self._in_nodes = times.in_nodes
            self._start = self._watch.note_node_start(self._index, looking)
        except Exception as error:
            times.end_looking(looking)
            self._watch.give_up(error)

    def _after(self, made: Gradients, given: Gradients) -> None:
        watch = self._watch
        if watch.is_over or not self._start:
            return
        times = watch.times  # a listener may end the inspection
        looking = times.begin_looking()
        try:
            times.note_node(self._index, self._start, times.in_nodes - self._in_nodes)
            owner = watch.call_at(self._index)
            if self._allocated is not None and owner is not None:
                watch.memory.note_node(owner, self._allocated)
            if self._unseen is None:
                watch.values.note_moved(owner, made, given)
            else:
                watch.values.note_node(owner, made, given, self._unseen, self._get_source)
        except TorchscanError:
            raise
        except Exception as error:
            watch.give_up(error)
        finally:  # a listener may raise
            times.end_looking(looking)

    def _get_source(self) -> Source | None:
        """Return the node that has produced the gradient that is checked here, or None."""
        return None if self._origin is None else self._watch.source_at(self._origin)


def _follow(node: Node, followed: _Followed) -> None:
    node.register_prehook(followed)
    node.register_hook(followed)


def edges_behind(last: Sequence[Node | None], oldest: int) -> dict[Node, Sequence[Node | None]]:
    """Return each node once, with the nodes that take its gradients.

    Older nodes were made in an earlier pass, and watched then.
    """
    found: dict[Node, Sequence[Node | None]] = {}
    waiting = [*last]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and node._sequence_nr() >= oldest:
            following = found[node] = [each for each, _ in node.next_functions]
            waiting += following
    return found
