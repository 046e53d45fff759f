"""``parallel.plan``: memory, computation and communication of ranks, simulated in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor, nn

from torchscan.analyses.accumulated_steps import repeat_collectives
from torchscan.analyses.collectives import collectives_of
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.plan_result import Plan, RankPlan
from torchscan.analyses.roofline import Fabric, require_float8
from torchscan.errors import Argument, InputError, RecordError
from torchscan.hardware.device_specs import can_estimate_for, device_named
from torchscan.notes import Note
from torchscan.ops.communication import group_of
from torchscan.precisions import Precision, supported_precision
from torchscan.progress import progress as told
from torchscan.question import asking
from torchscan.ranks.sharded_options import require_divided_states, require_divisible
from torchscan.ranks.sharding_kinds import Sharding, optimizer_for, sharding_plan
from torchscan.recording.arguments import RecipeArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.pretended_group import pretended, size_of
from torchscan.recording.sharding import Apply, failed_in_parts, sharded
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.quantized_linear import PREPARED, prepare_for_training
from torchscan.recording.training.recipe import (
    Recipe,
    change_model,
    recipe_arguments,
    recipe_for,
)
from torchscan.scan import Scan
from torchscan.torch_versions import is_offloaded
from torchscan.trace.trace import Trace

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: formats of autocast
_AUTOCAST: tuple[Precision, ...] = ("bf16-mixed", "fp16-mixed")

#: one rank, several ranks, or the first, the middle and the last one
Ranks = int | Sequence[int] | Literal["ends"]


@asking
def plan(
    module: Callable[[], nn.Module] | nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    mesh: Mapping[str, int],
    apply: Apply | None = None,
    sharding: Sharding | None = None,
    sequence_parallel: bool = False,
    async_tp: bool = False,
    ranks: Ranks = 0,
    device: str | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: OptimizerChoice | None = None,
    accumulate: bool = False,
    holds_output: bool = False,
    precision: Precision | None = None,
    progress: bool = True,
    **recipe: Unpack[RecipeArguments],
) -> Plan:
    """Plan a sharded model: memory, computation and communication of each rank.

    The process group is simulated in this process and removed afterwards. Tensors have no data.
    ``apply`` shards it with your training code: ``fully_shard``, ``parallelize_module`` or
    ``distribute_tensor``. Without ``apply``, a language model of transformers is sharded by the
    names of the mesh dimensions.

    Args:
        module: the model, usually on the meta device; it is left unchanged. Or a function that
            builds it, ``lambda: Net()``, which is called once for each rank, without data.
        input_shape: the shape of one sample of one rank, as for :func:`summary`.
        dtype: the type of inputs made from ``input_shape``.
        mesh: the size of each dimension by its name: ``{"dp": 128, "tp": 8}``. Neighbors in the
            last dimension are in one machine.
        apply: the function that shards the model, ``apply(model, mesh)`` with torch's
            ``DeviceMesh``, in place or by returning another model. By default, layers are sharded
            along the mesh dimensions "replicate", "dp", "cp", "ep" and "tp".
        sharding: the kind of sharding along "dp" and "cp" without ``apply``: "fsdp2", "fsdp1",
            "zero1" or "zero2".
        sequence_parallel: divide activations between matrix products along "tp" by sequence.
        async_tp: overlap collectives of ``sequence_parallel`` with matrix products, as torch's
            compiler does.
        ranks: the ranks to plan: a number, several numbers, or "ends" for the first, the middle and
            the last. Usually all ranks do the same. If parameters cannot be divided evenly, the
            first rank holds the most.
        device: the GPU of each rank, for times and for whether the rank fits; ``torchscan devices``
            lists all known GPUs.
        per_machine: the number of devices in a machine.
        network_gbs: the network bandwidth of each device, in one direction, in 10^9 bytes per
            second.
        args: the model's positional arguments on one rank, instead of ``input_shape``.
        kwargs: the model's keyword arguments.
        batch_size: samples of one rank.
        training: a training step instead of an inference.
        loss: a function of the model's output; by default, the sum of all outputs.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes an
            optimizer from a list of parameters.
        accumulate: add this batch's gradients to those of an earlier batch.
        holds_output: keep the model's output until the end of the step, although a ``loss`` is
            computed from it.
        precision: autocast: "bf16-mixed" or "fp16-mixed". None: the model as it is; for mixed
            precision of FSDP, give a ``MixedPrecisionPolicy`` in ``apply``.
        progress: show what takes more than a second, in a terminal or a notebook.
    """
    asked = RankQuestion(
        input_shape=input_shape,
        dtype=dtype,
        device=device,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        training=training,
        loss=loss,
        optimizer=optimizer_for(sharding, optimizer),
        accumulate=accumulate,
        holds_output=holds_output,
        precision=supported_precision(precision, _AUTOCAST, ", or convert the model"),
        recipe=recipe_for(training, recipe),
    )
    if apply is None:
        require_divisible(mesh, asked.recipe)
        if sharding == "zero1":
            require_divided_states(optimizer, asked.recipe)
    apply = sharding_plan(
        apply,
        sharding=sharding,
        sequence_parallel=sequence_parallel,
        async_tp=async_tp,
        compiled=asked.recipe.compiled,
        offloads="parameters" in asked.recipe.offloaded,
    )
    fabric: Fabric | None = None
    if can_estimate_for(device):
        fabric = Fabric(
            device=device_named(device),
            per_machine=per_machine,
            network=1e9 * network_gbs,
            overlaps_products=async_tp,
        )
        require_float8(fabric.device, asked.recipe.float8)
    chosen = _chosen(ranks, size_of(mesh))
    with told(f"torchscan: one of {size_of(mesh):,} ranks", is_shown=progress):
        found = [planned(module, mesh, apply, rank, asked, fabric) for rank in chosen]
    return plan_of(mesh, asked, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankQuestion:
    """The arguments of a :class:`Question` that each rank asks about its part of the model."""

    input_shape: Shapes | None = None
    dtype: DTypes | None = None
    device: str | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    batch_size: int = 1
    training: bool = False
    loss: Callable[[Any], Tensor] | None = None
    optimizer: OptimizerChoice | None = None
    accumulate: bool = False
    holds_output: bool = False
    precision: Precision | None = None
    recipe: Recipe = field(default_factory=Recipe)

    def change(self, module: nn.Module) -> None:
        """Change a copy of the model as the recipe says."""
        change_model(module, self.recipe)
        if self.recipe.weights in PREPARED and self.precision is not None:
            prepare_for_training(module)

    def scan_of(self, module: nn.Module) -> Scan:
        """Return the scan of a model that follows the recipe already."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        del given["recipe"]
        step = self.recipe.of_step
        if is_offloaded(module):  # by its user, or as the recipe says
            step = replace(step, offload="parameters")
        elif "parameters" in self.recipe.offloaded:
            raise InputError(
                Argument("offload"),
                " has 'parameters', and ",
                Argument("apply"),
                " keeps them on the device: give fully_shard() offload_policy=CPUOffloadPolicy()",
            )
        return Scan(module, **given, **recipe_arguments(step), progress=False)


def _chosen(ranks: object, size: int) -> list[int]:
    chosen: Any = ranks if isinstance(ranks, list | tuple | range) else [ranks]
    if ranks == "ends":
        chosen = [0, size // 2, size - 1]
    are_ranks = all(type(each) is int and 0 <= each < size for each in chosen)
    if not chosen or not are_ranks:
        raise InputError.of_value("ranks", ranks, f"give ranks from 0 to {size - 1}, or 'ends'")
    return list(dict.fromkeys(chosen))


def planned(
    build: Callable[[], nn.Module] | nn.Module,
    mesh: Mapping[str, int],
    apply: Apply,
    rank: int,
    asked: RankQuestion,
    fabric: Fabric | None,
    dtype: torch.dtype | None = None,
) -> RankPlan:
    """One process; ``dtype``: what a model that exists is converted to."""
    with pretended(mesh, rank) as devices:
        model = sharded(
            build, apply, devices, training=asked.training, dtype=dtype, change=asked.change
        )
        scan = asked.scan_of(model)
        try:
            with warnings.catch_warnings():
                # it is about writing to the output, which nothing does here
                warnings.filterwarnings("ignore", "FSDP2-wrapped module")
                trace, memory = scan.steps, scan.memory
        except RecordError as error:
            raise failed_in_parts(error, model, rank) from error
        place, names = _place(devices, mesh), names_in(devices, mesh)
    return rank_plan(scan, trace, memory, rank, place, names, fabric)


def rank_plan(
    scan: Scan,
    trace: Trace,
    memory: MemoryEstimate,
    rank: int,
    place: Mapping[str, int],
    names: Mapping[tuple[int, ...], str],
    fabric: Fabric | None,
) -> RankPlan:
    """Return the plan of a rank from its trace."""
    costs = call_costs(trace)
    passes = scan.question.accumulation_steps
    updates = [cost for op, cost in zip(trace.ops, costs, strict=True) if op.phase == "optimizer"]
    macs = passes * sum(each.macs for each in costs)
    flops = passes * sum(each.flops for each in costs)
    return RankPlan(
        rank=rank,
        place=place,
        local_params=sum(each.local_numel for each in held_in(trace)),
        macs=macs - (passes - 1) * sum(each.macs for each in updates),
        flops=flops - (passes - 1) * sum(each.flops for each in updates),
        collectives=repeat_collectives(collectives_of(trace, fabric, names), passes),
        memory=memory,
        roofline=None if fabric is None else scan.roofline_with(fabric),
        trace=trace,
        silent_dims=_silent(trace, names),
    )


def _place(devices: DeviceMesh, mesh: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(mesh, devices.get_coordinate() or [], strict=True))


def names_in(devices: DeviceMesh, mesh: Mapping[str, int]) -> dict[tuple[int, ...], str]:
    """Return the names of mesh dimensions by the ranks along them."""
    from torch.distributed import get_process_group_ranks

    return {
        tuple(get_process_group_ranks(devices.get_group(name))): name for name in list(mesh)[::-1]
    }


def _silent(trace: Trace, names: Mapping[tuple[int, ...], str]) -> tuple[str, ...]:
    """Return the dimensions of the mesh along which no collective runs."""
    groups = [set(group.ranks) for op in trace.ops if (group := group_of(op.signature)) is not None]
    return tuple(
        name
        for ranks, name in names.items()
        if len(ranks) > 1 and not any(map(set(ranks).issubset, groups))
    )


def held_in(trace: Trace) -> list[Any]:
    """Return the parameters, each once."""
    return [
        each
        for at, each in enumerate(trace.parameters)
        if each.identity == at and not each.is_buffer
    ]


def plan_of(mesh: Mapping[str, int], asked: RankQuestion, found: Sequence[RankPlan]) -> Plan:
    """Return the plan of several ranks. Statements about all follow from the first one's trace."""
    first = found[0]
    unknown = operators_without_formula(first.trace, call_costs(first.trace))
    warnings = [Note.of("costs-unknown", operators=list(unknown))] if unknown else []
    if asked.training:
        warnings += [Note.of("no-collective", dimension=name) for name in first.silent_dims]
    assumptions = [*first.memory.assumptions]
    if first.roofline is not None:
        assumptions += first.roofline.assumptions
        warnings += first.roofline.warnings
    # a plan shows the share of each rank itself
    assumptions = [each for each in assumptions if each.code != "rank-share"]
    return Plan(
        mesh=dict(mesh),
        device=asked.device if first.roofline is None else first.roofline.device,
        training=asked.training,
        batch_size=asked.batch_size if asked.input_shape is not None else None,
        params=sum(each.numel for each in held_in(first.trace)),
        ranks=tuple(found),
        assumptions=tuple(dict.fromkeys(assumptions)),
        warnings=tuple(dict.fromkeys(warnings)),
    )
