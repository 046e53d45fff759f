"""The trace of one rank, recorded on its part of a sharded model, and the plan of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchscan.analyses.accumulated_steps import repeat_collectives
from torchscan.analyses.collectives import collectives_of
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.module_costs import (
    call_costs,
    operators_without_formula,
    unknown_cost_notes,
)
from torchscan.analyses.plan_result import Plan, RankPlan
from torchscan.analyses.roofline import Fabric
from torchscan.errors import Argument, InputError, RecordError
from torchscan.notes import Note
from torchscan.ops.communication import group_of
from torchscan.precisions import Precision
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.pretended_group import pretended
from torchscan.recording.sharding import Apply, failed_in_parts, sharded
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.quantized_linear import PREPARED, prepare_for_training
from torchscan.recording.training.recipe import Recipe, change_model, recipe_arguments
from torchscan.scan import Scan
from torchscan.torch_versions import is_offloaded
from torchscan.trace.trace import Trace

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
    loop_iterations: int | None = None
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


def planned(
    build: Callable[[], nn.Module] | nn.Module,
    mesh: Mapping[str, int],
    apply: Apply,
    rank: int,
    asked: RankQuestion,
    fabric: Fabric | None,
    dtype: torch.dtype | None = None,
) -> RankPlan:
    """Return the plan of one rank; ``dtype`` is what an existing model is converted to."""
    with pretended(mesh, rank) as devices:
        model = sharded(
            build, apply, devices, training=asked.training, dtype=dtype, change=asked.change
        )
        scan = asked.scan_of(model)
        try:
            with warnings.catch_warnings():
                # The warning is about writing to the output, which nothing does here.
                warnings.filterwarnings("ignore", "FSDP2-wrapped module")
                trace, memory = scan.steps, scan.memory
        except RecordError as error:
            raise failed_in_parts(error, model, rank) from error
        place = dict(zip(mesh, devices.get_coordinate() or [], strict=True))
        names = names_in(devices, mesh)
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
    passes = scan.question.accumulation_steps
    macs = flops = 0
    for op, cost in zip(trace.ops, call_costs(trace), strict=True):
        # The optimizer runs once, all else in each pass.
        times = 1 if op.phase == "optimizer" else passes
        macs += times * cost.macs
        flops += times * cost.flops
    local_params = sum(each.local_numel for each in held_in(trace))
    return RankPlan(
        rank=rank,
        place=place,
        local_params=local_params,
        macs=macs,
        flops=flops,
        collectives=repeat_collectives(collectives_of(trace, fabric, names), passes),
        memory=memory,
        roofline=None if fabric is None else scan.roofline_with(fabric),
        trace=trace,
        silent_dims=_find_silent_dims(trace, names),
    )


def names_in(devices: DeviceMesh, mesh: Mapping[str, int]) -> dict[tuple[int, ...], str]:
    """Return the names of mesh dimensions by the ranks along them."""
    from torch.distributed import get_process_group_ranks

    name_by_ranks: dict[tuple[int, ...], str] = {}
    for name in reversed(list(mesh)):
        ranks = get_process_group_ranks(devices.get_group(name))
        name_by_ranks[tuple(ranks)] = name
    return name_by_ranks


def _find_silent_dims(trace: Trace, names: Mapping[tuple[int, ...], str]) -> tuple[str, ...]:
    """Return the dimensions of the mesh along which no collective runs."""
    groups: list[set[int]] = []
    for op in trace.ops:
        group = group_of(op.signature)
        if group is not None:
            groups.append(set(group.ranks))
    silent: list[str] = []
    for ranks, name in names.items():
        if len(ranks) > 1 and not any(map(set(ranks).issubset, groups)):
            silent.append(name)
    return tuple(silent)


def held_in(trace: Trace) -> list[Any]:
    """Return the parameters, each once."""
    slots = enumerate(trace.parameters)
    return [each for index, each in slots if each.identity == index and not each.is_buffer]


def plan_of(mesh: Mapping[str, int], asked: RankQuestion, found: Sequence[RankPlan]) -> Plan:
    """Return the plan of several ranks. Statements about all follow from the first one's trace."""
    first = found[0]
    unknown = operators_without_formula(first.trace, call_costs(first.trace))
    warnings = unknown_cost_notes(first.trace, unknown)
    if asked.training:
        warnings += [Note.of("no-collective", dimension=name) for name in first.silent_dims]
    assumptions = [*first.memory.assumptions]
    device = asked.device
    if first.roofline is not None:
        device = first.roofline.device
        assumptions += first.roofline.assumptions
        warnings += first.roofline.warnings
    # A plan shows the share of each rank itself.
    assumptions = [each for each in assumptions if each.code != "rank-share"]
    params = sum(each.numel for each in held_in(first.trace))
    return Plan(
        mesh=dict(mesh),
        device=device,
        training=asked.training,
        batch_size=asked.batch_size if asked.input_shape is not None else None,
        params=params,
        ranks=tuple(found),
        assumptions=tuple(dict.fromkeys(assumptions)),
        warnings=tuple(dict.fromkeys(warnings)),
    )
