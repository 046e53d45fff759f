"""A step with all layers, from the blocks of one with four equal layers.

What torch's allocator reserves depends on the order in which all layers request and release blocks,
so it can't be extrapolated. The requests of the third layer are repeated after it in the forward
pass, and before it in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from torchscan.analyses.step_replay import ReplayedBlock, StepReplay
from torchscan.trace.events import OpCall, Phase
from torchscan.trace.trace import Trace

#: layers that are needed, because the first and the last may differ from those between them
_MIN_LAYERS = 4


class UnequalLayersError(ValueError):
    """Layers request other blocks than their neighbors, so that none can be repeated."""


def repeat_layers(
    replay: StepReplay, trace: Trace, layers: Sequence[str], times: int
) -> StepReplay:
    """Return the requests of a step in which so many more layers are like the third one.

    Args:
        replay: the requests of the recorded step.
        trace: its trace.
        layers: the paths of consecutive equal layers, at least four.
        times: how many layers to add.
    """
    if times == 0:
        return replay
    windows = _find_windows(trace, layers)
    repeated = _Repeated(windows, times)
    owners = _owners_in(trace, f"{layers[2]}.")
    blocks: list[ReplayedBlock] = []
    later: list[ReplayedBlock] = []
    # torch allocates the states of all parameters in their order, so layers stay together
    for is_owned, group in groupby(enumerate(replay.blocks), lambda pair: pair[0] in owners):
        recorded = [block for _, block in group]
        moved = [repeated.moved(block) for block in recorded]
        blocks += moved * (1 + times) if is_owned else moved
        if not is_owned:
            later += [copy for block in recorded for copy in repeated.copies(block)]
    workspaces = {repeated.moment(each): size for each, size in replay.workspaces.items()}
    return replace(
        replay,
        blocks=[*blocks, *later],
        num_moments=replay.num_moments + repeated.added,
        workspaces=workspaces,
    )


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """The calls of the third layer: where they begin, and how many there are."""

    forward: int
    num_forward: int
    backward: int
    num_backward: int
    #: the first call of the fourth layer in the backward pass
    fourth: int
    #: the first call of the optimizer
    optimizer: int


def _find_windows(trace: Trace, layers: Sequence[str]) -> _Windows:
    if len(layers) < _MIN_LAYERS:
        raise UnequalLayersError(f"{len(layers)} layers are fewer than {_MIN_LAYERS}")
    first, second, third, fourth = layers[:_MIN_LAYERS]
    forward = [_first_call(trace, path, "forward") for path in (second, third, fourth)]
    backward = [_first_call(trace, path, "backward") for path in (third, second, first)]
    for starts in (forward, backward):
        begin, middle, end = starts
        if _operators(trace.ops[begin:middle]) != _operators(trace.ops[middle:end]):
            raise UnequalLayersError(f"{second} and {third} call other operators")
    updates = [index for index, op in enumerate(trace.ops) if op.phase == "optimizer"]
    return _Windows(
        forward=forward[1],
        num_forward=forward[2] - forward[1],
        backward=backward[0],
        num_backward=backward[1] - backward[0],
        fourth=_first_call(trace, fourth, "backward"),
        optimizer=updates[0] if updates else len(trace.ops),
    )


def _operators(calls: Sequence[OpCall]) -> list[str]:
    return [op.signature.operator for op in calls]


def _first_call(trace: Trace, path: str, phase: Phase) -> int:
    """Return the first operator call inside a layer in a phase."""
    inside = f"{path}."
    found: list[int] = []
    for call in trace.modules:
        if call.path == path or call.path.startswith(inside):
            found += [index for index in call.ops if trace.ops[index].phase == phase]
    if not found:
        raise UnequalLayersError(f"{path} calls no operator in the {phase} pass")
    return min(found)


def _owners_in(trace: Trace, inside: str) -> set[int]:
    """Return the storages of parameters in a layer, and of their states and temporaries.

    Optimizers pass lists of tensors to an operator, which returns a list in the same order.
    """
    owned = {
        number
        for number, storage in enumerate(trace.storages)
        if storage.born is None and storage.name.startswith(inside)
    }
    for op in trace.ops:
        if op.phase == "optimizer":
            operands = [trace.tensors[each].storage for each in op.inputs]
            results = [trace.tensors[each].storage for each in op.outputs]
            owned |= {
                result
                for result, operand in zip(results, operands, strict=False)
                if operand in owned
            }
    return owned


class _Repeated:
    """Moments of a step into which copies of a layer were inserted."""

    def __init__(self, windows: _Windows, times: int) -> None:
        self._windows = windows
        self._times = times
        #: the moment before which copies are inserted in the forward pass
        self._after = windows.forward + windows.num_forward
        self._forward = times * windows.num_forward
        self.added = self._forward + times * windows.num_backward

    def moment(self, moment: int) -> int:
        """Return the new index of a call."""
        if moment < self._after:
            return moment
        return moment + (self._forward if moment < self._windows.backward else self.added)

    def moved(self, block: ReplayedBlock) -> ReplayedBlock:
        """Return a recorded block with its new lifetime."""
        created = None if block.created is None else self.moment(block.created)
        first, end = self.moment(block.first), self._end(block)
        return block._replace(first=first, end=end, created=created)

    def _end(self, block: ReplayedBlock) -> int:
        """Return the end of a recorded block. What the next layer releases ends in a copy."""
        end, windows = block.end, self._windows
        if end <= self._after:
            return end
        if self._is_kept_for_fourth(block):
            return end + self.added
        if end <= windows.backward:
            is_near = block.first < self._after and end <= self._after + windows.num_forward
            return end if is_near else end + self._forward
        is_later = self._after <= block.first < windows.backward
        is_near = is_later and end <= windows.backward + windows.num_backward
        return end + (self._forward if is_near else self.added)

    def _is_kept_for_fourth(self, block: ReplayedBlock) -> bool:
        """Return whether the fourth layer keeps what the third one made: its input, for example."""
        windows = self._windows
        is_made_by_third = windows.forward <= block.first < self._after
        return is_made_by_third and windows.fourth < block.end <= windows.backward

    def copies(self, block: ReplayedBlock) -> Iterator[ReplayedBlock]:
        """Yield the blocks of added layers like one that a call of the third layer creates."""
        windows, moved = self._windows, self.moved(block)
        if block.stays:
            return
        if windows.forward <= block.first < self._after:
            for copy in range(1, self._times + 1):
                first = block.first + copy * windows.num_forward
                yield moved._replace(first=first, end=self._end_of_copy(block, copy))
        elif windows.backward <= block.first < windows.backward + windows.num_backward:
            for copy in range(1, self._times + 1):
                first = moved.first - copy * windows.num_backward
                yield moved._replace(first=first, end=self._end_of_copy(block, copy))

    def _end_of_copy(self, block: ReplayedBlock, copy: int) -> int:
        """Return the end of a copy. Later layers run later forward, and earlier backward."""
        windows, end = self._windows, block.end
        if end <= self._after + windows.num_forward:
            return end + copy * windows.num_forward
        if end <= windows.backward and not self._is_kept_for_fourth(block):
            return end + self._forward
        is_near = end <= windows.backward + 2 * windows.num_backward
        if not is_near or end > windows.optimizer:
            return end + self.added
        return end + self.added - copy * windows.num_backward
