"""States of the results of an operator, and of the memory that it writes to."""

from __future__ import annotations

from collections.abc import Sequence

from torchscan.analyses.receptive_field.envelopes import Shape, Term
from torchscan.analyses.receptive_field.periodic_lines import PeriodicLine
from torchscan.analyses.receptive_field.questions import Seen, Sights
from torchscan.analyses.receptive_field.sights import Glance, Reason, Sight, blind, identity
from torchscan.analyses.receptive_field.signature_windows import (
    ResultWindows,
    SignatureWindows,
    find_summed,
    find_written,
    look_at_operands,
    windows_of_signature,
)
from torchscan.analyses.receptive_field.symmetry import Turn, turn_through, turned
from torchscan.analyses.receptive_field.writes import Put, region_of
from torchscan.ops.windows import Look, Reshape
from torchscan.trace.events import OpCall, OpSignature
from torchscan.trace.trace import Trace

#: a dimension of an input: the index of the tensor in the trace, and the dimension
Axis = tuple[int, int]
#: what a tensor sees of each axis; None: nothing
State = tuple[Seen | None, ...]


class ResultStates:
    """The states of results, by the windows of their operators."""

    def __init__(
        self, trace: Trace, axes: Sequence[Axis], undecided: set[int], *, strict_norm: bool
    ) -> None:
        self.sights = Sights()
        #: by input the dimension that turned out to be its channels, which is not followed any
        #: further; None: it has none
        self.channels: dict[int, int | None] = {}
        #: the state of a tensor that sees nothing, always the same object
        self.blind: State = (None,) * len(axes)
        self._trace = trace
        self._axes = axes
        self._sizes = [trace.tensors[tensor].spec.shape[dim] for tensor, dim in axes]
        self._strict_norm = strict_norm
        self._is_followed = [True] * len(axes)
        self._undecided = set(undecided)
        self._windows: dict[int, SignatureWindows] = {}
        #: by signature the positions of the operands that an operator writes to
        self._written: dict[int, Sequence[int]] = {}
        self._summed: dict[int, list[tuple[int, int, int]]] = {}

    def own_places(self, rank: int, dim: int) -> Seen | None:
        """Return what the elements of an input see of one of its dimensions: their own place."""
        return self.sights.seen(identity(rank, dim))

    def written_by(self, signature: OpSignature) -> Sequence[int]:
        """Return the positions of the operands that an operator writes to."""
        if id(signature) not in self._written:
            self._written[id(signature)] = find_written(signature)
        return self._written[id(signature)]

    def results(self, op: OpCall, states: Sequence[State]) -> list[State]:
        """Return what the results see, given what the operands see."""
        windows = self._windows_of(op.signature)
        read = states[: len(windows.shapes)]  # without those that are only written to
        seeing = [(place, state) for place, state in enumerate(read) if state is not self.blind]
        num_results = len(op.outputs)
        if windows.rule is None:
            operands = [state for _, state in seeing] or [self.blind]
            return [self.mix(operands, self.reason(op))] * num_results
        if len(seeing) == 1:
            ((position, state),) = seeing
            if all(position in result.passed_on for result in windows.results):
                return [self._without_channels(state)] * num_results

        by_axis = [self._operands_along(axis, seeing) for axis in range(len(self._axes))]
        return [self._result(op, windows, result, by_axis) for result in windows.results]

    def _operands_along(
        self, axis: int, seeing: Sequence[tuple[int, State]]
    ) -> list[tuple[int, Seen]]:
        """Return the operands that see anything of an axis, unless it is one of channels."""
        operands: list[tuple[int, Seen]] = []
        if not self._is_followed[axis]:
            return operands
        for position, state in seeing:
            seen = state[axis]
            if seen is not None:
                operands.append((position, seen))
        return operands

    def mix(self, states: Sequence[State], reason: Reason) -> State:
        """Return a state that sees all of several tensors, in an unknown way."""
        mixed: list[Seen | None] = []
        for along_axis in zip(*states, strict=True):
            sights = [seen and self.sights[seen] for seen in along_axis]
            mixed.append(self.sights.seen(blind(sights, reason)))
        return tuple(mixed) if any(mixed) else self.blind

    def reason(self, op: OpCall) -> Reason:
        """Return the reason for which a result sees everything."""
        return Reason(op.signature.operator, self._trace.path_of(op))

    def _windows_of(self, signature: OpSignature) -> SignatureWindows:
        known = self._windows.get(id(signature))
        if known is None:
            known = self._windows[id(signature)] = windows_of_signature(signature)
        return known

    def _without_channels(self, state: State) -> State:
        """Return a state without channels that were found since."""
        followed = list(state)
        for axis, is_followed in enumerate(self._is_followed):
            if not is_followed:
                followed[axis] = None
        return tuple(followed) if any(followed) else self.blind

    def _result(
        self,
        op: OpCall,
        windows: SignatureWindows,
        result: ResultWindows,
        by_axis: Sequence[Sequence[tuple[int, Seen]]],
    ) -> State:
        """Return what one result sees of each axis."""
        looked: list[tuple[int, Sight | None, Glance]] = []

        def look(seeing: Sequence[tuple[int, Sight]], axis: int) -> tuple[Sight | None, Glance]:
            for other, sight, glance in looked:
                turn = self._turn(result, windows.shapes, by_axis[other], by_axis[axis])
                if turn is not None and self._sizes[other] == self._sizes[axis]:
                    return sight and turned(sight, turn), glance
            glance = self._glance(op, axis)
            sight = look_at_operands(result, seeing, windows.shapes, glance)
            looked.append((axis, sight, glance))
            return sight, glance

        if 0 in result.shape:
            return self.blind
        state: list[Seen | None] = [None] * len(by_axis)
        for axis, seeing in enumerate(by_axis):
            if seeing:
                size = self._sizes[axis]
                state[axis] = self.sights.ask(result.answers, size, seeing, look, axis)
        return tuple(state) if any(state) else self.blind

    def _turn(
        self,
        result: ResultWindows,
        shapes: Sequence[Shape],
        one: Sequence[tuple[int, Seen]],
        other: Sequence[tuple[int, Seen]],
    ) -> Turn | None:
        """Return the turn from a result's field of one axis to that of another.

        It exists if the operands are turned alike.
        """
        if len(one) != len(other):
            return None
        turns: set[Turn | None] = set()
        for (position, seen), (other_position, other_seen) in zip(one, other, strict=True):
            number, *ends = seen
            other_number, *other_ends = other_seen
            if position != other_position or ends != other_ends:
                return None
            turn = self.sights.turn(number, other_number)
            if turn is None:
                return None
            if (position, turn) not in result.turns:
                ways = result.looks[position] if position < len(result.looks) else None
                of_result = turn_through(ways, shapes[position], result.shape, turn)
                result.turns[position, turn] = of_result
            turns.add(result.turns[position, turn])
        return turns.pop() if len(turns) == 1 else None

    def _glance(self, op: OpCall, axis: int) -> Glance:
        size = self._sizes[axis]
        return Glance(size=size, reason=self.reason(op), strict_norm=self._strict_norm)

    # -- channels --------------------------------------------------------------------------------

    def find_channels(self, op: OpCall, states: Sequence[State]) -> None:
        """Note the axes that turn out to be channels: the first product of an input sums over them.

        It sums over one axis from end to end. An input of which it sums over no axis has no
        channels. Of several dimensions that an operator reads completely, as a recurrent layer does
        with steps and channels, the channels are the last.
        """
        if not self._undecided:
            return
        signature = op.signature
        if id(signature) not in self._summed:
            self._summed[id(signature)] = find_summed(signature, self._windows_of(signature))
        for position, dim, length in self._summed[id(signature)]:
            self._decide(states[position], dim, length)

    def _decide(self, state: State, summed: int, length: int) -> None:
        for tensor, axes in self._find_axes_along(state, summed, length).items():
            if len(axes) > 1:
                self._undecided.discard(tensor)
                continue
            channels, is_complete = axes[0] if axes else (None, True)
            if is_complete:
                self.channels[tensor] = channels
                self._is_followed = [self.channels.get(each) != dim for each, dim in self._axes]
                self._undecided.discard(tensor)

    def _find_axes_along(
        self, state: State, summed: int, length: int
    ) -> dict[int, list[tuple[int, bool]]]:
        """Return the axes of undecided inputs that follow a dimension, and if it is all of each."""
        axes_by_input: dict[int, list[tuple[int, bool]]] = {}
        for (tensor, axis), size, seen in zip(self._axes, self._sizes, state, strict=True):
            if seen is None or tensor not in self._undecided:
                continue
            axes = axes_by_input.setdefault(tensor, [])
            terms = self.sights[seen].low
            if any(term.dims[summed] is not None for term in terms):
                is_complete = length == size and all(_is_alone(term, summed) for term in terms)
                axes.append((axis, is_complete))
        return axes_by_input

    # -- writes ----------------------------------------------------------------------------------

    def put(self, state: State, old: State, parent: int, op: OpCall, position: int) -> State:
        """Return what a tensor sees after a view of it was written to.

        The view is the result of ``op`` at ``position``.
        """
        if state == old == self.blind:
            return self.blind
        result = self._windows_of(op.signature).results[position]
        if 0 in result.shape:
            return old
        put = self._find_put(result, parent, op, position)
        if put is None:
            return self.mix([state, old], self.reason(op))

        def work_out(seeing: Sequence[tuple[int, Sight]], axis: int) -> tuple[Sight | None, Glance]:
            glance = self._glance(op, axis)
            sights = dict(seeing)
            return put.sight(sights.get(0), sights.get(1), glance), glance

        after: list[Seen | None] = [None] * len(state)
        for axis, pair in enumerate(zip(state, old, strict=True)):
            seeing = [(place, seen) for place, seen in enumerate(pair) if seen is not None]
            if seeing:
                size = self._sizes[axis]
                after[axis] = self.sights.ask(result.after_writes, size, seeing, work_out, axis)
        return tuple(after)

    def _find_put(
        self, result: ResultWindows, parent: int, op: OpCall, position: int
    ) -> Put | None:
        ways = result.looks[0]
        if not ways or len(ways) > 1 or len(ways[0].steps) != 1:
            return None
        (step,) = ways[0].steps
        spec = self._trace.tensors[parent].spec
        if isinstance(step, Reshape):
            return Put(step, None, spec.shape)
        # The real parts of a complex tensor have another type.
        if not isinstance(step, Look) or spec.dtype != op.signature.outputs[position].dtype:
            return None
        region = region_of(step)
        return None if region is None else Put(step, region, spec.shape)


def _is_alone(term: Term, dim: int) -> bool:
    """Return whether a field follows only this dimension, place by place."""
    digits = term.dims[dim]
    if digits is None or len(digits) != 1:
        return False
    ((_, line),) = digits
    others = (*term.dims[:dim], *term.dims[dim + 1 :])
    return line == PeriodicLine((0,), 1) and not any(others)
