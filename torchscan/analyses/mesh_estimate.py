"""Estimates of training steps on a mesh, derived from the parts of the model on one rank."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, Protocol

from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.mesh_derivation import LocalModel, StageDerivation
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.model_products import FlopsConvention
from torchscan.analyses.part_costs import AFTER, BEFORE
from torchscan.analyses.pipeline_moments import peak_of, rank_moments
from torchscan.analyses.pipeline_schedule import Schedule, StageTimes, ideal_bubble
from torchscan.analyses.pipeline_times import passes_time, split_evenly
from torchscan.analyses.roofline import Fabric

#: the same layers are divided for several schedules
_split = lru_cache(maxsize=512)(split_evenly)


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

    def with_schedule(self, schedule: Schedule | None, chunks: int) -> DerivedStep:
        """Return the step in a pipeline, or without one if there is no schedule."""
        if schedule is None:
            return _StepAlone(self)
        return _PipelineStep(self, schedule, chunks)

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


class DerivedStep(Protocol):
    """A step whose memory is derived first: the time of one that does not fit is not needed."""

    @property
    def needed_bytes(self) -> int:
        """Bytes that torch's allocator reserves, with the context."""

    @property
    def min_time(self) -> float:
        """Seconds that the step takes at least."""

    def estimate(self) -> StepEstimate:
        """Return the complete estimate."""


class _StepAlone:
    """A step without a pipeline."""

    def __init__(self, step: StepDerivation) -> None:
        self._step = step
        accumulates = step.num_microbatches > 1
        self._stage = step.stages.stage(step.model.order, accumulates=accumulates)

    @property
    def _beyond(self) -> int:
        stage = self._stage
        return max(stage.forward_bytes, stage.backward_bytes, stage.optimizer_bytes)

    @property
    def needed_bytes(self) -> int:
        """Bytes that torch's allocator reserves, with the context."""
        overhead = self._stage.gap_bytes + self._step.model.context_bytes
        return self._stage.resident_bytes + self._beyond + overhead

    @property
    def min_time(self) -> float:
        """Seconds of the step."""
        passes = self._step.num_microbatches * (self._stage.forward + self._stage.backward)
        return passes + self._stage.optimizer

    def estimate(self) -> StepEstimate:
        """Return the complete estimate."""
        step, stage = self._step, self._stage
        return StepEstimate(
            local_params=stage.local_params,
            peak_bytes=stage.resident_bytes + self._beyond,
            by_kind=with_activations(stage.by_kind, self._beyond),
            needed_bytes=self.needed_bytes,
            sent_bytes=step.num_microbatches * stage.sent_bytes,
            time=self.min_time,
            waiting=step.num_microbatches * stage.waiting,
            idle=0.0,
            macs=step.macs,
        )


class _PipelineStep:
    """A step in a pipeline, from the costs of its stages, with the memory of the largest rank."""

    def __init__(self, step: StepDerivation, schedule: Schedule, chunks: int) -> None:
        self._step = step
        self._schedule: Schedule = schedule
        self._num_ranks = step.layout.pp
        contents = step.model.stages(self._boundaries(chunks * self._num_ranks))
        stages = [step.stages.stage(parts, accumulates=True) for parts in contents]
        # most stages are equal, and then they are the same object
        distinct = {id(each): each for each in stages}
        number = step.num_microbatches
        buffered = {key: each.with_buffers(number) for key, each in distinct.items()}
        self._stages = [buffered[id(each)] for each in stages]
        self._own = [self._stages[rank :: self._num_ranks] for rank in range(self._num_ranks)]
        moments = rank_moments(schedule, self._num_ranks, number, len(self._stages))
        peaks = list(map(peak_of, self._own, moments))
        self._peak = max(peaks)
        self._largest = self._own[peaks.index(self._peak)]

    @property
    def needed_bytes(self) -> int:
        """Bytes that torch's allocator reserves, with the context."""
        gaps = max(each.gap_bytes for each in self._largest)
        return self._peak + gaps + self._step.model.context_bytes

    @property
    def min_time(self) -> float:
        """Seconds of the rank that computes longest, if it never waits for others."""
        return max(self._busy()) + self._once()

    def _sums(self, name: str) -> list[float]:
        """Return the sum of a value over the stages of each rank."""
        return [math.fsum(map(attrgetter(name), own)) for own in self._own]

    def _busy(self) -> list[float]:
        """Return the seconds of the passes of each rank."""
        passes = map(operator.add, self._sums("forward"), self._sums("backward"))
        return [self._step.num_microbatches * seconds for seconds in passes]

    def _once(self) -> float:
        """Return the seconds once in a step, after all passes."""
        return max(self._sums("exposed")) + max(self._sums("optimizer"))

    def estimate(self) -> StepEstimate:
        """Return the complete estimate. Its time is that of the last rank."""
        number, step = self._step.num_microbatches, self._step
        times = list(map(self._times, range(len(self._stages))))
        passes = passes_time(self._schedule, self._num_ranks, number, times)
        resident: Counter[MemoryKind] = Counter()
        for each in self._largest:
            resident.update(each.by_kind)
        busy = self._busy()
        slowest = self._own[busy.index(max(busy))]
        waits = number * math.fsum(each.waiting for each in slowest)
        waits += math.fsum(each.exposed for each in slowest)
        return StepEstimate(
            local_params=int(max(self._sums("local_params"))),
            peak_bytes=self._peak,
            by_kind=with_activations(resident, self._peak - sum(resident.values())),
            needed_bytes=self.needed_bytes,
            sent_bytes=max(map(self._sent, range(self._num_ranks))),
            time=passes + self._once(),
            waiting=waits,
            idle=passes - sum(busy) / self._num_ranks,
            macs=step.macs / self._num_ranks,
        )

    def _boundaries(self, stages: int) -> Sequence[int]:
        """Return the number of layers before each further stage."""
        model = self._step.model
        seconds = {}
        for part, costs in model.costs.items():
            passes = (costs.forward, costs.backward)
            seconds[part] = sum(each.computing + each.waited_for + each.behind for each in passes)
        layers = tuple(seconds[part] for part in model.order[1:-1])
        return _split(layers, seconds[BEFORE], seconds[AFTER], stages)

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
        for index in range(rank, len(self._stages), self._num_ranks):
            stage = self._stages[index]
            passed = stage.output_bytes if index + 1 < len(self._stages) else 0
            passed += self._stages[index - 1].output_bytes if index else 0
            sent += self._step.num_microbatches * (stage.sent_bytes + passed) + stage.sent_once
        return sent


def with_activations(kinds: Mapping[MemoryKind, int], beyond: int) -> dict[MemoryKind, int]:
    """Return the bytes at the peak by kind; memory of a pass counts as activations."""
    known = {kind: size for kind, size in kinds.items() if size}
    return {**known, "activations": max(0, beyond)}
