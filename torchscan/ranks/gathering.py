"""``parallel.gather``: the plan of a running job, of which each rank records its own part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from torchscan.analyses.plan_result import Plan, RankPlan
from torchscan.analyses.roofline import Fabric
from torchscan.errors import InputError, RecordError
from torchscan.hardware.device_specs import can_estimate_for, device_named
from torchscan.notes import Note
from torchscan.ops.communication import sent_bytes
from torchscan.ranks.rank_recording import RankQuestion, names_in, plan_of, rank_plan
from torchscan.recording.example_inputs import DTypes, Shapes, example_inputs
from torchscan.recording.request import check_request, require_module
from torchscan.recording.sharding import failed_in_parts
from torchscan.recording.training.offloading import shards_on_host
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.torch_versions import (
    dimensions_of,
    is_group_pretended,
    is_wrapped_by_ddp,
    whole_mesh_of,
)
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torch import Tensor

_T = TypeVar("_T")
#: name of the only dimension if the model has no mesh, for example with ``DistributedDataParallel``
_ALL = "world"


@explain_wrong_types
def gather(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    device: str | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    loop_iterations: int | None = None,
    optimizer: OptimizerChoice | None = None,
    holds_output: bool = False,
) -> Plan:
    """Return the plan of the running process group, for the model as it is sharded now.

    Call it on every rank, like a collective. Each rank records its part on shapes alone and changes
    nothing. Rank 0 gets the plan of all ranks, the others get their own.

    Args:
        module: the model as it is trained: sharded by ``fully_shard`` or ``parallelize_module``, or
            wrapped in ``DistributedDataParallel``.
        input_shape: the shape of one sample of this rank, as for :func:`summary`.
        dtype: the type of inputs made from ``input_shape``.
        device: the GPU of each rank, for times and for whether the rank fits; ``torchscan devices``
            lists all known GPUs.
        per_machine: the number of devices in a machine.
        network_gbs: the network bandwidth of each device, in one direction, in 10^9 bytes per
            second.
        args: the model's positional arguments on this rank, instead of ``input_shape``.
        kwargs: the model's keyword arguments.
        batch_size: samples of one rank.
        training: a training step instead of an inference.
        loss: a function of the model's output; by default, the sum of all outputs.
        loop_iterations: the number of iterations of each ``torch.while_loop`` whose end depends on
            data.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes an
            optimizer from a list of parameters.
        holds_output: keep the model's output until the end of the step, although a ``loss`` is
            computed from it.
    """
    _require_group()
    asked = RankQuestion(
        input_shape=input_shape,
        dtype=dtype,
        device=device,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        training=training,
        loss=loss,
        loop_iterations=loop_iterations,
        optimizer=optimizer,
        holds_output=holds_output,
    )
    # Ranks wait for each other while they record, so arguments are checked before.
    fabric = _in_all(lambda: _checked(module, asked, per_machine, 1e9 * network_gbs))
    mesh, place, names = _mesh_of(module)
    own = _in_all(lambda: _own(module, asked, fabric, place, names))
    made = plan_of(mesh, asked, _gathered(own))
    return replace(made, warnings=(*made.warnings, *_ddp_notes(module))) if training else made


def _require_group() -> None:
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()) or is_group_pretended():
        raise InputError(
            "there is no process group: call init_process_group() first, or "
            "torchscan.parallel.plan(), which needs none"
        )


def _mesh_of(model: nn.Module) -> tuple[dict[str, int], dict[str, int], dict[tuple[int, ...], str]]:
    """Return the sizes of the mesh, the place of this rank, and the dimensions by their ranks."""
    import torch.distributed as distributed

    mesh = whole_mesh_of(model)
    if mesh is None or mesh.get_coordinate() is None or not mesh.mesh_dim_names:
        number = distributed.get_world_size()
        names = (
            {} if is_wrapped_by_ddp(model) else {tuple(range(number)): _ALL}
        )  # what DDP says is not recorded
        return {_ALL: number}, {_ALL: distributed.get_rank()}, names
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    used = {
        ranks: name for ranks, name in names_in(mesh, sizes).items() if name in dimensions_of(model)
    }
    return sizes, dict(zip(sizes, mesh.get_coordinate(), strict=True)), used


def _checked(
    model: nn.Module, asked: RankQuestion, per_machine: int, network: float
) -> Fabric | None:
    """Return the links between the devices, if there are any, after checking the arguments."""
    require_module(model)
    check_request(asked.scan_of(model).question.fused_pass())
    if asked.input_shape is not None:
        example_inputs(
            model, asked.input_shape, asked.dtype, asked.batch_size, torch.device("meta")
        )
    if not can_estimate_for(asked.device):
        return None
    return Fabric(device=device_named(asked.device), per_machine=per_machine, network=network)


def _ddp_notes(model: nn.Module) -> list[Note]:
    """Return a note of what DDP sends: at least ``2 (n − 1)/n p`` per rank, which no trace has."""
    if not is_wrapped_by_ddp(model):
        return []
    size = sum(
        each.numel() * each.element_size() for each in model.parameters() if each.requires_grad
    )
    sent = sent_bytes("all-reduce", size, torch.distributed.get_world_size())
    return [Note.of("ddp-not-counted", sent=sent)]


def _own(
    model: nn.Module,
    asked: RankQuestion,
    fabric: Fabric | None,
    place: Mapping[str, int],
    names: Mapping[tuple[int, ...], str],
) -> RankPlan:
    import torch.distributed as distributed

    scan, rank = asked.scan_of(model), distributed.get_rank()
    try:
        with shards_on_host():
            return rank_plan(scan, scan.steps, scan.memory, rank, place, names, fabric)
    except RecordError as error:
        raise failed_in_parts(error, model, rank) from error


def _in_all(work: Callable[[], _T]) -> _T:
    """Return this rank's result if all ranks have one, else raise an error on each of them.

    Otherwise, ranks with a result would wait for the other ranks forever.
    """
    import torch.distributed as distributed

    found: _T | None = None
    error: Exception | None = None
    try:
        found = work()
    except Exception as raised:
        error = raised
    failed: list[str | None] = [None] * distributed.get_world_size()
    own = None if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
    distributed.all_gather_object(failed, own)
    if error is not None:
        raise error
    others = {rank: reason for rank, reason in enumerate(failed) if reason is not None}
    if others:
        rank, reason = next(iter(others.items()))
        raise RecordError(
            f"recording failed in {len(others)} of {len(failed)} ranks: rank {rank}: {reason}"
        )
    return cast("_T", found)


def _gathered(own: RankPlan) -> list[RankPlan]:
    """Return the plans of all ranks on rank 0. The many calls of their traces are not sent."""
    import torch.distributed as distributed

    sent = replace(own, trace=replace(own.trace, modules=(), ops=(), tensors=(), storages=()))
    found: list[Any] | None = (
        [None] * distributed.get_world_size() if distributed.get_rank() == 0 else None
    )
    distributed.gather_object(sent, found)
    return [own] if found is None else [own, *found[1:]]
