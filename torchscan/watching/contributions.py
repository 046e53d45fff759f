"""Operators of a call that read its inputs: its contributed gradient flows over their edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchscan.torch_versions import next_node
from torchscan.watching.call_sites import CallSite

#: where the gradient of a tensor goes: the node that made it, and which of its results it is
Source = tuple[Any, int]


class BegunCall(NamedTuple):
    """A call that has begun."""

    #: the number of the first node that autograd may make in it
    first_node: int
    #: of each input that has one, by the number of its series
    sources: dict[int, Source]

    def add_sources(self, sources: Mapping[int, Source]) -> None:
        """Add sources that are known at the end of the call.

        A tensor that the call has written to comes from one of its own operators by then. What the
        call has read before that is unknown, so it is left out.
        """
        for number, source in sources.items():
            node, _ = source
            if node._sequence_nr() < self.first_node:
                self.sources[number] = source


class Edge(NamedTuple):
    """An operator of a call that reads an input."""

    node: Any
    #: which of its gradients is that of the input
    place: int


class Contribution:
    """The gradient that one call contributes to one input, as a row: the sum over the edges."""

    def __init__(self, num_edges: int) -> None:
        self.num_edges = num_edges
        #: None before the first edge of a backward pass
        self.row: int | None = None
        #: the backward pass that the row is of
        self.backward_pass: object = None


def source_of(tensor: Tensor) -> Source | None:
    """Return where the gradient of a tensor goes, or None if it is a leaf or has none."""
    node = tensor.grad_fn
    return None if node is None else (node, tensor.output_nr)


def sources_of(site: CallSite, inputs: Sequence[Tensor], first: int = 0) -> dict[int, Source]:
    """Return where the gradients of a call's inputs go, by the numbers of their series.

    ``first`` is the index of the first of them among the inputs of the call.
    """
    sources: dict[int, Source] = {}
    for index, tensor in enumerate(inputs, first):
        source = source_of(tensor)
        if source is not None:
            sources[site.number("input_grad", site.input_grads, index)] = source
    return sources


def edges_of_call(
    entry: BegunCall, outputs: Iterable[Tensor]
) -> Mapping[int, Sequence[Edge]] | None:
    """Return the edges of a call's operators to its inputs, or None if some may be missing.

    An input that the call returns as it is has none: what reads the result cannot be told from what
    reads the input.

    Autograd numbers the nodes of a thread. Those with numbers of the call are its own; if fewer are
    found from its outputs than were made, one of the others may read an input, too, and lead to the
    loss by another way.
    """
    end = next_node()
    sources = map(source_of, outputs)
    ends = list(filter(None, sources))
    numbers = defaultdict[Source, list[int]](list)
    for number, source in entry.sources.items():
        # What is returned as it is has no edge of the call's, whatever reads it then.
        if source not in ends:
            numbers[source].append(number)
    if not numbers:
        return {}

    found = defaultdict[int, list[Edge]](list)
    # It holds the nodes: torch makes another object of a node without references.
    seen: set[Any] = set()
    waiting = [node for node, _ in ends]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if not entry.first_node <= node._sequence_nr() < end:
            continue
        seen.add(node)
        for index, source in enumerate(node.next_functions):
            for number in numbers.get(source, ()):
                found[number].append(Edge(node, index))
            waiting.append(source[0])
    return found if len(seen) == end - entry.first_node else None
