"""Steps of torch's optimizers that update one parameter at a time, recorded from a few parameters.

Such a step runs the same operators for each parameter of the same shape and type: 200,000 operators
for a model of 10,000 layers. So a small optimizer of the same kind takes a step on a few parameters,
one for each pair of kinds that follow each other, and its operators are recorded for all parameters.
The order matters, because tensors created for one parameter are released in the turn of the next.

If a step does not have this form, it is taken and recorded on the parameters themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensors import NO_FLOATS, PLAIN_TYPES, TensorTable
from torchscan.recording.execution.abstract import AbstractExecution
from torchscan.recording.recorder import Recorder
from torchscan.recording.training.optimizers import like, state_of, take_step
from torchscan.trace.events import OpCall, OpSignature, TensorRecord, TensorSpec

#: optimizers that loop over parameters and write to existing state; Rprop and ASGD recreate theirs
_LOOPING = {
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop")
    if hasattr(torch.optim, name)
}
#: options that choose another implementation than a loop
_AT_ONCE = ("foreach", "fused", "differentiable", "capturable")
#: smallest number of parameters; a loop over fewer is as fast
_MANY = 12

#: tensors of each parameter before the step: the parameter, its gradient, then its state
_PARAMETER, _GRADIENT, _STATE = 0, 1, 2

#: one group of parameters, the kind of one of them, and the kind of the next in that group
_Place = tuple[int, int, int | None]


class _Kind(NamedTuple):
    """The properties that decide which operators update a parameter."""

    spec: TensorSpec
    gradient: TensorSpec


class _Made(NamedTuple):
    """A tensor that an operator returned."""

    spec: TensorSpec
    #: of the tensors of this parameter, in the order in which they came up, the first with the same memory; None: it is new
    memory: int | None
    #: whether it is a tensor that was there before the step, written to
    is_version: bool
    #: bytes of its memory, and how many operators after the first of this parameter that is let go of, if it is new
    size: int
    gone: int


class _Op(NamedTuple):
    """One operator of the step of a parameter of some kind."""

    signature: OpSignature
    inputs: tuple[int, ...]
    outputs: tuple[_Made, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """A tensor that is kept for each parameter."""

    name: str
    spec: TensorSpec
    size: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a step that updates one parameter."""

    state: tuple[_State, ...]
    ops: tuple[_Op, ...]


class _NotRepeatedError(Exception):
    """The step does not repeat the same operators for one parameter after the other."""


class RepeatedStep:
    """The step of an optimizer, derived from a few of its parameters."""

    def __init__(self, optimizer: Optimizer, recorder: Recorder, device_type: str) -> None:
        self._optimizer = optimizer
        self._recorder = recorder
        self._table = recorder.table
        self._device_type = device_type
        self._numbers: dict[_Kind, int] = {}
        self._groups = [
            [each for each in group["params"] if each.grad is not None]
            for group in optimizer.param_groups
        ]
        self._kinds = [[self._kind_of(each) for each in group] for group in self._groups]
        self._parts = self._learnt()

    @property
    def parameters(self) -> Iterator[tuple[Tensor, _Part]]:
        """Each parameter in its turn, and what is done to it."""
        for number, (group, kinds) in enumerate(zip(self._groups, self._kinds, strict=True)):
            for parameter, kind, following in zip(group, kinds, [*kinds[1:], None], strict=True):
                yield parameter, self._parts[number, kind, following]

    def _kind_of(self, parameter: Tensor) -> int:
        gradient = _gradient_of(parameter)
        if not all(
            type(each) in PLAIN_TYPES and _is_simple(each) for each in (parameter, gradient)
        ):
            raise _NotRepeatedError
        kind = _Kind(self._table.spec_of(parameter), self._table.spec_of(gradient))
        return self._numbers.setdefault(kind, len(self._numbers))

    # -- a small step -------------------------------------------------------------------------------------------------

    def _learnt(self) -> dict[_Place, _Part]:
        """Return the operators of a step on few parameters, by place."""
        chosen = [_with_every_pair(kinds) for kinds in self._kinds]
        if 2 * sum(map(len, chosen)) > sum(map(len, self._groups)):
            raise _NotRepeatedError  # nothing is gained
        by_number = list(self._numbers)
        examples = [[_example(by_number[kind]) for kind in kinds] for kinds in chosen]
        small = like(self._optimizer, examples)
        step = _SmallStep(
            small,
            [each for group in examples for each in group],
            self._table,
            self._recorder,
            self._device_type,
        )
        places: list[_Place] = [
            (number, kind, following)
            for number, kinds in enumerate(chosen)
            for kind, following in zip(kinds, [*kinds[1:], None], strict=True)
        ]
        return dict(zip(places, step.parts(), strict=True))

    # -- all of it ----------------------------------------------------------------------------------------------------

    def write_down(self, paths: Mapping[int, str]) -> None:
        """Enter the state of all parameters, and record the step."""
        table, ops = self._table, self._recorder.ops
        turns = list(self.parameters)
        storages, count = table.storages, len(ops) + sum([len(part.ops) for _, part in turns])
        states = [
            [
                self._enter_state(each, f"{paths[id(parameter)]}.{each.name}", count)
                for each in part.state
            ]
            for parameter, part in turns
        ]
        root = self._recorder.tree.root.index
        for turn, state in zip(turns, states, strict=True):
            _write_down(turn, state, table, ops, root)
        storages.advance(len(ops))

    def _enter_state(self, state: _State, name: str, died: int) -> int:
        """It is let go of with the optimizer."""
        storage = self._table.storages.add_told(
            state.size, len(self._recorder.ops), died, "optimizer state", name
        )
        self._table.records.append(TensorRecord(state.spec, storage, "optimizer state", name, None))
        return len(self._table.records) - 1


def repeated_step(
    optimizer: Optimizer, recorder: Recorder, device_type: str
) -> RepeatedStep | None:
    """Return the step if it repeats the same operators for each parameter, or None."""
    if not _loops(optimizer, device_type):
        return None
    try:
        return RepeatedStep(optimizer, recorder, device_type)
    except _NotRepeatedError:
        return None


def _loops(optimizer: Optimizer, device_type: str) -> bool:
    """Return whether an optimizer is one of torch's, without state, hooks and unusual options."""
    if type(optimizer) not in _LOOPING or optimizer.state or "step" in vars(optimizer):
        return False
    if any(len(hooks) for name, hooks in vars(optimizer).items() if name.endswith("_hooks")):
        return False
    if sum(len(group["params"]) for group in optimizer.param_groups) < _MANY:
        return False
    return all(_has_simple_options(group, device_type) for group in optimizer.param_groups)


def _has_simple_options(group: Mapping[str, Any], device_type: str) -> bool:
    options = {
        name: value for name, value in group.items() if name not in ("params", "param_names")
    }
    if any(options.get(name) for name in _AT_ONCE) or (
        device_type != "cpu" and options.get("foreach", False) is None
    ):
        return False
    return all(
        _is_number(each)
        for value in options.values()
        for each in (value if isinstance(value, tuple) else (value,))
    )


def _is_number(value: object) -> bool:
    return value is None or type(value) in (bool, int, float)


def _is_simple(tensor: Tensor) -> bool:
    return tensor.is_meta and tensor.layout is torch.strided and tensor.is_floating_point()


def _gradient_of(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise _NotRepeatedError
    return parameter.grad


def _with_every_pair(kinds: Sequence[int]) -> list[int]:
    """Return a short sequence with the same ends, in which the same kinds follow each other."""
    short = list(kinds[:1])
    ways: dict[int, dict[int, None]] = {}
    for kind, following in itertools.pairwise(kinds):
        if following not in ways.setdefault(kind, {}):
            short += _way(ways, short[-1], kind)
            short.append(following)
            ways[kind][following] = None
    return short + (_way(ways, short[-1], kinds[-1]) if kinds else [])


def _way(ways: Mapping[int, Mapping[int, None]], start: int, end: int) -> list[int]:
    """Return the kinds after ``start`` on the shortest known path to ``end``."""
    came_from: dict[int, int] = {start: start}
    reached = [start]
    for kind in reached:
        if kind == end:
            break
        for following in ways.get(kind, ()):
            if following not in came_from:
                came_from[following] = kind
                reached.append(following)
    way = []
    while end != start:
        way.append(end)
        end = came_from[end]
    return way[::-1]


def _example(kind: _Kind) -> Tensor:
    """Return a parameter of this kind, with a gradient."""
    parameter = torch.empty_strided(
        kind.spec.shape, kind.spec.stride, dtype=kind.spec.dtype, device="meta", requires_grad=True
    )
    gradient = kind.gradient
    parameter.grad = torch.empty_strided(
        gradient.shape, gradient.stride, dtype=gradient.dtype, device="meta"
    )
    return parameter


class _SmallStep(nn.Module):
    """The step of a small optimizer, recorded separately from the pass."""

    def __init__(
        self,
        optimizer: Optimizer,
        examples: Sequence[Tensor],
        table: TensorTable,
        around: Recorder,
        device_type: str,
    ) -> None:
        super().__init__()
        self._optimizer = optimizer
        execution = AbstractExecution(NO_FLOATS, device_type)
        self._recorder = Recorder(
            Inventory(self), execution, lambda _: True, around.assume, lambda: None
        )
        self._table = self._recorder.table
        self._table.share_specs(table)
        take_step(optimizer, is_recorded=False)
        if device_type == "cuda":
            self._table.storages.leave_out_host()
        #: of each parameter the names and indices of what is kept for it
        self._states = self._entered(examples)
        with self._recorder.recording():
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
        if self._optimizer.state and list(map(id, self._optimizer.state)) != list(
            map(id, examples)
        ):
            raise _NotRepeatedError
        states: dict[int, list[tuple[str, int]]] = {id(each): [] for each in examples}
        for parameter, name, value in state_of(self._optimizer):
            self._table.enter_state(value, name)
            states[id(parameter)].append((name, self._table.find(value).index))
        return list(states.values())

    def _slots_of(self, examples: Sequence[Tensor]) -> dict[int, tuple[int, int]]:
        slots = {}
        for number, (parameter, state) in enumerate(zip(examples, self._states, strict=True)):
            slots[self._table.find(parameter).storage] = (number, _PARAMETER)
            slots[self._table.find(_gradient_of(parameter)).storage] = (number, _GRADIENT)
            slots |= {
                self._memory_of(index): (number, _STATE + place)
                for place, (_, index) in enumerate(state)
            }
        if len(slots) != sum([_STATE + len(state) for state in self._states]):
            raise _NotRepeatedError  # some share their memory
        return slots

    def _memory_of(self, tensor: int) -> int:
        return self._table.records[tensor].storage

    def parts(self) -> list[_Part]:
        """Return the operators of each parameter."""
        turns = self._turns()
        ends = [turn[-1] + 1 for turn in (*turns[1:], turns[-1])]
        return [self._part(*each) for each in zip(range(len(turns)), turns, ends, strict=True)]

    def _turns(self) -> list[list[int]]:
        """Return the operators of each parameter; two parameters share no tensors."""
        owners = {storage: number for storage, (number, _) in self._slots.items()}
        turns: list[list[int]] = [[] for _ in self._states]
        latest = 0
        for index, op in enumerate(self._recorder.ops):
            owned = {owners[self._memory_of(each)] for each in op.inputs}
            if len(owned) != 1 or min(owned) < latest:
                raise _NotRepeatedError
            latest = min(owned)
            turns[latest].append(index)
            if any(
                owners.setdefault(self._memory_of(each), latest) != latest for each in op.outputs
            ):
                raise _NotRepeatedError
        if not all(turns):
            raise _NotRepeatedError
        return turns

    def _part(self, number: int, turn: Sequence[int], latest: int) -> _Part:
        """Return the operators of one parameter.

        Their temporaries die when the next one's turn ends.
        """
        kept = self._states[number]
        state = [self._state(name, index) for name, index in kept]
        places = {index: _STATE + place for place, (_, index) in enumerate(kept)}
        memories = {
            storage: place for storage, (owner, place) in self._slots.items() if owner == number
        }
        count = _STATE + len(state)
        found = []
        for op in (self._recorder.ops[index] for index in turn):
            for each in op.inputs:  # the parameter, or its gradient, as it was before
                places.setdefault(each, memories[self._memory_of(each)])
            made = self._outputs_of(op, turn[0], latest, memories)
            found.append(_Op(op.signature, tuple([places[each] for each in op.inputs]), made))
            for each in op.outputs:
                memories.setdefault(self._memory_of(each), count)
                places[each] = count
                count += 1
        return _Part(tuple(state), tuple(found))

    def _state(self, name: str, tensor: int) -> _State:
        record = self._table.records[tensor]
        return _State(name, record.spec, self._storages[record.storage].size)

    def _outputs_of(
        self, op: OpCall, start: int, latest: int, memories: Mapping[int, int]
    ) -> tuple[_Made, ...]:
        made = []
        for each in op.outputs:
            record = self._table.records[each]
            block = self._storages[record.storage]
            is_new = record.storage not in memories
            if is_new and (block.died is None or block.died > latest):
                raise _NotRepeatedError
            gone = block.died - start if is_new and block.died is not None else 0
            made.append(
                _Made(
                    record.spec,
                    memories.get(record.storage),
                    record.kind != "intermediate",
                    block.size,
                    gone,
                )
            )
        return tuple(made)


def _write_down(
    turn: tuple[Tensor, _Part],
    state: Sequence[int],
    table: TensorTable,
    ops: list[OpCall],
    root: int,
) -> None:
    """Record the part of the step that updates one parameter."""
    parameter, part = turn
    start, records = len(ops), table.records
    places = [table.find(parameter).index, -1, *state]
    for signature, inputs, outputs in part.ops:
        if places[_GRADIENT] < 0 and _GRADIENT in inputs:
            places[_GRADIENT] = table.find(_gradient_of(parameter)).index
        index = len(ops)
        taken = tuple([places[each] for each in inputs])
        first = len(records)
        for made in outputs:
            _enter(made, parameter, places, table, index, start)
            places.append(len(records) - 1)
        ops.append(OpCall(signature, taken, tuple(range(first, len(records))), root, "optimizer"))


def _enter(
    made: _Made,
    parameter: Tensor,
    places: Sequence[int],
    table: TensorTable,
    producer: int,
    start: int,
) -> None:
    """Enter a tensor that an operator returned."""
    spec, memory, is_version, size, gone = made
    if memory is None:
        storage = table.storages.add_told(size, producer, start + gone, "intermediate", "")
        table.records.append(TensorRecord(spec, storage, "intermediate", "", producer))
    elif is_version and memory < _STATE:
        written = parameter if memory == _PARAMETER else _gradient_of(parameter)
        table.protect(written)
        table.rewrite(written, spec, producer)
    else:
        old = table.records[places[memory]]
        kind, name = (old.kind, old.name) if is_version else ("intermediate", "")
        table.records.append(TensorRecord(spec, old.storage, kind, name, producer))
