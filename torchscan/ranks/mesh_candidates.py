"""Training steps to compare: meshes, checkpoints, micro batches and schedules of pipelines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchscan.analyses.fsdp_times import DerivedSharding
from torchscan.analyses.mesh_layout import DIMENSIONS, MeshLayout, format_mesh
from torchscan.analyses.pipeline_schedule import Schedule
from torchscan.errors import Argument, Give, InputError

#: smallest number of tokens of a sequence on a rank for which context parallelism is compared
_MIN_TOKENS = 1024
#: largest number of microbatches for each rank of a pipeline that is compared
_MAX_ROUNDS = 8
_INTERLEAVED: tuple[Schedule, ...] = ("Interleaved1F1B", "InterleavedZeroBubble")
#: those that compute gradients of parameters apart: autograd runs once for each parameter, and
#: each run computes what a checkpoint left out again
_WITHOUT_CHECKPOINTS: tuple[Schedule, ...] = ("InterleavedZeroBubble",)
#: schedules of pipelines that can be derived
SCHEDULES: tuple[Schedule, ...] = ("1F1B", *_INTERLEAVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStep:
    """A training step to estimate."""

    layout: MeshLayout
    #: choice of checkpoint
    checkpoint: Any
    #: sequences of a micro batch, which "cp" ranks share
    sequences: int
    num_microbatches: int
    sharding: DerivedSharding = "fsdp2"
    schedule: Schedule | None = None
    #: stages of each rank of a pipeline
    chunks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuestion:
    """The options that limit which steps are compared."""

    num_gpus: int
    per_machine: int
    #: tokens of a sequence
    length: int
    #: sequences of all GPUs in a step
    sequences: int
    num_layers: int
    #: experts of each layer that can be divided, or 0
    num_experts: int
    checkpoints: tuple[Any, ...]
    shardings: tuple[DerivedSharding, ...]
    #: micro batches of each copy of the model, or None to compare
    accumulation_steps: int | None = None
    #: True if the user shards the model: without pipelines and context parallelism
    is_sharded_by_user: bool = False
    #: True if "tp" ranks have parts of sequences between products
    sequence_parallel: bool = False
    schedules: tuple[Schedule, ...] = SCHEDULES
    #: stages that a rank has in interleaved schedules
    stages_per_rank: tuple[int, ...] = (2, 4)

    def layouts(self) -> Iterator[MeshLayout]:
        """Yield the meshes that make sense.

        Tensor and expert parallelism stay in a machine, parts of a sequence have at least 1,024
        tokens, and copies of a sharded model fill machines.
        """
        for tp in divisors(self.num_gpus):
            if tp > self.per_machine:
                break
            for pp in divisors(self.num_gpus // tp):
                if pp > self._max_stages:
                    break
                for cp in divisors(self.num_gpus // tp // pp):
                    if cp > 1 and (self.is_sharded_by_user or self.length // cp < _MIN_TOKENS):
                        break
                    yield from self._data_parallel(MeshLayout(pp=pp, cp=cp, tp=tp))
                if tp == 1 and self.num_experts and not self.is_sharded_by_user:
                    yield from self._expert_parallel(self.num_gpus // pp, pp)

    @property
    def _max_stages(self) -> int:
        return 1 if self.is_sharded_by_user else max(1, self.num_layers)

    def _data_parallel(self, inner: MeshLayout) -> Iterator[MeshLayout]:
        rest = self.num_gpus // inner.size
        for copies in divisors(rest):
            layout = replace(inner, replicate=copies, dp=rest // copies)
            fills_machines = rest // copies * inner.cp * inner.tp >= self.per_machine
            if copies == 1 or fills_machines:
                yield layout

    def _expert_parallel(self, ranks: int, pp: int) -> Iterator[MeshLayout]:
        for ep in divisors(math.gcd(ranks, self.num_experts)):
            if 1 < ep <= self.per_machine:
                yield MeshLayout(pp=pp, dp=ranks // ep, ep=ep)

    def steps(self, layout: MeshLayout) -> Iterator[MeshStep]:
        """Yield the steps on a mesh. Raise an InputError if there is none."""
        sequences = self._sequences_of_copy(layout)
        if layout.pp > self._max_stages:
            raise InputError(f"{self.num_layers} layers cannot be divided among pp {layout.pp}")
        # Two parts for each "cp" rank, each divided along "tp".
        parts = 2 * layout.cp if layout.cp > 1 else 1
        if self.sequence_parallel:
            parts *= layout.tp
        if self.length % parts:
            raise InputError(
                f"{self.length:,} tokens cannot be divided into {parts} parts: give a multiple as ",
                Argument("length"),
            )
        numbers = self._numbers(layout, sequences)
        if layout.pp > 1:
            self._require_schedule(layout, numbers)
        choices = itertools.product(self.checkpoints, self._shardings(layout), numbers)
        for checkpoint, sharding, num_microbatches in choices:
            step = MeshStep(
                layout=layout,
                checkpoint=checkpoint,
                sequences=sequences // num_microbatches,
                num_microbatches=num_microbatches,
                sharding=sharding,
            )
            if layout.pp == 1:
                yield step
                continue
            for schedule, stages in self._stages_for(layout, num_microbatches, checkpoint):
                yield replace(step, schedule=schedule, chunks=stages)

    def _shardings(self, layout: MeshLayout) -> tuple[DerivedSharding, ...]:
        """Return the kinds of sharding that differ on a mesh, or raise if there is none."""
        if layout.ep > 1 and self.num_experts % layout.ep:
            raise InputError(
                f"{self.num_experts} experts cannot be divided among ep {layout.ep}: choose an ep "
                "that divides them"
            )
        if not layout.is_sharded:
            return self.shardings[:1]
        found = [each for each in self.shardings if layout.ep == 1 or each != "fsdp1"]
        if not found:
            raise InputError(
                Argument("sharding"),
                " is 'fsdp1', whose flat parameters cannot be divided along ep: give ",
                Give("sharding", "fsdp2"),
            )
        # parameters stay gathered in a pipeline anyway
        if layout.pp > 1 and "fsdp2" in found:
            found = [each for each in found if each != "zero2"]
        return tuple(found)

    def _sequences_of_copy(self, layout: MeshLayout) -> int:
        """Return the sequences of one copy of the model."""
        if self.sequences % layout.copies:
            raise InputError(
                f"{self.sequences:,} sequences cannot be divided among {layout.copies:,} copies of "
                "the model: give a multiple as ",
                Argument("global_batch_size"),
            )
        return self.sequences // layout.copies

    def _numbers(self, layout: MeshLayout, sequences: int) -> list[int]:
        """Return the numbers of micro batches to compare."""
        given = self.accumulation_steps
        if given is not None:
            if sequences % given:
                raise InputError(
                    f"{sequences:,} sequences of a copy cannot be divided into {given} micro "
                    "batches: give a divisor as ",
                    Argument("accumulation_steps"),
                )
            return [given]
        numbers = divisors(sequences)
        if layout.pp == 1:
            return numbers
        most = _MAX_ROUNDS * layout.pp
        return [each for each in numbers if layout.pp <= each <= most] or numbers[-1:]

    def _require_schedule(self, layout: MeshLayout, numbers: Sequence[int]) -> None:
        """Raise an InputError if a pipeline can follow no schedule."""
        if any(self._stages_for(layout, each, False) for each in numbers):
            if self.schedules != _WITHOUT_CHECKPOINTS or False in self.checkpoints:
                return
            raise InputError(
                Argument("schedule"),
                f" is {self.schedules[0]!r}, in which torch computes a checkpointed layer again "
                "for each of its parameters: give ",
                Give("checkpoint", False),
            )
        raise InputError(
            Argument("schedule"),
            f" is {self.schedules[0]!r}, for which pp {layout.pp} has too few layers or an "
            "unsuitable number of micro batches: give a multiple of it as ",
            Argument("accumulation_steps"),
        )

    def _stages_for(
        self, layout: MeshLayout, num_microbatches: int, checkpoint: Any
    ) -> list[tuple[Schedule, int]]:
        """Return the schedules that are possible, with the stages of each rank."""
        rounds = max(1, num_microbatches // layout.pp)
        found: list[tuple[Schedule, int]] = []
        for schedule in self.schedules:
            if schedule in _WITHOUT_CHECKPOINTS and checkpoint is not False:
                continue
            if schedule not in _INTERLEAVED:
                found.append((schedule, 1))
            elif num_microbatches % rounds == 0:
                stages = (
                    each for each in self.stages_per_rank if each * layout.pp <= self.num_layers
                )
                found += [(schedule, each) for each in stages]
        return found


def divisors(number: int) -> list[int]:
    """Return the divisors in ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def checked_layouts(meshes: Sequence[Mapping[str, int]], num_gpus: int) -> list[MeshLayout]:
    """Return the layouts of meshes that were given, or raise an InputError."""
    for mesh in meshes:
        unknown = [name for name in mesh if name not in DIMENSIONS]
        if unknown:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has a dimension {unknown[0]}: choose from "
                "pp, replicate, dp, cp, ep and tp"
            )
        others = [name for name in ("replicate", "cp", "tp") if mesh.get(name, 1) > 1]
        if mesh.get("ep", 1) > 1 and others:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has the dimensions ep and {others[0]}: give ep "
                "beside dp and pp alone"
            )
        size = MeshLayout.of(mesh).size
        if size != num_gpus:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has {size} devices, not {num_gpus}: give ",
                Give("num_gpus", size),
                ", or another mesh",
            )
    return [MeshLayout.of(each) for each in meshes]
