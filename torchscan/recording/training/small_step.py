"""The step of a small optimizer, and its operators for each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensor_layouts import NO_FLOATS
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.execution.abstract import AbstractExecution
from torchscan.recording.recorder import Recorder
from torchscan.recording.training.optimizer_steps import state_of, take_step
from torchscan.recording.undo import run_at_end_of_pass
from torchscan.trace.events import OpCall, OpSignature, TensorSpec

#: tensors of each parameter before the step: the parameter, its gradient, then its state
PARAMETER, GRADIENT, STATE = 0, 1, 2


class CreatedTensor(NamedTuple):
    """A tensor that an operator returned."""

    spec: TensorSpec
    #: position of the first with the same memory among the tensors of this parameter, in the order
    #: in which they came up, or None if the memory is new
    memory: int | None
    #: True if it is a tensor that was there before the step, written to
    is_version: bool
    #: bytes of its memory
    size: int
    #: number of operators after the first of this parameter at which new memory is let go of
    gone: int


class UpdateOp(NamedTuple):
    """One operator of the step of a parameter of some kind."""

    signature: OpSignature
    inputs: tuple[int, ...]
    outputs: tuple[CreatedTensor, ...]


@dataclass(frozen=True, slots=True)
class KeptState:
    """A tensor that is kept for each parameter."""

    name: str
    spec: TensorSpec
    size: int


@dataclass(frozen=True, slots=True)
class StepPart:
    """The part of a step that updates one parameter."""

    state: tuple[KeptState, ...]
    ops: tuple[UpdateOp, ...]


class NotRepeatedError(Exception):
    """The step does not repeat the same operators for one parameter after the other."""


def gradient_of(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, which must have one."""
    if parameter.grad is None:
        raise NotRepeatedError
    return parameter.grad


class SmallStep(nn.Module):
    """The step of a small optimizer, recorded separately from the pass."""

    def __init__(
        self,
        optimizer: Optimizer,
        examples: Sequence[Tensor],
        table: TensorTable,
        around: Recorder,
        device_type: str,
    ) -> None:
        """Record the step; ``around`` is the recorder of the pass."""
        super().__init__()
        self._optimizer = optimizer
        execution = AbstractExecution(NO_FLOATS, device_type)
        self._recorder = Recorder(Inventory(self), execution, lambda _: True, around.assume, None)
        self._table = self._recorder.table
        self._table.share_specs(table)
        take_step(optimizer, is_recorded=False)
        if device_type == "cuda":
            self._table.storages.leave_out_host()
        #: of each parameter the names and indices of what is kept for it
        self._states = self._entered(examples)
        tree = self._recorder.tree
        run_at_end_of_pass(tree.stop)
        with tree.watched(self._recorder.ends.note), self._recorder:
            self()
        #: by memory that was there before the step: of which parameter, and what of it
        self._slots = self._slots_of(examples)
        self._recorder.end()
        self._storages = self._table.storages.records()

    def forward(self) -> None:
        """Take the step."""
        self._recorder.begin("optimizer")
        take_step(self._optimizer, is_recorded=True)

    def _entered(self, examples: Sequence[Tensor]) -> list[list[tuple[str, int]]]:
        for each in examples:
            self._table.enter_copy(each, "parameter", "")
        with_state = list(map(id, self._optimizer.state))
        if with_state and with_state != list(map(id, examples)):
            raise NotRepeatedError
        states: dict[int, list[tuple[str, int]]] = {id(each): [] for each in examples}
        for parameter, name, value in state_of(self._optimizer):
            self._table.enter_state(value, name)
            states[id(parameter)].append((name, self._table.find(value).index))
        return list(states.values())

    def _slots_of(self, examples: Sequence[Tensor]) -> dict[int, tuple[int, int]]:
        slots = {}
        for number, (parameter, state) in enumerate(zip(examples, self._states, strict=True)):
            slots[self._table.find(parameter).storage] = (number, PARAMETER)
            slots[self._table.find(gradient_of(parameter)).storage] = (number, GRADIENT)
            for place, (_, index) in enumerate(state, STATE):
                slots[self._memory_of(index)] = (number, place)
        if len(slots) != sum([STATE + len(state) for state in self._states]):
            raise NotRepeatedError  # some share their memory
        return slots

    def _memory_of(self, tensor: int) -> int:
        return self._table.records[tensor].storage

    def parts(self) -> list[StepPart]:
        """Return the operators of each parameter."""
        turns = self._turns()
        ends = [turn[-1] + 1 for turn in (*turns[1:], turns[-1])]
        numbered = enumerate(zip(turns, ends, strict=True))
        return [self._part(number, turn, end) for number, (turn, end) in numbered]

    def _turns(self) -> list[list[int]]:
        """Return the operators of each parameter; two parameters share no tensors."""
        owners = {storage: number for storage, (number, _) in self._slots.items()}
        turns: list[list[int]] = [[] for _ in self._states]
        latest = 0
        for index, op in enumerate(self._recorder.ops):
            owned = {owners[self._memory_of(each)] for each in op.inputs}
            if len(owned) != 1 or min(owned) < latest:
                raise NotRepeatedError
            latest = min(owned)
            turns[latest].append(index)
            for each in op.outputs:
                if owners.setdefault(self._memory_of(each), latest) != latest:
                    raise NotRepeatedError
        if not all(turns):
            raise NotRepeatedError
        return turns

    def _part(self, number: int, turn: Sequence[int], latest: int) -> StepPart:
        """Return the operators of one parameter.

        Their temporaries die when the next one's turn ends.
        """
        kept = self._states[number]
        state = []
        for name, index in kept:
            record = self._table.records[index]
            state.append(KeptState(name, record.spec, self._storages[record.storage].size))
        places = {index: place for place, (_, index) in enumerate(kept, STATE)}
        slots = self._slots.items()
        memories = {storage: place for storage, (owner, place) in slots if owner == number}
        count = STATE + len(state)
        ops = []
        for index in turn:
            op = self._recorder.ops[index]
            for each in op.inputs:  # the parameter, or its gradient, as it was before
                places.setdefault(each, memories[self._memory_of(each)])
            inputs = tuple([places[each] for each in op.inputs])
            outputs = self._outputs_of(op, turn[0], latest, memories)
            ops.append(UpdateOp(op.signature, inputs, outputs))
            for each in op.outputs:
                memories.setdefault(self._memory_of(each), count)
                places[each] = count
                count += 1
        return StepPart(tuple(state), tuple(ops))

    def _outputs_of(
        self, op: OpCall, start: int, latest: int, memories: Mapping[int, int]
    ) -> tuple[CreatedTensor, ...]:
        created = []
        for each in op.outputs:
            record = self._table.records[each]
            block = self._storages[record.storage]
            memory = memories.get(record.storage)
            is_version = record.kind != "intermediate"
            gone = 0
            if memory is None:
                if block.died is None or block.died > latest:
                    raise NotRepeatedError
                gone = block.died - start
            created.append(CreatedTensor(record.spec, memory, is_version, block.size, gone))
        return tuple(created)
