"""The threads of a call tree: which ones it follows, and which calls own the nodes of each.

Autograd numbers the nodes of a graph as they are created, per thread. A node that is created
between two numbers, read when modules start and end, belongs to the innermost module that is open
then:

    owner(node) = the last call noted before the node, of those in the thread that created it.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch.autograd.graph import Node

from torchscan.torch_versions import NO_BACKWARD_PASS, backward_pass, engine, next_node

#: the calls of a tree
Owner = TypeVar("Owner")
#: whether calls in the current thread are followed; those in other threads are noted as missed
ThreadPolicy = Callable[[], bool]

_NUMBER_OF_LEAVES = 2**63  # the nodes that store gradients are numbered from the end


def with_autograd_threads() -> ThreadPolicy:
    """Follow this thread, and those in which autograd runs a backward pass.

    On CUDA, checkpoints run modules there.
    """
    followed = threading.get_ident()
    return lambda: threading.get_ident() == followed or is_in_backward_pass()


def is_in_backward_pass() -> bool:
    """Return whether autograd's engine runs in this thread."""
    return backward_pass() != NO_BACKWARD_PASS


@dataclass(slots=True, kw_only=True, eq=False)
class CallThread(Generic[Owner]):
    """The state of one thread: the innermost open call, and the owners of its nodes."""

    #: True for the thread in which the tree was made
    is_home: bool
    current: Owner | None = None
    #: the first node of each range, by number, and the call that owns the range
    _numbers: list[int] = field(default_factory=list)
    _owners: list[Owner] = field(default_factory=list)
    #: in a thread of autograd: the backward pass in which it created its first nodes
    interrupted: int = NO_BACKWARD_PASS

    def owner_of(self, node: Node | None) -> Owner | None:
        """Return the call that owns a node of this thread, or None for leaves and older nodes."""
        if node is None:
            return None
        number = node._sequence_nr()
        if number >= _NUMBER_OF_LEAVES:
            return None
        position = bisect.bisect_right(self._numbers, number)
        if position == 0:
            return None
        return self._owners[position - 1]

    def assign_nodes_to(self, call: Owner) -> None:
        """Assign the nodes that this thread creates from now on to ``call``, while autograd is on.

        In a thread of autograd's engine, this lasts until its backward pass ends.
        """
        if not self.is_home and not self._numbers and is_in_backward_pass():
            self.interrupted = backward_pass()
            engine().queue_callback(self.forget_nodes)
        number = next_node()
        if self._numbers and self._numbers[-1] == number:  # the previous call has created none
            self._owners[-1] = call
        else:
            self._numbers.append(number)
            self._owners.append(call)

    def forget_nodes(self) -> None:
        """Forget which calls own the nodes of this thread."""
        self._numbers.clear()
        self._owners.clear()

    def runs_its_own_nodes(self) -> bool:
        """Return whether autograd runs nodes that were created in this thread.

        Otherwise its threads run nodes of the forward pass, until a checkpoint starts a backward
        pass of the part that it has recomputed.
        """
        return self.is_home or (bool(self._numbers) and backward_pass() != self.interrupted)


class CallThreads(dict[int, CallThread[Owner]]):
    """The threads in which calls ran, by their numbers. The thread that creates it is its home."""

    def __init__(self) -> None:
        super().__init__()
        self._home = threading.get_ident()

    def this_thread(self) -> CallThread[Owner]:
        """Return the state of this thread, which is new at its first call."""
        number = threading.get_ident()
        known = self.get(number)
        if known is not None:
            return known
        return self.setdefault(number, CallThread(is_home=number == self._home))

    def owner_of(self, node: Node | None) -> Owner | None:
        """Return the call that made a node of the graph, asked in the thread that runs the node.

        It is None for leaves, and for nodes from before the first call. Those that the model's
        caller makes of its result, for example a loss, are the model's.
        """
        thread = self.this_thread()
        if not thread.runs_its_own_nodes():
            thread = self.get(self._home, thread)
        return thread.owner_of(node)

    def maker_of(self, node: Node) -> Owner | None:
        """Return the owner of a node, asked in the thread that created the node."""
        return self.this_thread().owner_of(node)
