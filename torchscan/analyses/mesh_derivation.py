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
from typing import NamedTuple

from torchscan.analyses.fsdp_costs import DataParallel, ParameterShape, UnitBytes, unit_bytes
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
from torchscan.analyses.roofline.constants import STREAMING
from torchscan.analyses.roofline.links import Waiting
from torchscan.ops.communication import sent_bytes

#: ring attention sums gradients of keys and values in 32 bits
_WIDER_GRADIENTS = 2
#: gaps between tensors, as a share of those that a backward pass frees again; a recorded mesh has
#: those of torch's allocator
_GAPS = 0.5
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
    output_bytes: int
    #: bytes sent for each micro batch, and once in a step
    sent_bytes: int
    sent_once: int
    resident_bytes: int
    saved_bytes: int
    #: peaks beyond the resident bytes, with what the micro batch saves
    forward_bytes: int
    backward_bytes: int
    optimizer_bytes: int
    #: bytes that are reserved beyond the peak: gaps between tensors, and memory of other streams
    gap_bytes: int
    #: resident bytes, by kind
    by_kind: Mapping[MemoryKind, int]


class StageDerivation:
    """Derives the stages of a model on a mesh."""

    def __init__(self, model: LocalModel, layout: MeshLayout, fabric: Fabric, rates: Rates) -> None:
        self._model = model
        self._layout = layout
        self._fabric = fabric
        self._stream = STREAMING * rates.bandwidth * rates.streamed
        self._groups = DataParallel(fabric, layout.shards, layout.replicas)
        self._unit_by_part: dict[str, UnitBytes] = {}
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
        units = [self.unit(part) for part in parts]
        root = self._root(parts)
        layers = [
            unit for part, unit in zip(parts, units, strict=True) if part not in (BEFORE, AFTER)
        ]
        is_in_pipeline = self._layout.pp > 1
        waits = self._waits(parts, root, layers, repeats=not is_in_pipeline)
        exposed, sent_once = 0.0, 0
        sends = sum(self.sent_bytes(part) for part in parts)
        communicates = self.sends_of_units(root, layers, is_gathered_again=not is_in_pipeline)
        if is_in_pipeline:
            exposed, sent_once = self._exposed_once(waits, root, layers), communicates
        else:
            sends += communicates
        memory = _StageMemory(self._model, parts, units, root, is_in_pipeline, self._layout)
        trained = root.trained + sum(unit.trained for unit in layers)
        weight_gradients = math.fsum(self._cost(part).weight_gradients for part in parts)
        waiting = sum(each.waited_for + each.left for each in waits)
        kinds = memory.by_kind(accumulates=accumulates)
        return StageCosts(
            forward=_seconds(waits[0]),
            backward=_seconds(waits[1]),
            weight_gradients=weight_gradients,
            waiting=waiting,
            exposed=exposed,
            optimizer=self._model.optimizer.seconds * trained,
            output_bytes=self.output_bytes(parts),
            sent_bytes=sends,
            sent_once=sent_once,
            resident_bytes=sum(kinds.values()),
            saved_bytes=memory.saved_bytes,
            forward_bytes=memory.forward_bytes,
            backward_bytes=memory.backward_bytes(accumulates=accumulates),
            optimizer_bytes=memory.optimizer_bytes(accumulates=accumulates),
            gap_bytes=memory.gap_bytes(accumulates=accumulates),
            by_kind=kinds,
        )

    def output_bytes(self, parts: Sequence[str]) -> int:
        """Return the bytes that a stage passes on: those of its last layer."""
        layers = [part for part in parts if part != AFTER]
        return int(self._cost(layers[-1]).output_bytes) if layers else 0

    def _cost(self, part: str) -> PartCosts:
        return self._model.costs[part]

    def unit(self, part: str) -> UnitBytes:
        """Return the bytes of a part's parameters."""
        if part not in self._unit_by_part:
            shapes = self._model.shapes[part]
            self._unit_by_part[part] = unit_bytes(shapes, self._layout.shards.size)
        return self._unit_by_part[part]

    def _root(self, parts: Sequence[str]) -> UnitBytes:
        """Return the unit of the parameters outside of layers."""
        shapes: list[ParameterShape] = []
        for part in (BEFORE, AFTER):
            if part in parts:
                shapes += self._model.shapes[part]
        return unit_bytes(shapes, self._layout.shards.size)

    def _copied(self, size: float) -> float:
        """Return the seconds to read and write this number of bytes."""
        return size / self._stream

    def _waits(
        self, parts: Sequence[str], root: UnitBytes, layers: Sequence[UnitBytes], *, repeats: bool
    ) -> tuple[Waiting, Waiting]:
        """Return the waits of the forward and the backward pass of a micro batch.

        ``repeats``: FSDP gathers and reduces for each micro batch.
        """
        costs = [self._cost(part) for part in parts]
        forward = _sum_passes(each.forward for each in costs)
        backward = _sum_passes(each.backward for each in costs)
        exchanged = [self._exchange_times(part) for part in parts]
        forward_exchange = math.fsum(first for first, _ in exchanged)
        backward_exchange = math.fsum(second for _, second in exchanged)
        forward = forward._replace(waited_for=forward.waited_for + forward_exchange)
        backward = backward._replace(waited_for=backward.waited_for + backward_exchange)
        if not (repeats and self._layout.is_sharded):
            return forward, backward
        return self._with_fsdp(forward, backward, root, layers)

    def _with_fsdp(
        self, forward: Waiting, backward: Waiting, root: UnitBytes, layers: Sequence[UnitBytes]
    ) -> tuple[Waiting, Waiting]:
        units = [root, *layers]
        gathers = [self._groups.gather_time(unit) for unit in units]
        scatters = [self._groups.scatter_time(unit) for unit in units]
        copies = [self._groups.copy_time(unit) for unit in units]
        gathering = math.fsum(self._copied(_copied_to_gather(unit)) for unit in units)
        again = math.fsum(self._copied(_copied_to_gather(unit)) for unit in layers)
        reducing = math.fsum(self._copied(unit.gradients + unit.reduced) for unit in units)
        # the first and the last collective of a pass have no computation to run beside
        at_ends = gathers[0] + (gathers[-1] if layers else 0.0)
        forward = Waiting(
            forward.computing + gathering,
            forward.waited_for + at_ends,
            forward.behind + math.fsum(gathers) - at_ends,
        )
        last = copies[0] or scatters[0]
        at_ends = (gathers[-1] if layers else 0.0) + last
        collectives = math.fsum((*gathers[1:], *scatters, *copies))
        backward = Waiting(
            backward.computing + again + reducing,
            backward.waited_for + at_ends,
            backward.behind + max(0.0, collectives - at_ends),
        )
        return forward, backward

    def _exposed_once(
        self, waits: tuple[Waiting, Waiting], root: UnitBytes, layers: Sequence[UnitBytes]
    ) -> float:
        """Return the seconds that FSDP adds to the passes of a stage, once per step.

        Parameters stay gathered after the first forward pass, and gradients are reduced in the last
        backward pass.
        """
        if not self._layout.is_sharded:
            return 0.0
        forward, backward = self._with_fsdp(*waits, root, layers)
        again = math.fsum(self._copied(_copied_to_gather(unit)) for unit in layers)
        gathered_again = math.fsum(self._groups.gather_time(unit) for unit in layers)
        first = self._groups.gather_time(layers[-1]) if layers else 0.0
        backward = Waiting(
            backward.computing - again,
            backward.waited_for - first,
            max(0.0, backward.behind - (gathered_again - first)),
        )
        both = _seconds(forward) + _seconds(backward)
        return both - sum(map(_seconds, waits))

    def sends_of_units(
        self, root: UnitBytes, layers: Sequence[UnitBytes], *, is_gathered_again: bool
    ) -> int:
        """Return the bytes that FSDP sends for parameters and gradients."""
        gathers = sum(map(self._groups.gather_sends, layers))
        again = gathers if is_gathered_again else 0
        reductions = sum(map(self._groups.reduce_sends, (root, *layers)))
        return self._groups.gather_sends(root) + gathers + again + reductions

    def sent_bytes(self, part: str) -> int:
        """Return the bytes that a part sends for a micro batch."""
        parts, keys = self._layout.sequence_parts, int(self._cost(part).key_bytes)
        exchanged = 2 * sent_bytes("all-gather", parts.size * keys, parts.size)
        rotated = parts.size * sent_bytes("all-to-all", _WIDER_GRADIENTS * keys, parts.size)
        return int(self._cost(part).sent_bytes) + exchanged + rotated

    def _exchange_times(self, part: str) -> tuple[float, float]:
        """Return the seconds to exchange keys and values in context parallelism, in both passes.

        Keys and values are all-gathered. Their gradients go round in a ring, in 32 bits.
        """
        parts, keys = self._layout.sequence_parts, int(self._cost(part).key_bytes)
        if parts.size == 1 or not keys:
            return 0.0, 0.0
        gather = self._fabric.collective_time("all-gather", parts, parts.size * keys)
        ring = self._fabric.collective_time("all-to-all", parts, _WIDER_GRADIENTS * keys)
        return gather, gather + parts.size * ring


def _copied_to_gather(unit: UnitBytes) -> int:
    """Return the bytes of copies into the buffer of an all-gather, and out of it."""
    return unit.contributed + unit.stored + 2 * unit.gathered


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
        model: LocalModel,
        parts: Sequence[str],
        units: Sequence[UnitBytes],
        root: UnitBytes,
        is_in_pipeline: bool,
        layout: MeshLayout,
    ) -> None:
        self._model = model
        self._costs = [model.costs[part] for part in parts]
        self._parts = parts
        #: those of layers; parameters outside of layers are gathered for the complete pass
        self._units = list(units)
        for index, part in enumerate(parts):
            if part in (BEFORE, AFTER):
                self._units[index] = _NOTHING
        self._root = root
        self._stays_gathered = is_in_pipeline
        self._is_sharded = layout.is_sharded
        #: True if parameters of layers are gathered for each pass
        self._is_gathering = layout.is_sharded and not is_in_pipeline
        self._after = units[-1] if AFTER in parts else _NOTHING
        received = 0 if BEFORE in parts else self._costs[0].output_bytes
        self._saved = [float(received)]
        for each in self._costs:
            self._saved.append(self._saved[-1] + each.saved_bytes)

    @property
    def saved_bytes(self) -> int:
        """Bytes that a micro batch saves from its forward pass for its backward pass."""
        return int(self._saved[-1])

    def by_kind(self, *, accumulates: bool) -> dict[MemoryKind, int]:
        """Return the bytes that stay during the passes, by kind."""
        units = [self._root, *self._units]
        trained = sum(unit.trained for unit in units)
        kinds: dict[MemoryKind, int] = {
            "parameters": sum(unit.stored for unit in units),
            "optimizer": int(self._model.optimizer.state_bytes * trained),
            "gradients": 0,
            "gathered": 0,
        }
        if self._is_sharded:
            kinds["gathered"] = self._root.gathered
        if self._stays_gathered:
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
            previous = self._units[place - 1] if place else _NOTHING
            passes = self._saved[place] + cost.backward.peak_bytes
            gathered = self._gathered(unit) + self._gathered(previous)
            gradients = (unit.gradients if self._is_gathering else 0) + outside
            found.append(passes + gathered + gradients + shards + reducing)
            if self._stays_gathered:
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
        return int(self._model.optimizer.temporary_bytes * trained) + shards - freed

    def gap_bytes(self, *, accumulates: bool) -> int:
        """Return the bytes that are reserved beyond the peak.

        These are gaps between longer-lived tensors, and blocks that FSDP2 allocates in separate
        streams, where no other tensor can use them: buffers of all-gathers, and reduced gradients.
        """
        passing = self.backward_bytes(accumulates=accumulates) - self.saved_bytes
        gaps = int(_GAPS * max(0, passing))
        if not self._is_sharded:
            return gaps
        largest = max((unit.gathered for unit in self._units), default=0)
        buffers = max(self._root.gathered, _BUFFERED_LAYERS * largest)
        shards = sum(unit.reduced_shard for unit in (self._root, *self._units))
        return gaps + buffers + shards

    def _gathered(self, unit: UnitBytes) -> int:
        return unit.gathered if self._is_gathering else 0


_NOTHING = UnitBytes(0, 0, 0, 0, 0, 0, 0)
