"""The graph that a pass creates: its nodes, and where non-finite gradients show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from torch.autograd.graph import Node

from torchscan.inspecting.timing import LEAVES
from torchscan.inspecting.values import moves, reveals
from torchscan.recording.call_tree import CallTree
from torchscan.recording.module_calls import Call
from torchscan.torch_versions import LEAF_NODE

_NONE: Collection[int] = ()


class GradientOrigin(NamedTuple):
    """The node that produces a gradient: the index of its call, and its name."""

    call: int
    name: str
    #: indices of the calls that made the nodes which move the gradient on before it is checked
    through: tuple[int, ...]


class PassGraph:
    """The nodes that a pass has created. It holds them, so it must not outlive the call."""

    def __init__(self, edges: Mapping[Node, Sequence[Node | None]], tree: CallTree) -> None:
        #: the nodes that take the gradients of each
        self.edges = edges
        #: number of gradients that each node is given
        self.uses: Counter[Node | None] = Counter(chain.from_iterable(edges.values()))
        #: origins of gradients that only the node that takes them checks, by that node
        self.origins: dict[Node, GradientOrigin] = {}
        self._maker_of = tree.maker_of

    def find_unseen(self, node: Node, name: str, owner: Call | None) -> Collection[int]:
        """Return the indices of the node's gradients that need no check.

        The only node that takes one shows in its own whether it is finite.
        """
        unseen = []
        for number, following in enumerate(self.edges[node]):
            found = self._find_revealing(following)
            if found is not None:
                taker, through = found
                self.origins[taker] = GradientOrigin(index_of(owner), name, tuple(through))
                unseen.append(number)
        return unseen or _NONE

    def _find_revealing(self, following: Node | None) -> tuple[Node, Sequence[int]] | None:
        """Return the node that shows whether a gradient is finite, and calls on the way."""
        through: list[int] = []
        # nodes that accumulate gradients neither move nor reveal them
        while following is not None and type(following) is not LEAF_NODE:
            if self.uses[following] != 1:
                return None
            behind, name = self.edges.get(following), following.name()
            if behind is None:  # of an earlier pass
                behind = [each for each, _ in following.next_functions]
            if reveals(name, behind):
                return following, through
            if len(behind) != 1 or not moves(name):
                return None
            through.append(index_of(self._maker_of(following)))
            (following,) = behind
        return None


def index_of(owner: Call | None) -> int:
    """Return the index of a call, or that of the leaves."""
    return LEAVES if owner is None else owner.index


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
