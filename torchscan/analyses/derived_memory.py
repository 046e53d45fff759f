"""The memory of a stage on one rank, derived from the costs of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.analyses.fsdp_costs import NOTHING, UnitBytes
from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.part_costs import AFTER, BEFORE, OptimizerCosts, PartCosts

#: gaps between tensors, as a share of those that a backward pass frees again; a recorded mesh has
#: those of torch's allocator
_GAPS = 0.5
#: layers whose parameters are in buffers of all-gathers at once: one is copied out of while the
#: next one is received
_BUFFERED_LAYERS = 2


class DerivedMemory:
    """The memory of a stage on one rank."""

    def __init__(
        self,
        *,
        costs: Sequence[PartCosts],
        parts: Sequence[str],
        units: Sequence[UnitBytes],
        root: UnitBytes,
        optimizer: OptimizerCosts,
        layout: MeshLayout,
        stays_gathered: bool,
    ) -> None:
        """Derive memory from costs and units by part.

        With ``stays_gathered``, parameters of layers stay complete from the forward pass on.
        """
        self._costs = costs
        self._parts = parts
        #: those of layers; parameters outside of layers are gathered for the complete pass
        self._units = list(units)
        for index, part in enumerate(parts):
            if part in (BEFORE, AFTER):
                self._units[index] = NOTHING
        self._root = root
        self._optimizer = optimizer
        self._is_in_pipeline = layout.pp > 1
        self._is_sharded = layout.is_sharded
        #: True if parameters of layers are gathered for each pass
        self._is_gathering = layout.is_sharded and not self._is_in_pipeline
        self._after = units[-1] if AFTER in parts else NOTHING
        #: True if previous layers are still gathered when a layer runs
        self._keeps_layers = stays_gathered and self._is_gathering
        is_first, is_last = BEFORE in parts, AFTER in parts
        self.received_bytes = 0.0 if is_first else costs[0].output_bytes
        self.result_bytes = 0.0 if is_last else costs[-1].output_bytes
        # what is received is in a buffer of its own
        self._saved = [0.0 if is_first else -costs[0].received_bytes]
        for each, unit in zip(costs, self._units, strict=True):
            kept = unit.gathered if self._keeps_layers else 0
            self._saved.append(self._saved[-1] + each.saved_bytes + kept)

    @property
    def saved_bytes(self) -> int:
        """Bytes that a micro batch saves from its forward pass for its backward pass.

        Its input and its result are not among them: they are in buffers, and kept until sent.
        """
        return int(self._saved[-1])

    @property
    def pending_bytes(self) -> int:
        """Bytes that stay until gradients of parameters are computed, if that happens apart.

        The first stage has no gradient to send, so torch computes all of them at once there.
        """
        if BEFORE in self._parts:
            return 0
        return int(math.fsum(each.pending_bytes for each in self._costs))

    def by_kind(self, *, accumulates: bool) -> dict[MemoryKind, int]:
        """Return the bytes that stay during the passes, by kind."""
        units = [self._root, *self._units]
        trained = sum(unit.trained for unit in units)
        kinds: dict[MemoryKind, int] = {
            "parameters": sum(unit.stored for unit in units),
            "optimizer": int(self._optimizer.state_bytes * trained),
            "gradients": 0,
            "gathered": 0,
        }
        if self._is_sharded:
            kinds["gathered"] = self._root.gathered
        if self._is_in_pipeline:
            kinds["gradients"] = sum(unit.reduced for unit in units)
            if self._is_sharded:
                kinds["gathered"] = sum(unit.gathered for unit in units)
        elif accumulates:
            kinds["gradients"] = sum(unit.reduced_shard for unit in units)
        return kinds

    @property
    def forward_bytes(self) -> int:
        """Peak of a forward pass beyond the resident bytes."""
        parts = zip(self._saved, self._costs, self._units, strict=False)
        peaks = [
            saved + cost.forward.peak_bytes + 2 * self._gathered(unit)
            for saved, cost, unit in parts
        ]
        return int(max(peaks))

    def backward_bytes(self, *, accumulates: bool) -> int:
        """Return the peak of a backward pass beyond the resident bytes."""
        shards, reducing, outside = 0, 0, 0
        peak = 0.0
        for place in range(len(self._parts) - 1, -1, -1):
            unit, cost = self._units[place], self._costs[place]
            is_prefetched = place > 0 and not self._keeps_layers
            previous = self._units[place - 1] if is_prefetched else NOTHING
            passes = self._saved[place] + cost.backward.peak_bytes
            gathered = self._gathered(unit) + self._gathered(previous)
            gradients = (unit.gradients if self._is_gathering else 0) + outside
            peak = max(peak, passes + gathered + gradients + shards + reducing)
            if self._is_in_pipeline:
                continue
            # gradients outside of layers are reduced at the end of the pass
            outside = self._after.gradients
            reducing = unit.reduced if self._is_sharded else 0
            shards += 0 if accumulates else unit.reduced_shard
        return int(peak)

    def optimizer_bytes(self, *, accumulates: bool) -> int:
        """Return the peak of the optimizer's step beyond the resident bytes."""
        units = [self._root, *self._units]
        trained = sum(unit.trained for unit in units)
        shards = sum(unit.reduced_shard for unit in units)
        resident = self.by_kind(accumulates=accumulates)
        freed = resident["gathered"] + resident["gradients"]
        return int(self._optimizer.temporary_bytes * trained) + shards - freed

    def gap_bytes(self, backward_bytes: int) -> int:
        """Return the bytes that are reserved beyond the peak, given that of the backward pass.

        These are gaps between longer-lived tensors, and blocks that FSDP2 allocates in separate
        streams, where no other tensor can use them: buffers of all-gathers, and reduced gradients.
        """
        gaps = int(_GAPS * max(0, backward_bytes - self.saved_bytes))
        if not self._is_sharded:
            return gaps
        largest = max((unit.gathered for unit in self._units), default=0)
        buffers = max(self._root.gathered, _BUFFERED_LAYERS * largest)
        shards = sum(unit.reduced_shard for unit in (self._root, *self._units))
        return gaps + buffers + shards

    def _gathered(self, unit: UnitBytes) -> int:
        return unit.gathered if self._is_gathering else 0
