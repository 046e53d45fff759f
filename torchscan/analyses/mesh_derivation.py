"""A training step on a mesh, derived from the costs of the parts of a model on one rank.

What a rank computes depends on tensor parallelism, the tokens of a micro batch and checkpointing.
FSDP, copies, context parallelism and pipelines add collectives, copies of parameters, bubbles and
memory in closed form. Links and their overlap follow the rules of recorded passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from torchscan.analyses.fsdp_costs import (
    NOTHING,
    DataParallel,
    ParameterShape,
    ShardedUnit,
    UnitBytes,
    flatten_shapes,
    sum_units,
    unit_bytes,
)
from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.mesh_parts import (
    AFTER,
    BEFORE,
    OptimizerCosts,
    PartCosts,
    PassCosts,
)
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.analyses.roofline.constants import (
    CYCLES_OF_JOINING,
    LAUNCH,
    LAUNCH_COMPILED,
    STREAMING,
)
from torchscan.analyses.roofline.exposed_collectives import Waiting

#: kinds of sharding that can be derived
DerivedSharding = Literal["fsdp2", "fsdp1", "zero2"]
#: gaps between tensors, as a share of those that a backward pass frees again; a recorded mesh has
#: those of torch's allocator
_GAPS = 0.5
#: kernels of an eager cast to 8 bits, and the bytes for each element that they read and write
#: beside those of one copy
_KERNELS_OF_CAST, _BYTES_OF_CAST = 4, 24
#: layers whose parameters are in buffers of all-gathers at once: one is copied out of while the
#: next one is received
_BUFFERED_LAYERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """The costs of a model's parts on one rank, for one micro batch."""

    #: names of the parts in the order of the forward pass
    order: tuple[str, ...]
    costs: Mapping[str, PartCosts]
    #: parameters of each part
    shapes: Mapping[str, tuple[ParameterShape, ...]]
    optimizer: OptimizerCosts
    #: bytes of the context
    context_bytes: int
    compiled: bool = False

    def stages(self, boundaries: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the parts of each stage; ``boundaries`` are the layers before each further one."""
        layers = self.order[1:-1]
        limits = [0, *boundaries, len(layers)]
        found = [layers[begin:end] for begin, end in pairwise(limits)]
        found[0] = (BEFORE, *found[0])
        found[-1] = (*found[-1], AFTER)
        return found


class StageCosts(NamedTuple):
    """A stage of a pipeline, or the complete model, on one rank, for a micro batch."""

    forward: float
    backward: float
    #: seconds of the backward pass for gradients of parameters only
    weight_gradients: float
    #: seconds in which the passes of a micro batch wait for links
    waiting: float
    #: seconds once in a step: the exposed all-gathers and reductions of FSDP in a pipeline
    exposed: float
    optimizer: float
    #: parameters that the rank holds
    local_params: int
    output_bytes: int
    #: bytes sent for each micro batch, and once in a step
    sent_bytes: int
    sent_once: int
    resident_bytes: int
    saved_bytes: int
    #: bytes of the input that a micro batch receives, and of the result that it sends on
    received_bytes: int
    result_bytes: int
    #: bytes that stay after a backward pass without gradients of parameters, until these are
    #: computed
    pending_bytes: int
    #: peaks beyond the resident bytes, with what the micro batch saves
    forward_bytes: int
    backward_bytes: int
    optimizer_bytes: int
    #: bytes that are reserved beyond the peak: gaps between tensors, and memory of other streams
    gap_bytes: int
    #: resident bytes, by kind
    by_kind: Mapping[MemoryKind, int]

    def with_buffers(self, num_microbatches: int) -> StageCosts:
        """Return the costs with the buffers of all micro batches, which torch allocates once.

        Inputs and gradients of results are received in them.
        """
        buffers = num_microbatches * (self.received_bytes + self.result_bytes)
        kinds: dict[MemoryKind, int] = {**self.by_kind, "temporary": buffers}
        return self._replace(resident_bytes=self.resident_bytes + buffers, by_kind=kinds)


class StageDerivation:
    """Derives the stages of a model on a mesh."""

    def __init__(
        self,
        model: LocalModel,
        layout: MeshLayout,
        fabric: Fabric,
        rates: Rates,
        sharding: DerivedSharding = "fsdp2",
    ) -> None:
        self._model = model
        self._layout = layout
        self._sharding = sharding
        self._fabric = fabric
        self._stream = STREAMING * rates.bandwidth * rates.streamed
        self._groups = DataParallel(fabric, layout.shards, layout.replicas)
        #: that of tensor parallelism, which divides weights in 8 bits before FSDP does
        self._tensor_groups = DataParallel(fabric, layout.tensor_parts, layout.replicas)
        #: those of experts that are divided along "ep"
        self._expert_groups = DataParallel(fabric, layout.expert_shards, layout.replicas)
        self._units: dict[str, list[ShardedUnit]] = {}
        #: bytes of all units of a part
        self._sums: dict[str, UnitBytes] = {}
        self._stages: dict[tuple[tuple[str, ...], bool], StageCosts] = {}

    def stage(self, parts: tuple[str, ...], *, accumulates: bool) -> StageCosts:
        """Return the costs of a stage; ``accumulates``: gradients of several micro batches add up.

        Stages in the middle of a pipeline have equal parts.
        """
        key = (parts, accumulates)
        if key not in self._stages:
            self._stages[key] = self._derive(parts, accumulates)
        return self._stages[key]

    def _derive(self, parts: Sequence[str], accumulates: bool) -> StageCosts:
        root = self._root(parts)
        layers = [
            unit for part in parts if part not in (BEFORE, AFTER) for unit in self.units(part)
        ]
        is_in_pipeline = self._layout.pp > 1
        gathers_again = self._sharding != "zero2" and not is_in_pipeline
        waits = self._waits(parts, root, layers, repeats=not is_in_pipeline)
        exposed, sent_once = 0.0, 0
        sends = sum(int(self._cost(part).sent_bytes) for part in parts)
        communicates = self.sends_of_units(root, layers, is_gathered_again=gathers_again)
        if is_in_pipeline:
            exposed, sent_once = self._exposed_once(waits, root, layers), communicates
        else:
            sends += communicates
        memory = self._memory(parts, root.size)
        sizes = [unit.size for unit in (root, *layers)]
        trained = sum(size.trained for size in sizes)
        weight_gradients = math.fsum(self._cost(part).weight_gradients for part in parts)
        waiting = sum(each.waited_for + each.left for each in waits)
        kinds = memory.by_kind(accumulates=accumulates)
        backward_bytes = memory.backward_bytes(accumulates=accumulates)
        return StageCosts(
            forward=_seconds(waits[0]),
            backward=_seconds(waits[1]),
            weight_gradients=weight_gradients,
            waiting=waiting,
            exposed=exposed,
            optimizer=self._model.optimizer.seconds * trained,
            local_params=sum(size.params for size in sizes),
            output_bytes=self.output_bytes(parts),
            sent_bytes=sends,
            sent_once=sent_once,
            resident_bytes=sum(kinds.values()),
            saved_bytes=memory.saved_bytes,
            received_bytes=int(memory.received_bytes),
            result_bytes=int(memory.result_bytes),
            pending_bytes=memory.pending_bytes,
            forward_bytes=memory.forward_bytes,
            backward_bytes=backward_bytes,
            optimizer_bytes=memory.optimizer_bytes(accumulates=accumulates),
            gap_bytes=memory.gap_bytes(backward_bytes),
            by_kind=kinds,
        )

    def output_bytes(self, parts: Sequence[str]) -> int:
        """Return the bytes that a stage passes on: those of its last layer."""
        layers = [part for part in parts if part != AFTER]
        return int(self._cost(layers[-1]).output_bytes) if layers else 0

    def _cost(self, part: str) -> PartCosts:
        return self._model.costs[part]

    def units(self, part: str) -> list[ShardedUnit]:
        """Return the units of a part: its parameters, and its experts if "ep" divides them."""
        if part not in self._units:
            self._units[part] = self._sharded(self._model.shapes[part])
        return self._units[part]

    def _sharded(self, shapes: Sequence[ParameterShape]) -> list[ShardedUnit]:
        found: list[ShardedUnit] = []
        for groups, is_expert in ((self._groups, False), (self._expert_groups, True)):
            own = [shape for shape in shapes if shape.is_expert == is_expert]
            if self._sharding == "fsdp1":
                own = flatten_shapes(own)
            if own or not is_expert:
                found.append(ShardedUnit(unit_bytes(own, groups.shards.size), groups))
        return found

    def _root(self, parts: Sequence[str]) -> ShardedUnit:
        """Return the unit of the parameters outside of layers."""
        shapes: list[ParameterShape] = []
        for part in (BEFORE, AFTER):
            if part in parts:
                shapes += self._model.shapes[part]
        return self._sharded(shapes)[0]

    def _memory(self, parts: Sequence[str], root: UnitBytes) -> _StageMemory:
        for part in parts:
            if part not in self._sums:
                self._sums[part] = sum_units(unit.size for unit in self.units(part))
        return _StageMemory(
            costs=[self._cost(part) for part in parts],
            parts=parts,
            units=[self._sums[part] for part in parts],
            root=root,
            optimizer=self._model.optimizer,
            layout=self._layout,
            stays_gathered=self._sharding == "zero2",
        )

    def _copied(self, size: float) -> float:
        """Return the seconds to read and write this number of bytes."""
        return size / self._stream

    def _waits(
        self,
        parts: Sequence[str],
        root: ShardedUnit,
        layers: Sequence[ShardedUnit],
        *,
        repeats: bool,
    ) -> tuple[Waiting, Waiting]:
        """Return the waits of the forward and the backward pass of a micro batch.

        ``repeats``: FSDP gathers and reduces for each micro batch.
        """
        costs = [self._cost(part) for part in parts]
        forward = _sum_passes(each.forward for each in costs)
        backward = _sum_passes(each.backward for each in costs)
        if not (repeats and self._layout.is_sharded):
            return forward, backward
        is_gathered_again = self._sharding != "zero2"
        return self._with_fsdp(forward, backward, root, layers, is_gathered_again=is_gathered_again)

    def _with_fsdp(
        self,
        forward: Waiting,
        backward: Waiting,
        root: ShardedUnit,
        layers: Sequence[ShardedUnit],
        *,
        is_gathered_again: bool = True,
    ) -> tuple[Waiting, Waiting]:
        units = [root, *layers]
        gathers = [unit.gather_time for unit in units]
        scatters = [unit.scatter_time for unit in units]
        copies = [unit.copy_time for unit in units]
        gathering = math.fsum(self._copied_to_gather(unit.size) for unit in units)
        # the scales of all weights are found at once
        scales = sum(unit.size.scales for unit in units)
        scaling = self._groups.scale_time(scales) + self._tensor_groups.scale_time(scales)
        # the first and the last collective of a pass have no computation to run beside
        at_ends = scaling + gathers[0] + (gathers[-1] if layers else 0.0)
        forward = Waiting(
            forward.computing + gathering,
            forward.waited_for + at_ends,
            forward.behind + scaling + math.fsum(gathers) - at_ends,
        )
        last = copies[0] or scatters[0]
        copied = self._copied_to_reduce(units)
        if is_gathered_again:
            copied += math.fsum(self._copied_to_gather(unit.size) for unit in layers)
            first, again = gathers[-1], gathers[1:]
        else:
            first, again = scatters[-1], []
        at_ends = (first if layers else 0.0) + last
        collectives = math.fsum((*again, *scatters, *copies))
        backward = Waiting(
            backward.computing + copied,
            backward.waited_for + at_ends,
            backward.behind + max(0.0, collectives - at_ends),
        )
        return forward, backward

    def _copied_to_gather(self, size: UnitBytes) -> float:
        """Return the seconds of copies into the buffer of an all-gather, and out of it.

        Weights in 8 bits are cast before, eagerly by kernels whose results have 32 bits.
        """
        copied = self._copied(size.contributed + size.stored + 2 * size.gathered)
        if self._model.compiled:
            return copied + LAUNCH_COMPILED * size.num_scaled
        cast = self._copied(_BYTES_OF_CAST * size.scaled)
        return copied + cast + _KERNELS_OF_CAST * LAUNCH * size.num_scaled

    def _copied_to_reduce(self, units: Sequence[ShardedUnit]) -> float:
        """Return the seconds of copies of gradients, which FSDP1 joins before."""
        gradients = sum(unit.size.gradients for unit in units)
        reduced = sum(unit.size.reduced for unit in units)
        copied = self._copied(gradients + reduced)
        if self._sharding == "fsdp1":
            copied += math.fsum(map(self._joined, units))
        return copied

    def _joined(self, unit: ShardedUnit) -> float:
        """Return the seconds in which the gradients of a unit are joined to a flat one."""
        size, device = unit.size, self._fabric.device
        if not (size.stored and device.multiprocessors and device.clock_hz):
            return self._copied(2 * size.gradients)
        numel = size.params * unit.groups.shards.size * size.trained / size.stored
        cycles = numel * CYCLES_OF_JOINING
        return max(
            self._copied(2 * size.gradients), cycles / (device.multiprocessors * device.clock_hz)
        )

    def _exposed_once(
        self, waits: tuple[Waiting, Waiting], root: ShardedUnit, layers: Sequence[ShardedUnit]
    ) -> float:
        """Return the seconds that FSDP adds to the passes of a stage, once per step.

        Parameters stay gathered after the first forward pass, and gradients are reduced in the last
        backward pass.
        """
        if not self._layout.is_sharded:
            return 0.0
        forward, backward = self._with_fsdp(*waits, root, layers)
        again = math.fsum(self._copied_to_gather(unit.size) for unit in layers)
        gathered_again = math.fsum(unit.gather_time for unit in layers)
        first = layers[-1].gather_time if layers else 0.0
        backward = Waiting(
            backward.computing - again,
            backward.waited_for - first,
            max(0.0, backward.behind - (gathered_again - first)),
        )
        both = _seconds(forward) + _seconds(backward)
        return both - sum(map(_seconds, waits))

    def sends_of_units(
        self, root: ShardedUnit, layers: Sequence[ShardedUnit], *, is_gathered_again: bool
    ) -> int:
        """Return the bytes that FSDP sends for parameters and gradients."""
        gathers = sum(unit.gather_sends for unit in layers)
        again = gathers if is_gathered_again else 0
        reductions = sum(unit.reduce_sends for unit in (root, *layers))
        scales = sum(unit.size.scales for unit in (root, *layers))
        scaling = self._groups.scale_sends(scales) + self._tensor_groups.scale_sends(scales)
        return root.gather_sends + gathers + again + reductions + scaling


def _sum_passes(passes: Iterable[PassCosts]) -> Waiting:
    total = Waiting(0.0, 0.0, 0.0)
    for each in passes:
        total = Waiting(
            total.computing + each.computing,
            total.waited_for + each.waited_for,
            total.behind + each.behind,
        )
    return total


def _seconds(waiting: Waiting) -> float:
    return waiting.computing + waiting.waited_for + waiting.left


class _StageMemory:
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
        """``stays_gathered``: parameters of layers stay complete from the forward pass on."""
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
        peaks = (
            saved + each.forward.peak_bytes + 2 * self._gathered(unit)
            for saved, each, unit in zip(self._saved, self._costs, self._units, strict=False)
        )
        return int(max(peaks))

    def backward_bytes(self, *, accumulates: bool) -> int:
        """Return the peak of a backward pass beyond the resident bytes."""
        shards, reducing, outside = 0, 0, 0
        found = [0.0]
        for place in range(len(self._parts) - 1, -1, -1):
            unit, cost = self._units[place], self._costs[place]
            is_prefetched = place > 0 and not self._keeps_layers
            previous = self._units[place - 1] if is_prefetched else NOTHING
            passes = self._saved[place] + cost.backward.peak_bytes
            gathered = self._gathered(unit) + self._gathered(previous)
            gradients = (unit.gradients if self._is_gathering else 0) + outside
            found.append(passes + gathered + gradients + shards + reducing)
            if self._is_in_pipeline:
                continue
            # gradients outside of layers are reduced at the end of the pass
            outside = self._after.gradients
            reducing = unit.reduced if self._is_sharded else 0
            shards += 0 if accumulates else unit.reduced_shard
        return int(max(found))

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
