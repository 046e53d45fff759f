"""Estimates of training steps on a mesh, derived from the parts of the model on one rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.analyses.memory_blocks import MemoryKind
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
    #: mean MACs of the model on each device
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
        overhead = stage.gap_bytes + self.model.context_bytes
        by_kind = with_activations(stage.by_kind, beyond)
        return StepEstimate(
            local_params=self.local_params(self.model.order),
            peak_bytes=peak,
            by_kind=by_kind,
            needed_bytes=peak + overhead,
            sent_bytes=self.num_microbatches * stage.sent_bytes,
            time=passes + stage.optimizer,
            waiting=self.num_microbatches * stage.waiting,
            idle=0.0,
            macs=self.macs,
        )

    def in_pipeline(self, schedule: Schedule, chunks: int) -> StepEstimate:
        """Return the step in a pipeline, with the memory of the largest rank."""
        return _PipelineStep(self, schedule, chunks).estimate()

    @property
    def computing(self) -> float:
        """Seconds in which a rank computes in all passes, without copies of parameters."""
        costs = [self.model.costs[part] for part in self.model.order]
        seconds = math.fsum(each.forward.computing + each.backward.computing for each in costs)
        return self.num_microbatches * seconds / self.layout.pp

    def min_time(self, schedule: Schedule | None, chunks: int) -> float:
        """Return a lower bound of the step's seconds, with the smallest bubble of a schedule."""
        costs = [self.model.costs[part] for part in self.model.order]
        waits = math.fsum(each.forward.waited_for + each.backward.waited_for for each in costs)
        time = self.computing + self.num_microbatches * waits / self.layout.pp
        if schedule is None or schedule == "InterleavedZeroBubble":
            return time
        return time / (1 - ideal_bubble(self.layout.pp, self.num_microbatches, chunks))

    @property
    def macs(self) -> float:
        """MACs of all parts in a step, on a rank without a pipeline."""
        costs = [self.model.costs[part] for part in self.model.order]
        name = "dense_macs" if self.flops == "dense" else "macs"
        return self.num_microbatches * math.fsum(getattr(each, name) for each in costs)

    def local_params(self, parts: Sequence[str]) -> int:
        """Return the parameters of some parts that a rank holds."""
        ranks = self.layout.shards.size
        shapes = (shape for part in parts for shape in self.model.shapes[part])
        return sum(shape.shard(ranks) for shape in shapes)


class _PipelineStep:
    """A step in a pipeline, from the costs of its stages."""

    def __init__(self, step: StepDerivation, schedule: Schedule, chunks: int) -> None:
        self._step = step
        self._schedule: Schedule = schedule
        self._num_ranks = step.layout.pp
        self._contents = step.model.stages(self._boundaries(chunks * self._num_ranks))
        self._stages = [step.stages.stage(parts, accumulates=True) for parts in self._contents]
        self._ranks = range(self._num_ranks)

    def estimate(self) -> StepEstimate:
        """Return the step, with the time of the last rank, and the memory of the largest rank."""
        number, count = self._step.num_microbatches, len(self._stages)
        times = list(map(self._times, range(count)))
        passes = passes_time(self._schedule, self._num_ranks, number, times)
        orders = rank_orders(self._schedule, self._num_ranks, number, count)
        peaks = [most_at_once(self._own(rank), orders[rank])[0] for rank in self._ranks]
        largest = peaks.index(max(peaks))
        own = self._own(largest).values()
        resident: Counter[MemoryKind] = Counter()
        for each in own:
            resident.update(each.by_kind)
        gaps = max(each.gap_bytes for each in own)

        busy = [number * self._sum("forward", "backward", rank=rank) for rank in self._ranks]
        slowest = busy.index(max(busy))
        waits = number * self._sum("waiting", rank=slowest) + self._sum("exposed", rank=slowest)
        exposed = max(self._sum("exposed", rank=rank) for rank in self._ranks)
        optimizer = max(self._sum("optimizer", rank=rank) for rank in self._ranks)
        peak = peaks[largest]
        beyond = peak - sum(resident.values())
        mean_busy = sum(busy) / self._num_ranks
        return StepEstimate(
            local_params=max(map(self.local_params, self._ranks)),
            peak_bytes=peak,
            by_kind=with_activations(resident, beyond),
            needed_bytes=peak + gaps + self._step.model.context_bytes,
            sent_bytes=max(map(self._sent, self._ranks)),
            time=passes + exposed + optimizer,
            waiting=waits,
            idle=passes - mean_busy,
            macs=self._step.macs / self._num_ranks,
        )

    def _own(self, rank: int) -> dict[int, StageCosts]:
        """Return the stages of a rank by their index."""
        return {index: self._stages[index] for index in self._indices(rank)}

    def _indices(self, rank: int) -> range:
        return range(rank, len(self._stages), self._num_ranks)

    def _sum(self, *names: str, rank: int) -> float:
        """Return the sum of some seconds of a rank's stages."""
        own = self._own(rank).values()
        return math.fsum(getattr(each, name) for each in own for name in names)

    def local_params(self, rank: int) -> int:
        """Return the parameters that a rank holds."""
        parts = [part for index in self._indices(rank) for part in self._contents[index]]
        return self._step.local_params(parts)

    def _boundaries(self, stages: int) -> list[int]:
        """Return the number of layers before each further stage."""
        model = self._step.model
        seconds = {}
        for part, costs in model.costs.items():
            passes = (costs.forward, costs.backward)
            seconds[part] = sum(each.computing + each.waited_for + each.behind for each in passes)
        layers = [seconds[part] for part in model.order[1:-1]]
        return split_evenly(layers, seconds[BEFORE], seconds[AFTER], stages)

    def _times(self, index: int) -> StageTimes:
        stage = self._stages[index]
        transfer = 0.0
        if index + 1 < len(self._stages):
            size = self._step.layout.stage_size
            sender = index % self._num_ranks * size
            receiver = (index + 1) % self._num_ranks * size
            transfer = self._step.fabric.transfer_time(sender, receiver, stage.output_bytes)
        has_zero_bubble = self._schedule == "InterleavedZeroBubble"
        weight = stage.weight_gradients if has_zero_bubble else 0.0
        return StageTimes(stage.forward, stage.backward, transfer, weight)

    def _sent(self, rank: int) -> int:
        """Return the bytes that a rank sends: results forward and gradients back."""
        sent = 0
        for index in self._indices(rank):
            stage = self._stages[index]
            passed = stage.output_bytes if index + 1 < len(self._stages) else 0
            passed += self._stages[index - 1].output_bytes if index else 0
            sent += self._step.num_microbatches * (stage.sent_bytes + passed) + stage.sent_once
        return sent


def with_activations(kinds: Mapping[MemoryKind, int], beyond: int) -> dict[MemoryKind, int]:
    """Return the bytes at the peak by kind; memory of a pass counts as activations."""
    known = {kind: size for kind, size in kinds.items() if size}
    return {**known, "activations": max(0, beyond)}
