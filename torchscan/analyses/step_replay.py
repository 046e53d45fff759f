"""Requests of a training loop to torch's allocator: one step after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from torchscan.hardware.allocator import AllocatedBlock, CachingAllocator, OutOfMemory
from torchscan.once import once


class ReplayedBlock(NamedTuple):
    """A block of memory, alive from moment ``first`` until just before ``end``."""

    size: int
    first: int
    end: int
    #: CUDA stream that allocates it
    stream: int = 0
    #: True if the next step finds it: of the model, or of the optimizer's state
    stays: bool = False
    #: the moment in which the first step creates it, if it is the optimizer's state, else None
    created: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepReplay:
    """The blocks of a step, and what else it requests."""

    blocks: Sequence[ReplayedBlock]
    num_moments: int
    #: bytes that libraries keep from the beginning
    fixed: Sequence[int] = ()
    #: bytes that a kernel takes while it runs, by moment
    workspaces: Mapping[int, int] = field(default_factory=dict)

    def run(
        self, capacity: int | None = None, *, workspaces: bool = True
    ) -> Iterator[CachingAllocator]:
        """Yield the allocator after each step, of which an optimizer with a state needs two."""
        allocator = CachingAllocator(capacity=capacity)
        for size in self.fixed:
            allocator.allocate(size)
        held: dict[int, AllocatedBlock | None] = {}
        begins_of_steps, ends = self._changes
        for begins in begins_of_steps:
            for number in [each for each in held if not self.blocks[each].stays]:
                allocator.free(held.pop(number))
            for moment in range(self.num_moments):
                for number in ends.get(moment, ()):
                    allocator.free(held.pop(number, None))
                for number in begins.get(moment, ()):
                    if number not in held:
                        block = self.blocks[number]
                        held[number] = allocator.allocate(block.size, block.stream)
                if workspaces and moment in self.workspaces:
                    # where there is no room, torch tries the next algorithm
                    with suppress(OutOfMemory):
                        allocator.free(allocator.allocate(self.workspaces[moment]))
            yield allocator

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes alive in a step that finds the optimizer's state."""
        changes = [0] * (self.num_moments + 2)
        for block in self.blocks:
            changes[block.first] += block.size
            changes[block.end] -= block.size
        return max(accumulate(changes[: self.num_moments]), default=0)

    @once
    def _changes(self) -> tuple[list[dict[int, list[int]]], dict[int, list[int]]]:
        """For each step and moment, the blocks that begin; and for each moment, those that end."""
        recorded, before, ends = [], [], []
        for block in self.blocks:
            recorded.append(block.first)
            before.append(block.first if block.created is None else block.created)
            ends.append(block.end)
        has_state = any(block.size and block.created is not None for block in self.blocks)
        steps = [before, recorded] if has_state else [recorded]
        return [_by_moment(step) for step in steps], _by_moment(ends)


def _by_moment(moments: Sequence[int]) -> dict[int, list[int]]:
    """Return the numbers of the blocks at each moment that has any."""
    found: dict[int, list[int]] = {}
    for number, moment in enumerate(moments):
        found.setdefault(moment, []).append(number)
    return found
