"""Follows what is seen of the inputs through the trace, call by call, including shared memory.

Memory and operators are followed in one walk, as each call may write to what others read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from torchscan.analyses.receptive_field.result_states import Axis, ResultStates, State
from torchscan.analyses.receptive_field.sights import Reason
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: a call, the position of an output, and the tensor
Output = tuple[int, int, int]
_UNKNOWN_WRITE = "a write through another tensor"


class Walk:
    """One walk through a trace.

    If the memory behind a view is written to, what the view sees is derived again.
    """

    def __init__(self, trace: Trace, axes: Sequence[Axis], results: ResultStates) -> None:
        self._results = results
        self._trace = trace
        self._blind = self._results.blind
        self._states: dict[int, State] = {}
        self._storages = [record.storage for record in trace.tensors]
        #: of a view: what it is a view of, by which call, as which of its results
        self._derived: dict[int, tuple[int, OpCall, int]] = {}
        #: by memory, how often it was written
        self._writes: dict[int, int] = {}
        #: by memory, what the tensor that has all of it sees now
        self._memory: dict[int, State] = {}
        #: by memory, the versions of the tensor that has all of it
        self._owners: dict[int, set[int]] = {}
        #: after how many writes the state of a tensor was right
        self._stamps: dict[int, int] = {}

        for tensor in {tensor for tensor, _ in axes}:
            shape = trace.tensors[tensor].spec.shape
            state = list(self._blind)
            for position, (of, dim) in enumerate(axes):
                if of == tensor:
                    state[position] = self._results.own_places(len(shape), dim)
            # What has no elements sees nothing.
            self._own(tensor, self._blind if 0 in shape else tuple(state))

    def outputs_by_call(self) -> dict[int, tuple[State, ...]]:
        """Return what the outputs of each module call see when the call ends."""
        ends = _last_operators(self._trace)
        closing = _calls_by_end(ends)
        states_by_call: dict[int, tuple[State, ...]] = {}
        for position, op in enumerate(self._trace.ops):
            if op.phase == "forward":
                self._run(op)
            for call in closing.get(position, ()):
                outputs = self._trace.modules[call].outputs
                states_by_call[call] = tuple(self.read(tensor) for tensor in outputs)
        for module in self._trace.modules:
            if module.index not in states_by_call:
                states = [self._states.get(tensor, self._blind) for tensor in module.outputs]
                states_by_call[module.index] = tuple(states)
        return states_by_call

    def outputs_in_turn(self) -> Iterator[tuple[int, int, State]]:
        """Yield a call, the position of an output and its state, as soon as the state is known.

        States that no later call reads are dropped, because they may hold much memory.
        """
        ends = _last_operators(self._trace)
        closing = _calls_by_end(ends)
        last_uses = _last_uses(self._trace, ends)
        outputs = _outputs_without_operators(self._trace, ends)
        tensors = defaultdict[int, list[int]](list)
        for tensor, storage in enumerate(self._storages):
            tensors[storage].append(tensor)

        for position, op in enumerate(self._trace.ops):
            if op.phase == "forward":
                self._run(op)
            for call in closing.get(position, ()):
                for place, tensor in enumerate(self._trace.modules[call].outputs):
                    yield call, place, self.read(tensor)
            for storage in last_uses.get(position, ()):
                for call, place, tensor in outputs.pop(storage, ()):
                    yield call, place, self._states.get(tensor, self._blind)
                self._memory.pop(storage, None)
                for tensor in tensors[storage]:
                    self._states.pop(tensor, None)
        for call, place, tensor in chain.from_iterable(outputs.values()):
            yield call, place, self._states.get(tensor, self._blind)

    def read(self, tensor: int) -> State:
        """Return what a tensor sees now."""
        storage = self._storages[tensor]
        num_writes = self._writes.get(storage, 0)
        if num_writes == self._stamps.get(tensor, 0):
            return self._states.get(tensor, self._blind)
        if tensor in self._derived:
            parent, op, position = self._derived[tensor]
            now = self.read(parent)
            states = [self._states.get(each, self._blind) for each in op.inputs]
            for place, operand in enumerate(op.inputs):
                if operand == parent:
                    states[place] = now
            state = self._results.results(op, states)[position]
        elif tensor in self._owners.get(storage, ()):
            state = self._memory[storage]
        else:
            state = self._results.mix([self._memory[storage]], Reason(_UNKNOWN_WRITE, ""))
        self._states[tensor], self._stamps[tensor] = state, num_writes
        return state

    def _run(self, op: OpCall) -> None:
        states = [self.read(tensor) for tensor in op.inputs]
        written = [op.inputs[position] for position in self._results.written_by(op.signature)]
        if states.count(self._blind) == len(states):
            self._enter(op, [self._blind] * len(op.outputs), written)
            return
        self._results.find_channels(op, states)
        returned = self._enter(op, self._results.results(op, states), written)
        if op.signature.is_view:
            return
        for tensor in written:
            # An operand that is written to but not returned may see all that the operator reads.
            if self._storages[tensor] not in returned:
                state = self._results.mix(states, self._results.reason(op))
                self._write(tensor, tensor, state)

    def _enter(self, op: OpCall, results: Sequence[State], written: Sequence[int]) -> set[int]:
        """Enter what an operator returned; return the memory of operands that it wrote to.

        A result is new memory, a view, or an operand that the operator wrote to. Views that see
        nothing are kept, too, because the memory behind them may be written later.
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

    def _own(self, tensor: int, state: State) -> None:
        """Enter a tensor that has all of its memory."""
        storage = self._storages[tensor]
        self._states[tensor], self._memory[storage] = state, state
        self._owners.setdefault(storage, set()).add(tensor)
        if storage in self._writes:
            self._stamps[tensor] = self._writes[storage]

    def _write(self, target: int, written: int, state: State) -> None:
        """Note a write to ``target``, which is ``written`` from then on.

        Tensors that share its memory see the same.
        """
        storage = self._storages[target]
        whole = state
        tensor = target
        while tensor in self._derived:
            parent, op, position = self._derived[tensor]
            whole = self._results.put(whole, self.read(parent), parent, op, position)
            tensor = parent
        self._owners.setdefault(storage, set()).add(tensor)
        self._writes[storage] = self._writes.get(storage, 0) + 1
        self._memory[storage] = whole
        if target in self._derived:
            self._derived[written] = self._derived[target]
        else:
            self._owners[storage].add(written)
        self._states[written], self._stamps[written] = state, self._writes[storage]


def _calls_by_end(ends: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the module calls that end with each operator."""
    closing: dict[int, list[int]] = {}
    for call, end in ends.items():
        closing.setdefault(end, []).append(call)
    return closing


def _outputs_without_operators(trace: Trace, ends: Mapping[int, int]) -> dict[int, list[Output]]:
    """Return the outputs of module calls without operators, by their memory."""
    outputs: dict[int, list[Output]] = {}
    for module in trace.modules:
        if module.index in ends:
            continue
        for place, tensor in enumerate(module.outputs):
            storage = trace.tensors[tensor].storage
            outputs.setdefault(storage, []).append((module.index, place, tensor))
    return outputs


def _last_uses(trace: Trace, ends: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the memory that no later operator uses, by the position of an operator.

    A view uses all operands of the call that created it as long as it is used itself, because its
    state is derived again after a write.
    """
    uses: dict[int, int] = {}
    for call, end in ends.items():
        for tensor in trace.modules[call].outputs:
            storage = trace.tensors[tensor].storage
            uses[storage] = max(uses.get(storage, 0), end)
    for position in range(len(trace.ops) - 1, -1, -1):
        op = trace.ops[position]
        if op.phase != "forward":
            continue
        storages = [trace.tensors[tensor].storage for tensor in (*op.inputs, *op.outputs)]
        last = position
        if op.signature.is_view:
            last = max(position, *[uses.get(storage, 0) for storage in storages])
        for storage in storages:
            uses[storage] = max(uses.get(storage, 0), last)
    by_position: dict[int, list[int]] = {}
    for storage, position in uses.items():
        by_position.setdefault(position, []).append(storage)
    return by_position


def _last_operators(trace: Trace) -> dict[int, int]:
    """Return, for each module call with operators, the position of its last one."""
    last: dict[int, int] = {}
    for call in reversed(trace.modules):
        forward = [op for op in call.ops if trace.ops[op].phase == "forward"]
        ends = [last[child] for child in call.children if child in last] + forward[-1:]
        if ends:
            last[call.index] = max(ends)
    return last
