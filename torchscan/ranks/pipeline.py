"""``parallel.pipeline``: the stages of a model, recorded separately, and their schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn

from torchscan.analyses.memory_blocks import KINDS, MemoryKind
from torchscan.analyses.pipeline_schedule import PipelinePlan, Schedule, StagePlan, plan_of_stages
from torchscan.analyses.plan_result import RankPlan
from torchscan.analyses.roofline import Fabric, Roofline
from torchscan.errors import Argument, Give, InputError, naming
from torchscan.hardware.device_specs import device_named
from torchscan.notes import Note
from torchscan.progress import progress as told
from torchscan.ranks.plan import RankQuestion, held_in, planned, rank_plan
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.request import require_module, require_positive
from torchscan.recording.sharding import Apply
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.trace.trace import Trace
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torch import Tensor

#: schedules without separate tasks for gradients of weights
_SCHEDULES = tuple(each for each in get_args(Schedule) if each != "InterleavedZeroBubble")
#: kinds of memory that stay from step to step, or from the first microbatch on
_HELD: tuple[MemoryKind, ...] = ("parameters", "buffers", "optimizer")
_ASSUMPTIONS = (
    Note.of("stage-sends-overlap"),
    Note.of("fsdp-per-microbatch"),
    Note.of("stage-inputs-not-counted"),
)


@explain_wrong_types
def pipeline(
    stages: Iterable[nn.Module],
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    schedule: Schedule = "1F1B",
    microbatches: int,
    num_ranks: int | None = None,
    device: str | None = None,
    mesh: Mapping[str, int] | None = None,
    apply: Apply | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: OptimizerChoice | None = None,
    progress: bool = True,
) -> PipelinePlan:
    """Plan a training step in pipeline stages: what each rank holds, and how long it waits.

    Each stage is recorded once, with the outputs of the previous stage as its inputs. Its gradients
    are added to those of an earlier microbatch.

    Args:
        stages: parts of the model, in their order, usually on the meta device. They are left
            unchanged. From torch's ``pipeline(…)``, give
            ``[pipe.get_stage_module(index) for index in range(pipe.num_stages)]``.
        input_shape: the shape of one sample of the first stage, as for :func:`summary`.
        dtype: the type of inputs made from ``input_shape``.
        schedule: "GPipe": all forward passes first; "1F1B": each backward pass as early as
            possible; "Interleaved1F1B": the same, with several stages on each rank.
        microbatches: the number of microbatches in a step.
        num_ranks: the number of ranks along the pipeline; by default one for each stage. Stage
            ``s`` is on rank ``s % num_ranks``.
        device: the name of each rank's GPU, which ``torchscan devices`` lists; None: this
            machine's.
        mesh: the mesh over which each stage is sharded, as for :func:`plan`: ``{"tp": 8}``. Each
            rank of the pipeline is such a mesh.
        apply: the function that shards a stage, as for :func:`plan`.
        per_machine: the number of devices in a machine. Devices of a stage are neighbors.
        network_gbs: the network bandwidth of each device, in one direction, in 10^9 bytes per
            second.
        args: the positional arguments of the first stage for one microbatch, instead of
            ``input_shape``.
        kwargs: the keyword arguments of the first stage.
        batch_size: samples of a microbatch.
        loss: a function of the last stage's output; by default, the sum of all outputs.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes an
            optimizer from a list of parameters.
        progress: show what takes more than a second, in a terminal or a notebook.
    """
    stages = list(stages)
    if not stages:
        raise InputError("there are no stages: give the parts of a model, in their order")
    for each in stages:
        require_module(each)
    number = len(stages) if num_ranks is None else num_ranks
    _require(schedule, microbatches, number, len(stages))
    _require_both(mesh, apply)
    gpu = device_named(device, is_timed=True)
    fabric = Fabric(device=gpu, per_machine=per_machine, network=1e9 * network_gbs)
    asked = RankQuestion(
        input_shape=input_shape,
        dtype=dtype,
        device=fabric.device.name,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        training=True,
        optimizer=optimizer,
        accumulate=True,
        holds_output=True,  # torch's stages keep what they return
    )
    with told(f"torchscan: {len(stages)} stages", is_shown=progress):
        found = _recorded(
            _Pipeline(stages=stages, processes=number, mesh=mesh, apply=apply, fabric=fabric),
            asked,
            loss,
        )
    assumptions, warnings = _notes_of(found)
    return plan_of_stages(
        schedule,
        microbatches,
        found,
        number,
        fabric.device.memory_bytes,
        batch_size=batch_size if input_shape is not None else None,
        device=fabric.device.name,
        mesh=None if mesh is None else dict(mesh),
        assumptions=(*assumptions, *_ASSUMPTIONS),
        warnings=tuple(warnings),
    )


def _notes_of(stages: Iterable[StagePlan]) -> tuple[dict[Note, None], dict[Note, None]]:
    """Return the assumptions and warnings of all stages, each once."""
    assumptions: dict[Note, None] = {}
    warnings: dict[Note, None] = {}
    for stage in stages:
        roofline = stage.plan.roofline
        if roofline is not None:
            assumptions |= dict.fromkeys(roofline.assumptions)
            warnings |= dict.fromkeys(roofline.warnings)
    hidden = [note for note in assumptions if note.code == "collectives-hidden"]
    for note in hidden:
        del assumptions[note]
    return assumptions, warnings


def _require_both(mesh: Mapping[str, int] | None, apply: Apply | None) -> None:
    """Raise an InputError if there is a mesh without a function that shards, or the reverse."""
    if (mesh is None) != (apply is None):
        raise InputError(
            Argument("mesh"),
            " and ",
            Argument("apply"),
            " go together: give both, and apply(stage, mesh) shards a stage over the mesh",
        )


def _require(schedule: object, microbatches: int, num_ranks: int, stages: int) -> None:
    if schedule not in _SCHEDULES:
        raise InputError.of_choice("schedule", schedule, _SCHEDULES)
    require_positive("microbatches", microbatches)
    require_positive("num_ranks", num_ranks)
    if stages % num_ranks:
        raise InputError(
            f"{stages} stages cannot be divided among {num_ranks} ranks: give a multiple, since "
            "each rank has the same number of stages"
        )
    chunks, rounds = stages // num_ranks, max(1, microbatches // num_ranks)
    if chunks > 1 and schedule != "Interleaved1F1B":
        raise InputError(
            f"{schedule} has one stage on each rank: give ",
            Give("num_ranks", stages),
            ", or ",
            Give("schedule", "Interleaved1F1B"),
        )
    if schedule == "Interleaved1F1B" and microbatches % rounds:
        raise InputError(
            f"{microbatches} microbatches cannot be divided into {rounds} equal rounds: give a "
            f"multiple of {num_ranks}, for example"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipeline:
    """The stages and their ranks."""

    stages: Sequence[nn.Module]
    processes: int
    mesh: Mapping[str, int] | None
    apply: Apply | None
    fabric: Fabric

    @property
    def size(self) -> int:
        """Number of devices of a stage."""
        return 1 if self.mesh is None else prod(self.mesh.values())

    def transfer_time(self, stage: int, size: int) -> float:
        """Return the seconds to send tensors from a stage to the next, device by device."""
        here, there = ((each % self.processes) * self.size for each in (stage, stage + 1))
        return (
            0.0
            if here == there or stage + 1 == len(self.stages)
            else self.fabric.transfer_time(here, there, size)
        )

    def recorded(self, stage: int, asked: RankQuestion) -> RankPlan:
        """The first device of a stage."""
        module = self.stages[stage]
        if self.mesh is not None and self.apply is not None:
            return planned(module, self.mesh, self.apply, 0, asked, self.fabric)
        scan = asked.scan_of(module)
        return rank_plan(
            scan,
            scan.steps,
            scan.memory,
            0,
            {"pp": stage % self.processes},
            {},
            self.fabric,
        )


def _recorded(
    pipeline: _Pipeline, asked: RankQuestion, loss: Callable[[Any], Tensor] | None
) -> list[StagePlan]:
    found = []
    for number in range(len(pipeline.stages)):
        is_last = number == len(pipeline.stages) - 1
        with naming(f"stage {number}"):
            plan = pipeline.recorded(number, replace(asked, loss=loss) if is_last else asked)
        outputs = [] if is_last else _outputs(plan.trace, number)
        found.append(_stage(pipeline, number, plan, _bytes(outputs)))
        asked = replace(
            asked,
            input_shape=None,
            dtype=None,
            kwargs=None,
            batch_size=1,
            args=_stage_inputs(outputs, pipeline, number),
        )
    return found


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _outputs(trace: Trace, number: int) -> list[Tensor]:
    """Return the outputs of a stage, without data."""
    named = [name for name in trace.root.output_names if "'" in name]
    if named:
        keys = ", ".join(each.strip("[]") for each in named)
        raise InputError(
            f"stage {number} returns a dict of {keys}: return a tensor or a tuple of tensors, "
            "which the next stage takes"
        )
    specs = [trace.tensors[each].spec for each in trace.root.outputs]
    return [torch.empty(each.shape, dtype=each.dtype, device="meta") for each in specs]


def _stage_inputs(
    outputs: Sequence[Tensor], pipeline: _Pipeline, number: int
) -> tuple[Tensor, ...]:
    """Return the inputs of the next stage, which sends back their gradients."""
    if number + 1 == len(pipeline.stages):
        return ()
    of_next = next(iter(tensors_of(pipeline.stages[number + 1])), None)
    device = "cpu" if of_next is None or pipeline.mesh is not None else of_next.device
    return tuple(
        torch.empty_like(each, device=device).requires_grad_(each.is_floating_point())
        for each in outputs
    )


def _stage(pipeline: _Pipeline, number: int, plan: RankPlan, sent: int) -> StagePlan:
    roofline, verdict = plan.roofline, plan.memory.verdict
    assert roofline is not None and verdict is not None  # noqa: PT018, S101 - there is a device
    times, (held, kept, forward, backward, optimizer) = _times(roofline), _sizes(plan)
    return StagePlan(
        index=number,
        rank=number % pipeline.processes,
        plan=plan,
        forward=times[0],
        backward=times[1],
        optimizer=times[2],
        sent_bytes=sent,
        transfer_time=pipeline.transfer_time(number, sent),
        resident_bytes=held,
        saved_bytes=kept,
        forward_bytes=forward,
        backward_bytes=backward,
        optimizer_bytes=optimizer,
        overhead_bytes=max(0, verdict.reserved_bytes - plan.memory.peak_bytes)
        + verdict.cuda_context_bytes,
    )


def _times(roofline: Roofline) -> tuple[float, float, float]:
    """Return the seconds of the second microbatch, forward and backward, and of the optimizer.

    The gradients of the second one are added to those of the first.
    """
    phases = [
        (phase, sum(each.time_estimate for each in loads))
        for phase, loads in groupby(roofline.operators, lambda each: each.phase)
    ]
    forward, backward = (
        [time for phase, time in phases if phase == name] for name in ("forward", "backward")
    )
    return forward[-1], backward[-1], sum(time for phase, time in phases if phase == "optimizer")


def _sizes(plan: RankPlan) -> tuple[int, int, int, int, int]:
    """Return the bytes of the second microbatch: resident, saved, and the peak of each pass.

    The peaks count what is needed beyond the resident bytes. Gradients that are sent back are not
    resident, as they are in the trace of one stage. Parameters that stay all-gathered after the
    forward pass are, because other stages run meanwhile.
    """
    passes = [
        (phase, list(moments))
        for phase, moments in groupby(plan.memory.timeline, lambda each: each.phase)
    ]
    forward, backward = (
        [moments for phase, moments in passes if phase == name][-1]
        for name in ("forward", "backward")
    )
    after = [moment for phase, moments in passes if phase == "optimizer" for moment in moments]
    first, last = (
        dict(zip(KINDS, moment.bytes_by_kind, strict=True)) for moment in (forward[0], forward[-1])
    )
    sent_back = _sent_back(plan.trace, first["gradients"])
    held = sum(first[name] for name in _HELD) + first["gradients"] - sent_back + last["gathered"]
    totals = [
        [sum(each.bytes_by_kind) - held - sent_back for each in moments]
        for moments in (forward, backward, after)
    ]
    of_forward, of_backward, of_optimizer = (max(each, default=0) for each in totals)
    return held, last["inputs"] + last["activations"], of_forward, of_backward, of_optimizer


def _sent_back(trace: Trace, gradients: int) -> int:
    """Return the bytes of gradients in the trace that do not belong to parameters."""
    own: int = sum(
        each.stored_bytes for each in held_in(trace) if each.requires_grad and each.is_used
    )
    return max(0, gradients - own)
