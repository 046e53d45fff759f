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

from torchscan.analyses.derived_memory import DerivedMemory
from torchscan.analyses.fsdp_costs import (
    DataParallel,
    ParameterShape,
    ShardedUnit,
    UnitBytes,
    flatten_shapes,
    sum_units,
    unit_bytes,
)
from torchscan.analyses.fsdp_times import DerivedSharding, FsdpTimes, seconds_of
from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.part_costs import AFTER, BEFORE, OptimizerCosts, PartCosts, PassCosts
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.analyses.roofline.constants import STREAMING
from torchscan.analyses.roofline.exposed_collectives import Waiting


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
        stages = [layers[begin:end] for begin, end in pairwise(limits)]
        stages[0] = (BEFORE, *stages[0])
        stages[-1] = (*stages[-1], AFTER)
        return stages


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
        #: True if layers are gathered again in the backward pass
        self._gathers_again = sharding != "zero2"
        self._groups = DataParallel(fabric, layout.shards, layout.replicas)
        tensor_groups = DataParallel(fabric, layout.tensor_parts, layout.replicas)
        self._fsdp = FsdpTimes(
            device=fabric.device,
            bandwidth=STREAMING * rates.bandwidth * rates.streamed,
            groups=self._groups,
            tensor_groups=tensor_groups,
            sharding=sharding,
            compiled=model.compiled,
        )
        #: groups of experts that are divided along "ep"
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
        inside = [part for part in parts if part not in (BEFORE, AFTER)]
        layers = [unit for part in inside for unit in self.units(part)]
        waits = self._waits(parts, root, layers)
        sends = sum(int(self._cost(part).sent_bytes) for part in parts)
        exposed, sent_once = 0.0, 0
        if self._layout.pp > 1:
            exposed, sent_once = self._collectives_once(waits, root, layers)
        else:
            sends += self._fsdp.sent_bytes(root, layers, is_gathered_again=self._gathers_again)
        memory = self._memory(parts, root.size)
        sizes = [unit.size for unit in (root, *layers)]
        trained = sum(size.trained for size in sizes)
        weights = math.fsum(self._cost(part).weight_gradients for part in parts)
        waiting = sum(each.waited_for + each.left for each in waits)
        kinds = memory.by_kind(accumulates=accumulates)
        backward_bytes = memory.backward_bytes(accumulates=accumulates)
        return StageCosts(
            forward=seconds_of(waits[0]),
            backward=seconds_of(waits[1]),
            weight_gradients=weights,
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

    def _collectives_once(
        self, waits: tuple[Waiting, Waiting], root: ShardedUnit, layers: Sequence[ShardedUnit]
    ) -> tuple[float, int]:
        """Return the exposed seconds and the bytes of FSDP's collectives in a pipeline."""
        sent = self._fsdp.sent_bytes(root, layers, is_gathered_again=False)
        if not self._layout.is_sharded:
            return 0.0, sent
        return self._fsdp.exposed_once(waits, root, layers), sent

    def output_bytes(self, parts: Sequence[str]) -> int:
        """Return the bytes that a stage passes on: those of its last layer."""
        layers = [part for part in parts if part != AFTER]
        return int(self._cost(layers[-1]).output_bytes) if layers else 0

    def _cost(self, part: str) -> PartCosts:
        return self._model.costs[part]

    def units(self, part: str) -> list[ShardedUnit]:
        """Return the units of a part: its parameters, and its experts if "ep" divides them."""
        if part not in self._units:
            self._units[part] = self._shard(self._model.shapes[part])
        return self._units[part]

    def _shard(self, shapes: Sequence[ParameterShape]) -> list[ShardedUnit]:
        units: list[ShardedUnit] = []
        for groups, is_expert in ((self._groups, False), (self._expert_groups, True)):
            own = [shape for shape in shapes if shape.is_expert == is_expert]
            if self._sharding == "fsdp1":
                own = flatten_shapes(own)
            if own or not is_expert:
                units.append(ShardedUnit(unit_bytes(own, groups.shards.size), groups))
        return units

    def _root(self, parts: Sequence[str]) -> ShardedUnit:
        """Return the unit of the parameters outside of layers."""
        shapes: list[ParameterShape] = []
        for part in (BEFORE, AFTER):
            if part in parts:
                shapes += self._model.shapes[part]
        root, *_ = self._shard(shapes)
        return root

    def _memory(self, parts: Sequence[str], root: UnitBytes) -> DerivedMemory:
        for part in parts:
            if part not in self._sums:
                self._sums[part] = sum_units(unit.size for unit in self.units(part))
        costs = [self._cost(part) for part in parts]
        units = [self._sums[part] for part in parts]
        return DerivedMemory(
            costs=costs,
            parts=parts,
            units=units,
            root=root,
            optimizer=self._model.optimizer,
            layout=self._layout,
            stays_gathered=self._sharding == "zero2",
        )

    def _waits(
        self, parts: Sequence[str], root: ShardedUnit, layers: Sequence[ShardedUnit]
    ) -> tuple[Waiting, Waiting]:
        """Return the waits of the forward and the backward pass of a micro batch.

        In a pipeline, FSDP gathers and reduces once, and not for each micro batch.
        """
        costs = [self._cost(part) for part in parts]
        forward = _sum_passes(each.forward for each in costs)
        backward = _sum_passes(each.backward for each in costs)
        if self._layout.pp > 1 or not self._layout.is_sharded:
            return forward, backward
        passes = (forward, backward)
        return self._fsdp.add_to(passes, root, layers, is_gathered_again=self._gathers_again)


def _sum_passes(passes: Iterable[PassCosts]) -> Waiting:
    total = Waiting(0.0, 0.0, 0.0)
    for each in passes:
        total = Waiting(
            total.computing + each.computing,
            total.waited_for + each.waited_for,
            total.behind + each.behind,
        )
    return total
