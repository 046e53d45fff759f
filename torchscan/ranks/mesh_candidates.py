"""Training steps to compare: meshes, checkpoints, micro batches and schedules of pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchscan.analyses.mesh_layout import DIMENSIONS, MeshLayout, format_mesh
from torchscan.analyses.pipeline_schedule import Schedule
from torchscan.errors import Argument, Give, InputError

#: smallest number of tokens of a sequence on a rank for which context parallelism is compared
_MIN_TOKENS = 1024
#: stages that a rank has in interleaved schedules
_CHUNKS = (2, 4)
#: largest number of microbatches for each rank of a pipeline that is compared
_MAX_ROUNDS = 8
_INTERLEAVED: tuple[Schedule, ...] = ("Interleaved1F1B", "InterleavedZeroBubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStep:
    """A training step to estimate."""

    layout: MeshLayout
    #: choice of checkpoint
    checkpoint: Any
    #: sequences of a micro batch, which "cp" ranks share
    sequences: int
    num_microbatches: int
    schedule: Schedule | None = None
    #: stages of each rank of a pipeline
    chunks: int = 1

    @property
    def local_sequences(self) -> float:
        """Number of sequences with as many tokens as a rank has in a micro batch."""
        return self.sequences / self.layout.cp


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
    checkpoints: tuple[Any, ...]
    #: micro batches of each copy of the model, or None to compare
    accumulation_steps: int | None = None
    #: True if the user shards the model: without pipelines and context parallelism
    is_sharded_by_user: bool = False
    #: True if "tp" ranks have parts of sequences between products
    sequence_parallel: bool = False
    schedules: tuple[Schedule, ...] = ("1F1B", *_INTERLEAVED)

    def layouts(self) -> Iterator[MeshLayout]:
        """Yield the meshes that make sense.

        Tensor parallelism stays in a machine, parts of a sequence have at least 1,024 tokens, and
        copies of a sharded model fill machines.
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

    def steps(self, layout: MeshLayout) -> Iterator[MeshStep]:
        """Yield the steps on a mesh. Raise an InputError if there is none."""
        sequences = self._sequences_of_copy(layout)
        if layout.pp > self._max_stages:
            raise InputError(f"{self.num_layers} layers cannot be divided among pp {layout.pp}")
        parts = self._parts_of_sequence(layout)
        if self.length % parts:
            raise InputError(
                f"{self.length:,} tokens cannot be divided into {parts} parts: give a multiple as ",
                Argument("length"),
            )
        for checkpoint in self.checkpoints:
            for num_microbatches in self._numbers(layout, sequences):
                step = MeshStep(
                    layout=layout,
                    checkpoint=checkpoint,
                    sequences=sequences // num_microbatches,
                    num_microbatches=num_microbatches,
                )
                if layout.pp == 1:
                    yield step
                else:
                    yield from self._scheduled(step)

    def _parts_of_sequence(self, layout: MeshLayout) -> int:
        """Return the number of parts of a sequence: two per "cp" rank, each divided along "tp"."""
        parts = 2 * layout.cp if layout.cp > 1 else 1
        return parts * layout.tp if self.sequence_parallel else parts

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

    def _scheduled(self, step: MeshStep) -> Iterator[MeshStep]:
        processes = step.layout.pp
        for schedule in self.schedules:
            if schedule not in _INTERLEAVED:
                yield replace(step, schedule=schedule)
                continue
            is_divisible = step.num_microbatches % max(1, step.num_microbatches // processes) == 0
            for chunks in _CHUNKS:
                if is_divisible and chunks * processes <= self.num_layers:
                    yield replace(step, schedule=schedule, chunks=chunks)


def divisors(number: int) -> list[int]:
    """Return the divisors in ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def checked_layouts(meshes: Sequence[Mapping[str, int]], num_gpus: int) -> list[MeshLayout]:
    """Return the layouts of meshes that were given, or raise an InputError."""
    for mesh in meshes:
        unknown = [name for name in mesh if name not in DIMENSIONS]
        if "ep" in unknown:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has a dimension ep, and expert parallelism is not "
                "searched: shard experts with ",
                Argument("apply"),
                " of torchscan.parallel.plan",
            )
        if unknown:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has a dimension {unknown[0]}: choose from "
                "pp, replicate, dp, cp and tp"
            )
        size = MeshLayout.of(mesh).size
        if size != num_gpus:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has {size} devices, not {num_gpus}: give ",
                Give("num_gpus", size),
                ", or another mesh",
            )
    return [MeshLayout.of(each) for each in meshes]
