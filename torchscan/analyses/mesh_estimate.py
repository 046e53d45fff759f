"""Derived training steps: the estimate of a step on a mesh, from the parts of the model on a rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.analyses.memory_timeline import MemoryKind
from torchscan.analyses.mesh_derivation import LocalModel, StageCosts, StageDerivation
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.mesh_parts import AFTER, BEFORE
from torchscan.analyses.model_products import FlopsConvention
from torchscan.analyses.pipeline_schedule import (
    Schedule,
    StageTimes,
    ideal_bubble,
    most_at_once,
)
from torchscan.analyses.pipeline_times import passes_time, rank_orders, split_evenly
from torchscan.analyses.roofline import Fabric


class StepEstimate(NamedTuple):
    """A training step on one device of a mesh."""

    local_params: int
    peak_bytes: int
    by_kind: Mapping[MemoryKind, int]
    needed_bytes: int
    sent_bytes: int
    #: seconds of the step; those in which it waits for links, and for other stages
    time: float
    waiting: float
    idle: float
    #: MACs of the model on each device, in the mean
    macs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDerivation:
    """A step of several micro batches on a mesh."""

    model: LocalModel
    layout: MeshLayout
    fabric: Fabric
    stages: StageDerivation
    num_microbatches: int
    flops: FlopsConvention = "dense"

    def alone(self) -> StepEstimate:
        """Return the step without a pipeline."""
        accumulates = self.num_microbatches > 1
        stage = self.stages.stage(self.model.order, accumulates=accumulates)
        passes = self.num_microbatches * (stage.forward + stage.backward)
        beyond = max(stage.forward_bytes, stage.backward_bytes, stage.optimizer_bytes)
        peak = stage.resident_bytes + beyond
        return StepEstimate(
            local_params=self._local_params(self.model.order),
            peak_bytes=peak,
            by_kind=_with_activations(stage.by_kind, beyond),
            needed_bytes=peak + stage.gap_bytes + self.model.context_bytes,
            sent_bytes=self.num_microbatches * stage.sent_bytes,
            time=passes + stage.optimizer,
            waiting=self.num_microbatches * stage.waiting,
            idle=0.0,
            macs=self._macs,
        )

    def in_pipeline(self, schedule: Schedule, chunks: int) -> StepEstimate:
        """Return the step in a pipeline, with the time and memory of the slowest and largest rank."""
        processes = self.layout.pp
        contents = self.model.stages(self._boundaries(processes * chunks))
        stages = [self.stages.stage(parts, accumulates=True) for parts in contents]
        times = [self._times(index, stages, schedule) for index in range(len(stages))]
        passes = passes_time(schedule, processes, self.num_microbatches, times)
        orders = rank_orders(schedule, processes, self.num_microbatches, len(stages))
        peaks = [
            most_at_once(dict(list(enumerate(stages))[rank::processes]), order)[0]
            for rank, order in enumerate(orders)
        ]
        largest = peaks.index(max(peaks))
        own = stages[largest::processes]
        resident = _summed(each.by_kind for each in own)
        busy = [
            self.num_microbatches
            * sum(each.forward + each.backward for each in stages[rank::processes])
            for rank in range(processes)
        ]
        slowest = busy.index(max(busy))
        return StepEstimate(
            local_params=max(
                self._local_params([part for parts in contents[rank::processes] for part in parts])
                for rank in range(processes)
            ),
            peak_bytes=peaks[largest],
            by_kind=_with_activations(resident, peaks[largest] - sum(resident.values())),
            needed_bytes=peaks[largest]
            + max(each.gap_bytes for each in own)
            + self.model.context_bytes,
            sent_bytes=max(self._sent(stages, rank) for rank in range(processes)),
            time=passes
            + max(
                sum(each.exposed for each in stages[rank::processes]) for rank in range(processes)
            )
            + max(
                sum(each.optimizer for each in stages[rank::processes]) for rank in range(processes)
            ),
            waiting=sum(
                self.num_microbatches * each.waiting + each.exposed
                for each in stages[slowest::processes]
            ),
            idle=passes - sum(busy) / processes,
            macs=self._macs / processes,
        )

    @property
    def computing(self) -> float:
        """Seconds in which a rank computes in all passes, without copies of parameters."""
        costs = [self.model.costs[part] for part in self.model.order]
        seconds = math.fsum(each.forward.computing + each.backward.computing for each in costs)
        return self.num_microbatches * seconds / self.layout.pp

    def min_time(self, schedule: Schedule | None, chunks: int) -> float:
        """Return the seconds that the step takes at least, with the smallest bubble of a schedule."""
        costs = [self.model.costs[part] for part in self.model.order]
        waits = math.fsum(each.forward.waited_for + each.backward.waited_for for each in costs)
        time = self.computing + self.num_microbatches * waits / self.layout.pp
        if schedule is None or schedule == "InterleavedZeroBubble":
            return time
        return time / (1 - ideal_bubble(self.layout.pp, self.num_microbatches, chunks))

    @property
    def _macs(self) -> float:
        """MACs of all parts in a step, on a rank without a pipeline."""
        costs = [self.model.costs[part] for part in self.model.order]
        by_convention = (each.dense_macs if self.flops == "dense" else each.macs for each in costs)
        return self.num_microbatches * math.fsum(by_convention)

    def _local_params(self, parts: Sequence[str]) -> int:
        ranks = self.layout.shards.size
        shapes = (shape for part in parts for shape in self.model.shapes[part])
        return sum(shape.shard(ranks) for shape in shapes)

    def _boundaries(self, stages: int) -> list[int]:
        """Return the number of layers before each further stage."""
        seconds = {
            part: sum(
                each.computing + each.waited_for + each.behind
                for each in (costs.forward, costs.backward)
            )
            for part, costs in self.model.costs.items()
        }
        layers = [seconds[part] for part in self.model.order[1:-1]]
        return split_evenly(layers, seconds[BEFORE], seconds[AFTER], stages)

    def _times(self, index: int, stages: Sequence[StageCosts], schedule: Schedule) -> StageTimes:
        stage = stages[index]
        transfer = 0.0
        if index + 1 < len(stages):
            size = self.layout.stage_size
            sender, receiver = (each % self.layout.pp * size for each in (index, index + 1))
            transfer = self.fabric.transfer_time(sender, receiver, stage.output_bytes)
        has_zero_bubble = schedule == "InterleavedZeroBubble"
        weight = stage.weight_gradients if has_zero_bubble else 0.0
        return StageTimes(stage.forward, stage.backward, transfer, weight)

    def _sent(self, stages: Sequence[StageCosts], rank: int) -> int:
        """Return the bytes that a rank of the pipeline sends: results forward and gradients back."""
        sent = 0
        for index in range(rank, len(stages), self.layout.pp):
            stage = stages[index]
            passed = stage.output_bytes if index + 1 < len(stages) else 0
            passed += stages[index - 1].output_bytes if index else 0
            sent += self.num_microbatches * (stage.sent_bytes + passed) + stage.sent_once
        return sent


def _summed(kinds: Iterable[Mapping[MemoryKind, int]]) -> dict[MemoryKind, int]:
    total: dict[MemoryKind, int] = {}
    for each in kinds:
        for kind, size in each.items():
            total[kind] = total.get(kind, 0) + size
    return total


def _with_activations(kinds: Mapping[MemoryKind, int], beyond: int) -> dict[MemoryKind, int]:
    """Return the bytes at the peak by kind; all that a pass takes counts as activations."""
    found = {kind: size for kind, size in kinds.items() if size}
    return {**found, "activations": max(0, beyond)}
