"""Hooks on the nodes of the graph that a step creates, which follow them in the backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from torch import Tensor
from torch.autograd.graph import Node
from torch.compiler import is_compiling

from torchscan.errors import TorchscanError
from torchscan.inspecting.call_memory import Allocator
from torchscan.inspecting.nodes import NodeWatch
from torchscan.inspecting.pass_graph import GradientOrigin, PassGraph, edges_behind, index_of
from torchscan.inspecting.values import Gradients, Source, makes_none_backward
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import LEAF_NODE

#: nodes that return a view of the gradient that they are given
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("Alias", "Permute", "Squeeze", "T", "Transpose", "UnsafeView", "Unsqueeze", "View")
)


class GraphHooks:
    """The hooks of one step."""

    def __init__(self, watch: NodeWatch) -> None:
        self._watch = watch

    def add(
        self, results: Sequence[Tensor], made: Iterable[Node], oldest: int
    ) -> list[weakref.ref[object]]:
        """Follow the nodes from number ``oldest`` on behind results and what else modules made.

        What is returned lives as long as the results' nodes do.
        """
        watch, tree = self._watch, self._watch.tree
        last = {tensor.grad_fn for tensor in results}
        graph = PassGraph(edges_behind([*last, *made], oldest), tree)
        is_reading = watch.memory.is_reading
        maker_of = tree.maker_of
        alive: list[weakref.ref[object]] = []
        for node in graph.edges:
            if type(node) is LEAF_NODE:
                if not watch.leaves.hold(node):
                    _follow(node, FollowedNode(watch, None))
                continue
            owner = maker_of(node)
            if is_reading:
                watch.memory.note_made(owner, node)
            name, is_last = node.name(), node in last
            if name in _VIEWS and not is_last and self._is_negligible(node, graph, owner):
                watch.times.num_untimed += 1
                continue
            followed = self._follow_node(node, name, graph, owner)
            if is_last:
                alive.append(weakref.ref(followed))
            if is_last or not graph.uses[node]:  # its gradient comes from outside
                node.register_prehook(partial(watch.note_loss, index_of(owner)))
        return alive

    def _follow_node(
        self, node: Node, name: str, graph: PassGraph, owner: Call | None
    ) -> FollowedNode:
        unseen = origin = None
        # gradients are added up for a node with several uses
        if graph.uses[node] > 1 or not makes_none_backward(name):
            unseen = graph.find_unseen(node, name, owner)
            origin = graph.origins.get(node)
        followed = FollowedNode(self._watch, owner, unseen, origin)
        _follow(node, followed)
        return followed

    def _is_negligible(self, node: Node, graph: PassGraph, owner: Call | None) -> bool:
        """Return whether a node that returns a view takes no time, within its call.

        Once anything was found, all gradients are counted. On CUDA, memory is read at each node.
        """
        watch = self._watch
        if graph.uses[node] != 1 or watch.values.sees_all or watch.times.device is not None:
            return False
        (following,) = graph.edges[node]
        if following is None or type(following) is LEAF_NODE:
            return True
        return watch.tree.maker_of(following) is owner


class FollowedNode:
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
        origin: GradientOrigin | None = None,
    ) -> None:
        self._watch = watch
        self._index = index_of(owner)
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
                watch.values.note_node(owner, made, given, self._unseen, self.find_source)
        except TorchscanError:
            raise
        except Exception as error:
            watch.give_up(error)
        finally:  # a listener may raise
            times.end_looking(looking)

    def find_source(self) -> Source | None:
        """Return the node that has produced the gradient that is checked here, or None."""
        origin, call_at = self._origin, self._watch.call_at
        if origin is None:
            return None
        through = tuple(call_at(each) for each in origin.through)
        return Source(call_at(origin.call), origin.name, through)


def _follow(node: Node, followed: FollowedNode) -> None:
    node.register_prehook(followed)
    node.register_hook(followed)
