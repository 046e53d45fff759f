"""Ways to checkpoint layers that are worth a comparison, and what each saves.

Some are the usual ones: no layers, every n-th one, all, and torchtitan's operators. Others save the
results of those operators that take longest to compute again for the memory that their results
need, as the activation memory budget of AOTAutograd does. Calls of one operator on tensors of the
same shapes are saved together, because a policy of torch cannot tell more apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from torchscan.analyses.checkpoint_curve import SavedResult
from torchscan.analyses.checkpoint_edit import LayerRun
from torchscan.analyses.checkpoint_traces import CheckpointedTrace
from torchscan.once import once
from torchscan.recording.training.checkpoints import SELECTIVE, SavedCalls, TorchtitanPolicy
from torchscan.trace.events import OpCall
from torchscan.trace.trace import Trace

#: numbers of layers of which one is checkpointed
_EVERY = (2, 3, 4)
#: share of the time of all that is computed again, below which saving results is not worth a choice
_MIN_SHARE = 0.01
#: share of the memory of all such results, below which saving one more kind is not another choice
_MIN_SIZE = 0.01
#: kinds of results among which the best for a limit are searched by trying all
_MAX_TRIED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWay:
    """A way to checkpoint layers."""

    #: value of the argument ``checkpoint``
    checkpoint: Any
    #: runs of layers that are not checkpointed
    plain: tuple[LayerRun, ...] = ()
    #: calls whose results are saved
    saved: frozenset[int] = frozenset()
    results: tuple[SavedResult, ...] | None = ()


@dataclass(slots=True, kw_only=True)
class SavedKind:
    """Results that a policy saves together."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    #: calls of forward passes
    calls: set[int] = field(default_factory=set)
    modules: dict[str, None] = field(default_factory=dict)
    #: what the device needs to compute all of them again
    seconds: float = 0.0
    #: what they take from the forward to the backward pass
    size: int = 0

    @property
    def seconds_per_byte(self) -> float:
        """The time that saving them gains for the memory that they take."""
        return self.seconds / self.size if self.size else float("inf")

    @property
    def result(self) -> SavedResult:
        """The kind as results have it."""
        modules = tuple(self.modules)
        return SavedResult(self.operator, modules, self.shapes, self.size, self.seconds)


class CheckpointWays:
    """The ways to checkpoint a step, from its trace with all layers checkpointed.

    Args:
        checkpointed: the trace.
        seconds: expected time of calls, by their index.
    """

    def __init__(self, checkpointed: CheckpointedTrace, seconds: Mapping[int, float]) -> None:
        self._checkpointed = checkpointed
        self._trace = checkpointed.trace
        self._seconds = seconds

    def usual(self) -> Iterator[CheckpointWay]:
        """Yield every n-th layer, torchtitan's operators, and all layers."""
        runs = self._checkpointed.runs
        yield CheckpointWay(checkpoint=True)
        yield CheckpointWay(checkpoint=SELECTIVE, saved=self._saved_by_torchtitan(), results=None)
        paths = list(dict.fromkeys(run.layer for run in runs))
        for number in _EVERY:
            if number <= len(paths):
                chosen = set(paths[number - 1 :: number])
                plain = tuple([run for run in runs if run.layer not in chosen])
                yield CheckpointWay(checkpoint=number, plain=plain)

    def by_operator(self) -> Iterator[CheckpointWay]:
        """Yield ways that save more and more results, the most worthwhile first."""
        saved: list[SavedKind] = []
        least = _MIN_SIZE * _size(self.kinds)
        for index, kind in enumerate(self.kinds):
            saved.append(kind)
            is_last = index == len(self.kinds) - 1
            if is_last or self.kinds[index + 1].size > least:
                yield self._saving(saved)

    def within(self, room: int) -> CheckpointWay | None:
        """Return the way that saves the most time with results of at most this size."""
        choices: list[list[SavedKind]] = [[]]
        for kind in self.kinds[:_MAX_TRIED]:
            choices += [[*each, kind] for each in choices if _size([*each, kind]) <= room]

        best: Sequence[SavedKind] = ()
        for chosen in choices:
            if _gain(chosen) > _gain(best):
                best = chosen
        return self._saving(best) if best else None

    def trace_of(self, way: CheckpointWay) -> Trace:
        """Return the trace of the step that is checkpointed so."""
        return self._checkpointed.derive(plain=way.plain, saved=way.saved)

    @once
    def kinds(self) -> list[SavedKind]:
        """The kinds of results that may be saved, the most worthwhile first."""
        found: dict[Any, SavedKind] = {}
        for run in self._checkpointed.runs:
            again = {first: index for index, first in run.first_run.items()}
            for index in self._computing(run):
                op = self._trace.ops[index]
                shapes = tuple([spec.shape for spec in op.signature.inputs])
                key = str(op.signature.op), shapes
                kind = found.setdefault(key, SavedKind(operator=key[0], shapes=shapes))
                kind.calls.add(index)
                path = self._trace.path_of(op).removeprefix(run.layer).removeprefix(".")
                kind.modules.setdefault(path)
                kind.seconds += self._seconds.get(again.get(index, -1), 0.0)
                kind.size += self._kept_bytes(op, run)
        least = _MIN_SHARE * sum(kind.seconds for kind in found.values())
        useful = [each for each in found.values() if each.seconds > least and self._is_safe(each)]
        return sorted(useful, key=lambda kind: kind.seconds_per_byte, reverse=True)

    def _computing(self, run: LayerRun) -> Iterator[int]:
        """Yield the calls of a forward pass that compute new tensors, which a policy may save."""
        for index in run.forward:
            op = self._trace.ops[index]
            signature = op.signature
            if signature.is_view or signature.op._schema.is_mutable:
                continue
            if op.outputs:
                yield index

    def _kept_bytes(self, op: OpCall, run: LayerRun) -> int:
        """Return the bytes of results that would not be alive in the backward pass anyway."""
        size = 0
        for number in {self._trace.tensors[each].storage for each in op.outputs}:
            storage = self._trace.storages[number]
            if storage.died is not None and storage.died <= run.again.start:
                size += storage.size
        return size

    def _is_safe(self, kind: SavedKind) -> bool:
        """Return whether no call writes to the results later: torch refuses to save such ones."""
        results = {
            self._trace.tensors[each].storage
            for index in kind.calls
            for each in self._trace.ops[index].outputs
        }
        return not results & self._overwritten

    @once
    def _overwritten(self) -> set[int]:
        """The storages that calls of forward passes write to again."""
        storages: set[int] = set()
        for run in self._checkpointed.runs:
            for index in run.forward:
                op = self._trace.ops[index]
                if op.signature.op._schema.is_mutable:
                    storages.update(self._trace.tensors[each].storage for each in op.outputs)
        return storages

    def _saving(self, kinds: Sequence[SavedKind]) -> CheckpointWay:
        """Return the way that saves these results: by operator if that means all of them."""
        calls = frozenset(index for kind in kinds for index in kind.calls)
        operators = list(
            dict.fromkeys(self._trace.ops[min(kind.calls)].signature.op for kind in kinds)
        )
        of_operators = {
            index
            for run in self._checkpointed.runs
            for index in run.forward
            if self._trace.ops[index].signature.op in operators
        }
        checkpoint: Any = operators
        if of_operators != calls:
            checkpoint = SavedCalls(frozenset((kind.operator, kind.shapes) for kind in kinds))
        by_time = sorted(kinds, key=lambda kind: kind.seconds, reverse=True)
        results = tuple([kind.result for kind in by_time])
        return CheckpointWay(checkpoint=checkpoint, saved=calls, results=results)

    def _saved_by_torchtitan(self) -> frozenset[int]:
        saved: set[int] = set()
        context = SelectiveCheckpointContext(is_recompute=False)
        for run in self._checkpointed.runs:
            policy = TorchtitanPolicy()
            for index in run.forward:
                chosen = policy(context, self._trace.ops[index].signature.op)
                if chosen is CheckpointPolicy.MUST_SAVE:
                    saved.add(index)
        return frozenset(saved)


def _size(kinds: Collection[SavedKind]) -> int:
    return sum(kind.size for kind in kinds)


def _gain(kinds: Collection[SavedKind]) -> float:
    return sum(kind.seconds for kind in kinds)
