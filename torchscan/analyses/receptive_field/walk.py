"""Follows what is seen of the inputs through the record, call by call, including through shared memory.

The file is long because memory and operators are followed in one walk: each call may write to what others look into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchscan.analyses.receptive_field.envelopes import Shape, Term
from torchscan.analyses.receptive_field.periodic_lines import PeriodicLine
from torchscan.analyses.receptive_field.pieces import united
from torchscan.analyses.receptive_field.questions import Answers, Seen, Sights
from torchscan.analyses.receptive_field.sights import (
    Glance,
    Reason,
    Sight,
    blind,
    everything,
    follow,
    identity,
)
from torchscan.analyses.receptive_field.symmetry import Turn, turn_through, turned
from torchscan.analyses.receptive_field.writes import Region, put_back, region_of
from torchscan.ops.registry import compute_cost, windows
from torchscan.ops.windows import WHOLE, EachOutput, Look, Looks, Piece, Reshape, Way, Ways, Windows
from torchscan.trace.events import OpCall, OpSignature, TensorSpec
from torchscan.trace.trace import Trace

#: a dimension of an input: the index of the tensor in the record, and the dimension
Axis = tuple[int, int]
#: what a tensor sees of each axis; None: nothing
State = tuple[Seen | None, ...]
_UNKNOWN_WRITE = "a write through another tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The windows of one result of an operator, with the answers so far."""

    shape: Shape
    looks: Looks
    answers: Answers
    #: of a view: what is seen after it was written to
    after_writes: Answers
    #: the positions of operands whose elements it has at the same places, as most results have
    passed_on: frozenset[int]
    #: by the position of an operand and its turn: the turn of the result
    turns: dict[tuple[int, Turn], Turn | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """The data that all calls with one signature share."""

    rule: Windows | None
    shapes: tuple[Shape, ...]
    results: tuple[_Result, ...]


@dataclass(frozen=True, slots=True)
class _Put:
    """A view that is written to: how it looks at what it is a view of, and where."""

    step: Look | Reshape
    region: Region | None
    shape: Shape

    def sight(self, new: Sight | None, old: Sight | None, glance: Glance) -> Sight | None:
        """Return what a view sees along one axis after it was written to."""
        if isinstance(self.step, Look) and self.region is not None:
            return put_back(new, old, self.step, self.region, self.shape, glance)
        return new and follow(new, self.step.shape, Way((Reshape(self.shape),)), glance)[1]


class Walk:
    """One walk through a record. If the memory behind a view is written to, what the view sees is derived again."""

    def __init__(
        self, trace: Trace, axes: Sequence[Axis], undecided: set[int], *, strict_norm: bool
    ) -> None:
        self.sights = Sights()
        #: by input the dimension that turned out to be its channels, which is not followed any further; None: it has none
        self.channels: dict[int, int | None] = {}
        self._is_followed = [True] * len(axes)
        self._undecided = set(undecided)
        self._trace = trace
        self._axes = axes
        self._sizes = [trace.tensors[tensor].spec.shape[dim] for tensor, dim in axes]
        self._strict_norm = strict_norm
        self._blind: State = (None,) * len(axes)
        self._states: dict[int, State] = {}
        self._storages = [record.storage for record in trace.tensors]
        self._operators: dict[int, _Operator] = {}
        #: by signature the positions of the operands that an operator writes to
        self._written_by: dict[int, Sequence[int]] = {}
        self._summed: dict[int, list[tuple[int, int, int]]] = {}
        #: of a view: what it is a view of, by which call, as which of its results
        self._derived: dict[int, tuple[int, OpCall, int]] = {}
        #: by memory: how often it was written, what the tensor that has all of it sees now, and which versions of it there are
        self._writes: dict[int, int] = {}
        self._memory: dict[int, State] = {}
        self._owners: dict[int, set[int]] = {}
        #: after how many writes the state of a tensor was right
        self._stamps: dict[int, int] = {}
        for tensor in {tensor for tensor, _ in axes}:
            shape = trace.tensors[tensor].spec.shape
            state = tuple(
                self.sights.seen(identity(len(shape), dim)) if tensor == of else None
                for of, dim in axes
            )
            self._own(
                tensor, self._blind if 0 in shape else state
            )  # what has no elements sees nothing

    def outputs_by_call(self) -> dict[int, tuple[State, ...]]:
        """Return what the outputs of each module call see when the call ends."""
        ends = _last_operators(self._trace)
        closing: dict[int, list[int]] = {}
        for call, end in ends.items():
            closing.setdefault(end, []).append(call)
        seen: dict[int, tuple[State, ...]] = {}
        for position, op in enumerate(self._trace.ops):
            if op.phase == "forward":
                self._run(op)
            for call in closing.get(position, ()):
                seen[call] = tuple(
                    self.read(tensor) for tensor in self._trace.modules[call].outputs
                )
        for module in self._trace.modules:
            if module.index not in seen:
                seen[module.index] = tuple(
                    self._states.get(tensor, self._blind) for tensor in module.outputs
                )
        return seen

    # -- memory ------------------------------------------------------------------------------------------------------

    def read(self, tensor: int) -> State:
        """Return what a tensor sees now."""
        storage = self._storages[tensor]
        writes = self._writes.get(storage, 0)
        if writes == self._stamps.get(tensor, 0):
            return self._states.get(tensor, self._blind)
        if tensor in self._derived:
            parent, op, position = self._derived[tensor]
            now = self.read(parent)
            states = [
                now if each == parent else self._states.get(each, self._blind) for each in op.inputs
            ]
            state = self._results(op, self._operator(op.signature), states)[position]
        elif tensor in self._owners.get(storage, ()):
            state = self._memory[storage]
        else:
            state = self._blinded([self._memory[storage]], Reason(_UNKNOWN_WRITE, ""))
        self._states[tensor], self._stamps[tensor] = state, writes
        return state

    def _own(self, tensor: int, state: State) -> None:
        """Enter a tensor that has all of its memory."""
        storage = self._storages[tensor]
        self._states[tensor], self._memory[storage] = state, state
        self._owners.setdefault(storage, set()).add(tensor)
        if storage in self._writes:
            self._stamps[tensor] = self._writes[storage]

    def _write(self, target: int, written: int, state: State) -> None:
        """``target`` is written to, and is ``written`` from then on: tensors that share its memory see the same."""
        storage = self._storages[target]
        whole = state
        tensor = target
        while tensor in self._derived:
            parent, op, position = self._derived[tensor]
            whole = self._put(whole, self.read(parent), parent, op, position)
            tensor = parent
        self._owners.setdefault(storage, set()).add(tensor)
        self._writes[storage] = self._writes.get(storage, 0) + 1
        self._memory[storage] = whole
        if target in self._derived:
            self._derived[written] = self._derived[target]
        else:
            self._owners[storage].add(written)
        self._states[written], self._stamps[written] = state, self._writes[storage]

    def _put(self, state: State, old: State, parent: int, op: OpCall, position: int) -> State:
        """Return what a tensor sees after a view of it was written to."""
        if state == old == self._blind:
            return self._blind
        result = self._operator(op.signature).results[position]
        if 0 in result.shape:
            return old
        ways = result.looks[0]
        step = ways[0].steps[0] if ways and len(ways) == 1 and len(ways[0].steps) == 1 else None
        specs = (self._trace.tensors[parent].spec, op.signature.outputs[position])
        region = (
            region_of(step) if isinstance(step, Look) and specs[0].dtype == specs[1].dtype else None
        )  # not of real parts
        if isinstance(step, Reshape) or (isinstance(step, Look) and region is not None):
            put = _Put(step, region, specs[0].shape)
            return tuple(
                self._put_along(at, pair, put, result, op)
                for at, pair in enumerate(zip(state, old, strict=True))
            )
        return self._blinded([state, old], self._reason(op))

    def _put_along(
        self,
        axis: int,
        pair: tuple[Seen | None, Seen | None],
        put: _Put,
        result: _Result,
        op: OpCall,
    ) -> Seen | None:
        """Merge, along one axis, what was written through a view with what was there."""

        def work_out(seeing: Sequence[tuple[int, Sight]], at: int) -> tuple[Sight | None, Glance]:
            glance, sights = self._glance(op, at), dict(seeing)
            return put.sight(sights.get(0), sights.get(1), glance), glance

        seeing = [(at, seen) for at, seen in enumerate(pair) if seen is not None]
        return (
            self.sights.ask(result.after_writes, self._sizes[axis], seeing, work_out, axis)
            if seeing
            else None
        )

    def _blinded(self, states: Sequence[State], reason: Reason) -> State:
        """All of several tensors, in an unknown way."""
        seen = (
            [each and self.sights[each] for each in along] for along in zip(*states, strict=True)
        )
        state = tuple(self.sights.seen(blind(sights, reason)) for sights in seen)
        return state if any(state) else self._blind

    # -- operators ---------------------------------------------------------------------------------------------------

    def _run(self, op: OpCall) -> None:
        states = [self.read(tensor) for tensor in op.inputs]
        written = [op.inputs[position] for position in self._written(op.signature)]
        if states.count(self._blind) == len(states):
            self._enter(op, [self._blind] * len(op.outputs), written)
            return
        operator = self._operator(op.signature)
        if self._undecided:
            self._find_channels(op, operator, states)
        returned = self._enter(op, self._results(op, operator, states), written)
        if written and not op.signature.is_view:
            self._write_silently(op, written, states, returned)

    def _enter(self, op: OpCall, results: Sequence[State], written: Sequence[int]) -> set[int]:
        """Enter what an operator returned: new memory, views, or an operand that it wrote to, whose memory it returns.

        Views that see nothing are kept, too, because what they look into may be written later.
        """
        operands = (*written, *op.inputs)
        storages = [self._storages[tensor] for tensor in operands]
        returned = set()
        for position, (tensor, state) in enumerate(zip(op.outputs, results, strict=True)):
            storage = self._storages[tensor]
            if storage not in storages:
                self._own(tensor, state)
                continue
            target = operands[storages.index(storage)]
            if op.signature.is_view:
                self._derived[tensor] = (target, op, position)
                self._states[tensor], self._stamps[tensor] = state, self._writes.get(storage, 0)
            else:
                returned.add(storage)
                self._write(target, tensor, state)
        return returned

    def _write_silently(
        self, op: OpCall, written: Sequence[int], states: Sequence[State], returned: set[int]
    ) -> None:
        """Operands that are written to but not returned may see everything that the operator looks at."""
        for tensor in written:
            if self._storages[tensor] not in returned:
                self._write(tensor, tensor, self._blinded(states, self._reason(op)))

    def _results(self, op: OpCall, operator: _Operator, states: Sequence[State]) -> list[State]:
        """Return what the results see, given what the operands see."""
        read = states[: len(operator.shapes)]  # without those that are only written to
        seeing = [
            (position, state) for position, state in enumerate(read) if state is not self._blind
        ]
        if operator.rule is None:
            return [
                self._blinded([state for _, state in seeing] or [self._blind], self._reason(op))
            ] * len(op.outputs)
        if len(seeing) == 1 and all(
            seeing[0][0] in result.passed_on for result in operator.results
        ):
            return [self._followed(seeing[0][1])] * len(op.outputs)
        by_axis = [
            [(position, seen) for position, state in seeing if (seen := state[at]) is not None]
            if is_followed
            else []
            for at, is_followed in enumerate(self._is_followed)
        ]
        return [self._result(op, operator, result, by_axis) for result in operator.results]

    def _followed(self, state: State) -> State:
        """Without channels that were found since."""
        followed = tuple(
            [
                seen if is_followed else None
                for seen, is_followed in zip(state, self._is_followed, strict=True)
            ]
        )
        return followed if any(followed) else self._blind

    def _result(
        self,
        op: OpCall,
        operator: _Operator,
        result: _Result,
        by_axis: Sequence[Sequence[tuple[int, Seen]]],
    ) -> State:
        """Return what one result sees of each axis."""
        looked: list[tuple[int, Sight | None, Glance]] = []

        def look(seeing: Sequence[tuple[int, Sight]], at: int) -> tuple[Sight | None, Glance]:
            for other, sight, glance in looked:
                turn = self._turn(result, operator.shapes, by_axis[other], by_axis[at])
                if turn is not None and self._sizes[other] == self._sizes[at]:
                    return sight and turned(sight, turn), glance
            glance = self._glance(op, at)
            looked.append((at, _looked(result, seeing, operator.shapes, glance), glance))
            return looked[-1][1:]

        if 0 in result.shape:
            return self._blind
        state = tuple(
            [
                self.sights.ask(result.answers, self._sizes[at], seeing, look, at)
                if seeing
                else None
                for at, seeing in enumerate(by_axis)
            ]
        )
        return state if any(state) else self._blind

    def _turn(
        self,
        result: _Result,
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
        for (position, seen), (at, as_seen) in zip(one, other, strict=True):
            if position != at or seen[1:] != as_seen[1:]:
                return None
            turn = self.sights.turn(seen[0], as_seen[0])
            if turn is None:
                return None
            if (position, turn) not in result.turns:
                ways = result.looks[position] if position < len(result.looks) else None
                result.turns[position, turn] = turn_through(
                    ways, shapes[position], result.shape, turn
                )
            turns.add(result.turns[position, turn])
        return turns.pop() if len(turns) == 1 else None

    def _find_channels(self, op: OpCall, operator: _Operator, states: Sequence[State]) -> None:
        """The first product that sums over one axis of an input from end to end sums over its channels.

        An input of which it sums over no axis has none. Of several dimensions that an operator takes as a whole, as a recurrent
        layer does with steps and channels, the channels are the last.
        """
        if id(op.signature) not in self._summed:
            self._summed[id(op.signature)] = _summed(op.signature, operator)
        for position, dim, length in self._summed[id(op.signature)]:
            self._decide(states[position], dim, length)

    def _decide(self, state: State, summed: int, length: int) -> None:
        followed: dict[int, list[tuple[int, bool]]] = {}
        for (tensor, axis), size, seen in zip(self._axes, self._sizes, state, strict=True):
            if seen is not None and tensor in self._undecided:
                sight = self.sights[seen]
                varies = any(term.dims[summed] is not None for term in sight.low)
                is_all = length == size and all(_is_alone(term, summed) for term in sight.low)
                followed.setdefault(tensor, []).extend([(axis, is_all)] if varies else [])
        for tensor, axes in followed.items():
            if not axes or (len(axes) == 1 and axes[0][1]):
                self.channels[tensor] = axes[0][0] if axes else None
                self._is_followed = [self.channels.get(each) != dim for each, dim in self._axes]
                self._undecided.discard(tensor)
            elif len(axes) > 1:
                self._undecided.discard(tensor)

    def _operator(self, signature: OpSignature) -> _Operator:
        operator = self._operators.get(id(signature))
        if operator is None:
            rule = windows(signature)
            shapes = tuple(spec.shape for spec in signature.inputs)
            results = tuple(
                _result_of(_looks_of(rule, at, signature), spec.shape, shapes)
                for at, spec in enumerate(signature.outputs)
            )
            operator = self._operators[id(signature)] = _Operator(
                rule=rule, shapes=shapes, results=results
            )
        return operator

    def _written(self, signature: OpSignature) -> Sequence[int]:
        if id(signature) not in self._written_by:
            self._written_by[id(signature)] = _written(signature)
        return self._written_by[id(signature)]

    def _glance(self, op: OpCall, axis: int) -> Glance:
        return Glance(
            size=self._sizes[axis], reason=self._reason(op), strict_norm=self._strict_norm
        )

    def _reason(self, op: OpCall) -> Reason:
        return Reason(op.signature.operator, self._trace.path_of(op))


def _summed(signature: OpSignature, operator: _Operator) -> list[tuple[int, int, int]]:
    """Return the operands that a product sums over: position, last summed dimension, and length."""
    found: list[tuple[int, int, int]] = []
    if operator.rule is None or not compute_cost(signature).cost.macs:
        return found
    for position, (ways, shape) in enumerate(
        zip(operator.results[0].looks, operator.shapes, strict=False)
    ):
        step = ways[0].steps[0] if ways and ways[0].steps else None
        summed = (
            [dim for dim, how in enumerate(step.dims) if how is WHOLE]
            if isinstance(step, Look)
            else []
        )
        if summed:
            found.append((position, summed[-1], shape[summed[-1]]))
    return found


def _looked(
    result: _Result, seeing: Sequence[tuple[int, Sight]], shapes: Sequence[Shape], glance: Glance
) -> Sight | None:
    """Return what a result sees along one axis, given what the operands see of it."""
    parts: list[tuple[Piece | None, Sight]] = []
    for position, sight in seeing:
        ways: Ways = result.looks[position] if position < len(result.looks) else None
        if ways is None:
            parts.append((None, everything(sight, shapes[position], result.shape, glance)))
        elif len(ways) == 1 and ways[0].is_identity and shapes[position] == result.shape:
            parts.append((None, sight))
        else:
            parts += [follow(sight, shapes[position], each, glance) for each in ways]
    return united(parts, result.shape, glance.size) if parts else None


def _result_of(looks: Looks, shape: Shape, shapes: Sequence[Shape]) -> _Result:
    passed_on = [
        position
        for position, (ways, given) in enumerate(zip(looks, shapes, strict=False))
        if ways is not None
        and len(ways) == 1
        and ways[0].is_identity
        and given == shape
        and 0 not in shape
    ]
    return _Result(
        shape=shape,
        looks=looks,
        answers={},
        after_writes={},
        passed_on=frozenset(passed_on),
        turns={},
    )


def _looks_of(rule: Windows | None, output: int, signature: OpSignature) -> Looks:
    """Return the windows of one result. A rule for one result holds for all of the same shape."""
    if rule is None:
        return (None,)
    if isinstance(rule, EachOutput):
        return rule.looks[output] if output < len(rule.looks) else ()
    same = signature.outputs[output].shape == signature.outputs[0].shape
    return rule if same else ()


def _is_alone(term: Term, dim: int) -> bool:
    """Return whether a field follows only this dimension, place by place."""
    others = (digits for at, digits in enumerate(term.dims) if at != dim)
    digits = term.dims[dim]
    return (
        digits is not None
        and len(digits) == 1
        and digits[0][1] == PeriodicLine((0,), 1)
        and not any(others)
    )


def _last_operators(trace: Trace) -> dict[int, int]:
    """For each module call with operators, the position of its last one."""
    last: dict[int, int] = {}
    for call in reversed(trace.modules):
        forward = [op for op in call.ops if trace.ops[op].phase == "forward"]
        ends = [last[child] for child in call.children if child in last] + forward[-1:]
        if ends:
            last[call.index] = max(ends)
    return last


def _written(signature: OpSignature) -> list[int]:
    """The positions of the operands that an operator writes to, according to its schema."""
    if not signature.op._schema.is_mutable:
        return []
    first = 0
    written: list[int] = []
    for position, argument in enumerate(signature.op._schema.arguments):
        if position < len(signature.args):
            value = signature.args[position]
        else:
            value = signature.kwargs.get(argument.name)
        count = _count_tensors(value)
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += range(first, first + count)
        first += count
    return written


def _count_tensors(value: object) -> int:
    if isinstance(value, tuple):
        return sum(_count_tensors(each) for each in value)
    return int(isinstance(value, TensorSpec))
