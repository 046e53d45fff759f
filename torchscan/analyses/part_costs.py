"""Costs of a part of a model on one rank: seconds, bytes and MACs of its passes."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

#: the parts outside of layers
BEFORE, AFTER = "before", "after"
_Costs = TypeVar("_Costs", bound=tuple[Any, ...])


class PassCosts(NamedTuple):
    """A forward or backward pass of a part, for one micro batch."""

    #: seconds of computation
    computing: float = 0.0
    #: seconds of collectives whose result the computation waits for
    waited_for: float = 0.0
    #: seconds of collectives that overlap with computation
    behind: float = 0.0
    #: largest number of bytes at once, beyond what earlier parts saved
    peak_bytes: float = 0.0


class AttentionShapes(NamedTuple):
    """Heads, length and width of the operands of attention, for one sequence on one rank."""

    query: tuple[int, ...] = ()
    key: tuple[int, ...] = ()
    value: tuple[int, ...] = ()


class AttentionCosts(NamedTuple):
    """Seconds of the attention operators of a part."""

    forward: float = 0.0
    #: of the backward pass, without those of what is computed again
    backward: float = 0.0
    #: times that the backward pass computes the attention again
    again: float = 0.0


class RingCosts(NamedTuple):
    """Attention of which each rank has a part of each sequence."""

    forward: PassCosts
    backward: PassCosts
    #: bytes sent in both passes
    forward_sent: float
    backward_sent: float


class PartCosts(NamedTuple):
    """A part of the model on one rank, for one micro batch."""

    forward: PassCosts = PassCosts()
    backward: PassCosts = PassCosts()
    #: seconds of the backward pass that compute gradients of parameters only
    weight_gradients: float = 0.0
    #: bytes that the forward pass saves for the backward pass
    saved_bytes: float = 0.0
    #: bytes among these of the result of the layer before
    received_bytes: float = 0.0
    #: bytes that the backward pass creates and gradients of parameters need, which stay until these
    #: are computed
    pending_bytes: float = 0.0
    #: bytes of the result
    output_bytes: float = 0.0
    #: bytes that tensor parallelism sends
    sent_bytes: float = 0.0
    #: MACs as computed once, and with all scores of attention
    macs: float = 0.0
    dense_macs: float = 0.0
    attention: AttentionCosts = AttentionCosts()

    def in_ring(self, ring: RingCosts) -> PartCosts:
        """Return the costs with attention over parts of sequences instead of its own."""
        alone, again = self.attention, self.attention.again
        forward, backward = self.forward, self.backward

        computing = max(0.0, forward.computing - alone.forward) + ring.forward.computing
        waited_for = forward.waited_for + ring.forward.waited_for
        forward = forward._replace(computing=computing, waited_for=waited_for)

        replaced = alone.backward + again * alone.forward
        computing = max(0.0, backward.computing - replaced) + ring.backward.computing
        computing += again * ring.forward.computing
        waited_for = backward.waited_for + ring.backward.waited_for
        waited_for += again * ring.forward.waited_for
        backward = backward._replace(computing=computing, waited_for=waited_for)

        sent_bytes = self.sent_bytes + (1 + again) * ring.forward_sent + ring.backward_sent
        return self._replace(forward=forward, backward=backward, sent_bytes=sent_bytes)


class OptimizerCosts(NamedTuple):
    """The optimizer, for each byte of a trained parameter."""

    seconds: float
    state_bytes: float
    temporary_bytes: float


def on_line(start: _Costs, end: _Costs, place: float) -> _Costs:
    """Return the costs at a position on the line through the costs at 0 and at 1."""
    values: list[Any] = []
    for first, second in zip(start, end, strict=True):
        if isinstance(first, tuple):
            values.append(on_line(first, second, place))
        else:
            values.append(max(0.0, first + place * (second - first)))
    return type(start)(*values)
