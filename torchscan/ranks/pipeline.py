"""``parallel.pipeline``: the stages of a model, recorded separately, and their schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from torchscan.analyses.pipeline_result import PipelinePlan, StagePlan, plan_of_stages
from torchscan.analyses.pipeline_schedule import Schedule
from torchscan.analyses.roofline import Fabric
from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import device_named
from torchscan.notes import Note
from torchscan.ranks.rank_recording import RankQuestion
from torchscan.ranks.stage_recording import StageRecorder
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.request import require_module, require_positive
from torchscan.recording.sharding import Apply
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.terminal import progress as told
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torch import Tensor

#: schedules without separate tasks for gradients of weights
_SCHEDULES = tuple(each for each in get_args(Schedule) if each != "InterleavedZeroBubble")
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
    loop_iterations: int | None = None,
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
        loop_iterations: the number of iterations of each ``torch.while_loop`` whose end depends on
            data.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes an
            optimizer from a list of parameters.
        progress: show what takes more than a second, in a terminal or a notebook.
    """
    stages = list(stages)
    if not stages:
        raise InputError("there are no stages: give the parts of a model, in their order")
    for stage in stages:
        require_module(stage)
    number = len(stages) if num_ranks is None else num_ranks
    _require_schedule(schedule, microbatches, number, len(stages))
    _require_both(mesh, apply)
    gpu = device_named(device, is_timed=True)
    fabric = Fabric(device=gpu, per_machine=per_machine, network=1e9 * network_gbs)
    asked = RankQuestion(
        input_shape=input_shape,
        dtype=dtype,
        device=gpu.name,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        training=True,
        loop_iterations=loop_iterations,
        optimizer=optimizer,
        accumulate=True,
        holds_output=True,  # torch's stages keep what they return
    )
    recorder = StageRecorder(stages=stages, num_ranks=number, mesh=mesh, apply=apply, fabric=fabric)
    with told(f"torchscan: {len(stages)} stages", is_shown=progress):
        plans = recorder.record(asked, loss)
    assumptions, warnings = _notes_of(plans)
    sizes = None if mesh is None else dict(mesh)
    return plan_of_stages(
        schedule,
        microbatches,
        plans,
        number,
        gpu.memory_bytes,
        batch_size=None if input_shape is None else batch_size,
        device=gpu.name,
        mesh=sizes,
        assumptions=(*assumptions, *_ASSUMPTIONS),
        warnings=tuple(warnings),
    )


def _require_both(mesh: Mapping[str, int] | None, apply: Apply | None) -> None:
    """Raise an InputError if there is a mesh without a function that shards, or the reverse."""
    if (mesh is None) != (apply is None):
        raise InputError(
            Argument("mesh"),
            " and ",
            Argument("apply"),
            " go together: give both, and apply(stage, mesh) shards a stage over the mesh",
        )


def _require_schedule(schedule: object, microbatches: int, num_ranks: int, stages: int) -> None:
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
