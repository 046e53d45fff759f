"""Steps of torch's optimizers that update one parameter at a time, recorded from a few parameters.

Such a step runs the same operators for each parameter of the same shape and type: 200,000 operators
for a model of 10,000 layers. So a small optimizer of the same kind takes a step on a few
parameters, one for each pair of kinds that follow each other, and its operators are recorded for
all parameters. The order matters, because tensors created for one parameter are released in the
turn of the next.

If a step does not have this form, it is taken and recorded on the parameters themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchscan.recording.bookkeeping.tensor_layouts import PLAIN_TYPES
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.recorder import Recorder
from torchscan.recording.training.optimizers import like
from torchscan.recording.training.small_step import (
    GRADIENT,
    PARAMETER,
    STATE,
    CreatedTensor,
    KeptState,
    NotRepeatedError,
    SmallStep,
    StepPart,
    gradient_of,
)
from torchscan.trace.events import OpCall, TensorSpec
from torchscan.trace.records import TensorKind, TensorRecord

#: optimizers that loop over parameters and write to existing state; Rprop and ASGD recreate theirs
_NAMES = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop")
_LOOPING = {getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name)}
#: options that choose another implementation than a loop
_AT_ONCE = ("foreach", "fused", "differentiable", "capturable")
#: types of the other options
_NUMBERS = frozenset({bool, int, float, type(None)})
#: smallest number of parameters; a loop over fewer is as fast
_MANY = 12

#: one group of parameters, the kind of one of them, and the kind of the next in that group
_Place = tuple[int, int, int | None]


class _Kind(NamedTuple):
    """The properties that decide which operators update a parameter."""

    spec: TensorSpec
    gradient: TensorSpec


class RepeatedStep:
    """The step of an optimizer, derived from a few of its parameters."""

    def __init__(self, optimizer: Optimizer, recorder: Recorder, device_type: str) -> None:
        self._optimizer = optimizer
        self._recorder = recorder
        self._table = recorder.table
        self._device_type = device_type
        self._numbers: dict[_Kind, int] = {}
        self._groups: list[list[Tensor]] = []
        for group in optimizer.param_groups:
            self._groups.append([each for each in group["params"] if each.grad is not None])
        #: for each group the numbers of the kinds of its parameters
        self._kinds: list[list[int]] = []
        for parameters in self._groups:
            kinds = []
            for parameter in parameters:
                gradient = gradient_of(parameter)
                if not _is_simple(parameter) or not _is_simple(gradient):
                    raise NotRepeatedError
                kind = _Kind(self._table.spec_of(parameter), self._table.spec_of(gradient))
                kinds.append(self._numbers.setdefault(kind, len(self._numbers)))
            self._kinds.append(kinds)
        self._parts = self._learnt()

    @property
    def parameters(self) -> Iterator[tuple[Tensor, StepPart]]:
        """The parameters in their turns, each with the part of the step that updates it."""
        for number, (group, kinds) in enumerate(zip(self._groups, self._kinds, strict=True)):
            for parameter, kind, following in zip(group, kinds, [*kinds[1:], None], strict=True):
                yield parameter, self._parts[number, kind, following]

    # -- a small step ----------------------------------------------------------------------------

    def _learnt(self) -> dict[_Place, StepPart]:
        """Return the operators of a step on few parameters, by place."""
        chosen = [_with_every_pair(kinds) for kinds in self._kinds]
        if 2 * sum(map(len, chosen)) > sum(map(len, self._groups)):
            raise NotRepeatedError  # nothing is gained
        by_number = list(self._numbers)
        groups: list[list[Tensor]] = []
        places: list[_Place] = []
        for number, kinds in enumerate(chosen):
            groups.append([_example(by_number[kind]) for kind in kinds])
            pairs = zip(kinds, [*kinds[1:], None], strict=True)
            places += [(number, kind, following) for kind, following in pairs]
        small = like(self._optimizer, groups)
        examples = list(itertools.chain.from_iterable(groups))
        step = SmallStep(small, examples, self._table, self._recorder, self._device_type)
        return dict(zip(places, step.parts(), strict=True))

    # -- all of it -------------------------------------------------------------------------------

    def write_down(self, paths: Mapping[int, str]) -> None:
        """Enter the state of all parameters, and record the step."""
        table, ops = self._table, self._recorder.ops
        turns = list(self.parameters)
        count = len(ops) + sum([len(part.ops) for _, part in turns])
        states = []
        for parameter, part in turns:
            path = paths[id(parameter)]
            states.append([self._enter_state(each, path, count) for each in part.state])
        root = self._recorder.tree.root.index
        for turn, state in zip(turns, states, strict=True):
            _write_down(turn, state, table, ops, root)
        table.storages.advance(len(ops))

    def _enter_state(self, state: KeptState, path: str, died: int) -> int:
        """Enter a tensor that is let go of with the optimizer; return its index."""
        kind: TensorKind = "optimizer state"
        name = f"{path}.{state.name}"
        born = len(self._recorder.ops)
        storage = self._table.storages.add_told(state.size, born, died, kind, name)
        self._table.records.append(TensorRecord(state.spec, storage, kind, name, None))
        return len(self._table.records) - 1


def repeated_step(
    optimizer: Optimizer, recorder: Recorder, device_type: str
) -> RepeatedStep | None:
    """Return the step if it repeats the same operators for each parameter, or None."""
    if not _loops(optimizer, device_type):
        return None
    try:
        return RepeatedStep(optimizer, recorder, device_type)
    except NotRepeatedError:
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
    if any(group.get(name) for name in _AT_ONCE):
        return False
    if device_type != "cpu" and group.get("foreach", False) is None:
        return False
    for name, value in group.items():
        if name not in ("params", "param_names"):
            numbers = value if isinstance(value, tuple) else (value,)
            if not _NUMBERS.issuperset(map(type, numbers)):
                return False
    return True


def _is_simple(tensor: Tensor) -> bool:
    if type(tensor) not in PLAIN_TYPES or not tensor.is_meta:
        return False
    return tensor.layout is torch.strided and tensor.is_floating_point()


def _with_every_pair(kinds: Sequence[int]) -> list[int]:
    """Return a short sequence with the same ends, in which the same kinds follow each other."""
    short = list(kinds[:1])
    ways: dict[int, dict[int, None]] = {}
    for kind, following in itertools.pairwise(kinds):
        if following not in ways.setdefault(kind, {}):
            short += _way(ways, short[-1], kind)
            short.append(following)
            ways[kind][following] = None
    if kinds:
        short += _way(ways, short[-1], kinds[-1])
    return short


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


def _write_down(
    turn: tuple[Tensor, StepPart],
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
        if places[GRADIENT] < 0 and GRADIENT in inputs:
            places[GRADIENT] = table.find(gradient_of(parameter)).index
        index = len(ops)
        taken = tuple([places[each] for each in inputs])
        first = len(records)
        for output in outputs:
            _enter(output, parameter, places, table, index, start)
            places.append(len(records) - 1)
        ops.append(OpCall(signature, taken, tuple(range(first, len(records))), root, "optimizer"))


def _enter(
    created: CreatedTensor,
    parameter: Tensor,
    places: Sequence[int],
    table: TensorTable,
    producer: int,
    start: int,
) -> None:
    """Enter a tensor that an operator returned."""
    spec, memory, is_version, size, gone = created
    if memory is None:
        storage = table.storages.add_told(size, producer, start + gone, "intermediate", "")
        table.records.append(TensorRecord(spec, storage, "intermediate", "", producer))
    elif is_version and memory < STATE:
        written = parameter if memory == PARAMETER else gradient_of(parameter)
        table.protect(written)
        table.rewrite(written, spec, producer)
    else:
        old = table.records[places[memory]]
        kind, name = (old.kind, old.name) if is_version else ("intermediate", "")
        table.records.append(TensorRecord(spec, old.storage, kind, name, producer))
