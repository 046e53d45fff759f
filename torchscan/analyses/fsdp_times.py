"""Seconds and bytes that FSDP adds to the passes of a stage: collectives, and copies for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchscan.analyses.fsdp_costs import DataParallel, ShardedUnit, UnitBytes
from torchscan.analyses.roofline.constants import CYCLES_OF_JOINING, LAUNCH, LAUNCH_COMPILED
from torchscan.analyses.roofline.exposed_collectives import Waiting
from torchscan.hardware.device_specs import Device

#: kinds of sharding that can be derived
DerivedSharding = Literal["fsdp2", "fsdp1", "zero2"]
#: kernels of an eager cast to 8 bits, and the bytes for each element that they read and write
#: beside those of one copy
_KERNELS_OF_CAST, _BYTES_OF_CAST = 4, 24


def seconds_of(waiting: Waiting) -> float:
    """Return the seconds of a pass, with all waiting."""
    return waiting.computing + waiting.waited_for + waiting.left


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpTimes:
    """The rates of FSDP on a mesh."""

    device: Device
    #: bytes per second that copies read and write
    bandwidth: float
    groups: DataParallel
    #: groups of tensor parallelism, which divides weights in 8 bits before FSDP does
    tensor_groups: DataParallel
    sharding: DerivedSharding
    compiled: bool

    def add_to(
        self,
        waits: tuple[Waiting, Waiting],
        root: ShardedUnit,
        layers: Sequence[ShardedUnit],
        *,
        is_gathered_again: bool = True,
    ) -> tuple[Waiting, Waiting]:
        """Return the waits of a forward and a backward pass with FSDP's collectives and copies."""
        forward, backward = waits
        units = [root, *layers]
        gathers = [unit.gather_time for unit in units]
        scatters = [unit.scatter_time for unit in units]
        copies = [unit.copy_time for unit in units]
        gathering = math.fsum(self._copied_to_gather(unit.size) for unit in units)
        # the scales of all weights are found at once
        scales = sum(unit.size.scales for unit in units)
        scaling = self.groups.scale_time(scales) + self.tensor_groups.scale_time(scales)
        # the first and the last collective of a pass have no computation to run beside
        at_ends = scaling + gathers[0] + (gathers[-1] if layers else 0.0)
        behind = forward.behind + scaling + math.fsum(gathers) - at_ends
        forward = Waiting(forward.computing + gathering, forward.waited_for + at_ends, behind)

        last = copies[0] or scatters[0]
        copied = self._copied_to_reduce(units)
        if is_gathered_again:
            copied += math.fsum(self._copied_to_gather(unit.size) for unit in layers)
            first, again = gathers[-1], gathers[1:]
        else:
            first, again = scatters[-1], []
        at_ends = (first if layers else 0.0) + last
        collectives = math.fsum((*again, *scatters, *copies))
        behind = backward.behind + max(0.0, collectives - at_ends)
        backward = Waiting(backward.computing + copied, backward.waited_for + at_ends, behind)
        return forward, backward

    def _copied_to_gather(self, size: UnitBytes) -> float:
        """Return the seconds of copies into the buffer of an all-gather, and out of it.

        Weights in 8 bits are cast before, eagerly by kernels whose results have 32 bits.
        """
        copied = self._copied(size.contributed + size.stored + 2 * size.gathered)
        if self.compiled:
            return copied + LAUNCH_COMPILED * size.num_scaled
        cast = self._copied(_BYTES_OF_CAST * size.scaled)
        return copied + cast + _KERNELS_OF_CAST * LAUNCH * size.num_scaled

    def _copied_to_reduce(self, units: Sequence[ShardedUnit]) -> float:
        """Return the seconds of copies of gradients, which FSDP1 joins before."""
        gradients = sum(unit.size.gradients for unit in units)
        reduced = sum(unit.size.reduced for unit in units)
        copied = self._copied(gradients + reduced)
        if self.sharding == "fsdp1":
            copied += math.fsum(map(self._joined, units))
        return copied

    def _joined(self, unit: ShardedUnit) -> float:
        """Return the seconds in which the gradients of a unit are joined to a flat one."""
        size, device = unit.size, self.device
        if not (size.stored and device.multiprocessors and device.clock_hz):
            return self._copied(2 * size.gradients)
        numel = size.params * unit.groups.shards.size * size.trained / size.stored
        cycles = numel * CYCLES_OF_JOINING
        computing = cycles / (device.multiprocessors * device.clock_hz)
        return max(self._copied(2 * size.gradients), computing)

    def exposed_once(
        self, waits: tuple[Waiting, Waiting], root: ShardedUnit, layers: Sequence[ShardedUnit]
    ) -> float:
        """Return the seconds that FSDP adds to the passes of a stage, once per step.

        Parameters stay gathered after the first forward pass, and gradients are reduced in the last
        backward pass.
        """
        forward, backward = self.add_to(waits, root, layers)
        again = math.fsum(self._copied_to_gather(unit.size) for unit in layers)
        gathered_again = math.fsum(unit.gather_time for unit in layers)
        first = layers[-1].gather_time if layers else 0.0
        behind = max(0.0, backward.behind - (gathered_again - first))
        backward = Waiting(backward.computing - again, backward.waited_for - first, behind)
        both = seconds_of(forward) + seconds_of(backward)
        return both - sum(map(seconds_of, waits))

    def sent_bytes(
        self, root: ShardedUnit, layers: Sequence[ShardedUnit], *, is_gathered_again: bool
    ) -> int:
        """Return the bytes that FSDP sends for parameters and gradients."""
        gathers = sum(unit.gather_sends for unit in layers)
        again = gathers if is_gathered_again else 0
        reductions = sum(unit.reduce_sends for unit in (root, *layers))
        scales = sum(unit.size.scales for unit in (root, *layers))
        scaling = self.groups.scale_sends(scales) + self.tensor_groups.scale_sends(scales)
        return root.gather_sends + gathers + again + reductions + scaling

    def _copied(self, size: float) -> float:
        """Return the seconds to read and write this number of bytes."""
        return size / self.bandwidth
