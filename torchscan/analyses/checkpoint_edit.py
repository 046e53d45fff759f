"""A trace from which calls are removed that other choices of checkpoints do not run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torchscan.once import once
from torchscan.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """A layer's forward pass, and its second run by a checkpoint."""

    #: path of the layer
    layer: str
    forward: range
    again: range
    #: by call of the second run, the same call of the first run
    first_run: Mapping[int, int]


class CheckpointEdit:
    """Calls to remove from a trace, and the lifetimes of what replaces their results."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._removed: set[int] = set()
        #: by tensor, the one that is read in its place
        self._same: dict[int, int] = {}
        #: by storage, the one that holds its content
        self._storage: dict[int, int] = {}
        self._died = [storage.died for storage in trace.storages]

    def remove_second_run(self, run: LayerRun, unpacking: Sequence[int]) -> None:
        """Let the backward pass read the results of the first run."""
        for index in (*run.again, *unpacking):
            first = run.first_run.get(index)
            self._remove(index, first)
            for tensor in self._trace.ops[index].outputs:
                number = self._trace.tensors[tensor].storage
                died = self._trace.storages[number].died
                if number in self._storage and (died is None or died > run.again.stop):
                    self._extend(self._storage[number], died)

    def save(self, run: LayerRun, saved: Collection[int], release: int) -> None:
        """Save results of the first run, those too that the second run does not get to."""
        unused = {index for index in run.forward if index in saved}
        for index, first in run.first_run.items():
            if first not in saved:
                continue
            unused.discard(first)
            self._remove(index, first)
            for tensor in self._trace.ops[index].outputs:
                number = self._trace.tensors[tensor].storage
                if number in self._storage:
                    self._extend(self._storage[number], self._trace.storages[number].died)
        for index in unused:
            for tensor in self._trace.ops[index].outputs:
                self._extend(self._trace.tensors[tensor].storage, release)

    def release_arguments(
        self, run: LayerRun, release: int, checkpointed: Sequence[LayerRun]
    ) -> None:
        """Free the arguments of a layer that only its checkpoint has held."""
        trace = self._trace
        read: set[int] = set()
        for index in run.again:
            read.update(trace.tensors[each].storage for each in trace.ops[index].inputs)
        for number in read:
            storage = trace.storages[number]
            is_argument = storage.born is not None and storage.born < run.again.start
            if not is_argument or storage.died != release:
                continue
            self._died[number] = self._last_use(number, checkpointed)

    def _last_use(self, number: int, checkpointed: Sequence[LayerRun]) -> int:
        """Return when a storage is last needed by a call that stays, or by a checkpoint."""
        last = self._trace.storages[number].born or 0
        for index in self._readers[number]:
            if index not in self._removed:
                last = max(last, index)
        for run in checkpointed:
            if any(index in run.again for index in self._readers[number]):
                last = max(last, run.again.stop)
        return last + 1

    @once
    def _readers(self) -> dict[int, list[int]]:
        """The calls that read a storage, or what replaces it."""
        readers: dict[int, list[int]] = {number: [] for number in range(len(self._died))}
        for index, op in enumerate(self._trace.ops):
            for tensor in op.inputs:
                number = self._trace.tensors[tensor].storage
                readers[self._storage.get(number, number)].append(index)
        return readers

    def _remove(self, index: int, first: int | None) -> None:
        op, tensors = self._trace.ops[index], self._trace.tensors
        self._removed.add(index)
        replaced = op.inputs if first is None else self._trace.ops[first].outputs
        for tensor, other in zip(op.outputs, replaced, strict=False):
            self._same[tensor] = other
            number, kept = tensors[tensor].storage, tensors[other].storage
            if self._trace.storages[number].born == index:
                self._storage[number] = kept

    def _extend(self, number: int, died: int | None) -> None:
        known = self._died[number]
        self._died[number] = None if known is None or died is None else max(known, died)

    # -- the new trace ----------------------------------------------------------------------------

    def to_trace(self) -> Trace:
        """Return the trace without the removed calls, under new indices."""
        trace = self._trace
        storages, tensors, ops = [], [], []
        for number in self._new_storage:
            storage, died = trace.storages[number], self._died[number]
            moved = storage._replace(born=self._move_moment(storage.born))
            storages.append(moved._replace(died=self._move_moment(died)))
        for index in self._new_tensor:
            tensor = trace.tensors[index]
            number = _follow(tensor.storage, self._storage)
            moved_tensor = tensor._replace(producer=self._move_moment(tensor.producer))
            tensors.append(moved_tensor._replace(storage=self._new_storage[number]))
        for index, op in enumerate(trace.ops):
            if index not in self._removed:
                inputs, outputs = self._move(op.inputs), self._move(op.outputs)
                ops.append(op._replace(inputs=inputs, outputs=outputs))
        modules, parameters = [], []
        for call in trace.modules:
            own = [self._new_moment[each] for each in call.ops if each not in self._removed]
            inputs, outputs = self._move(call.inputs), self._move(call.outputs)
            moved_call = call._replace(ops=tuple(own), inputs=inputs, outputs=outputs)
            modules.append(moved_call._replace(end=self._move_moment(call.end)))
        for record in trace.parameters:
            numbers = tuple([self._new_storage[number] for number in record.storages])
            parameters.append(record._replace(storages=numbers))
        return replace(
            trace,
            modules=tuple(modules),
            ops=tuple(ops),
            tensors=tuple(tensors),
            storages=tuple(storages),
            parameters=tuple(parameters),
        )

    @once
    def _new_moment(self) -> list[int]:
        """For each moment, the number of calls before it that stay."""
        stays = [index not in self._removed for index in range(len(self._trace.ops))]
        return [0, *accumulate(stays)]

    @once
    def _new_storage(self) -> dict[int, int]:
        """The new numbers of storages that stay."""
        kept = [each for each in range(len(self._died)) if each not in self._storage]
        return {number: place for place, number in enumerate(kept)}

    @once
    def _new_tensor(self) -> dict[int, int]:
        """The new indices of tensors that stay."""
        kept = [each for each in range(len(self._trace.tensors)) if each not in self._same]
        return {index: place for place, index in enumerate(kept)}

    def _move_moment(self, moment: int | None) -> int | None:
        return None if moment is None else self._new_moment[moment]

    def _move(self, tensors: Sequence[int]) -> tuple[int, ...]:
        return tuple([self._new_tensor[_follow(each, self._same)] for each in tensors])


def _follow(number: int, replaced: Mapping[int, int]) -> int:
    """Return what is read in the end: a replacement may be replaced itself."""
    while number in replaced:
        number = replaced[number]
    return number
