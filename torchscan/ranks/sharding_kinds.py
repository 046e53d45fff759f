"""Kinds of sharding by name, for language models: FSDP 1 and 2, ZeRO 1 and 2, and within layers.

Dimensions of a mesh have fixed names. Tensor parallelism is along "tp", context parallelism along
"cp", and data parallelism along "dp"; along "replicate" there are copies of what is sharded (HSDP).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError
from torchscan.ranks.flat_parameters import flatten_parameters
from torchscan.recording.context_parallel import divide_context
from torchscan.recording.expert_parallel import divide_experts
from torchscan.recording.sequence_parallel import shard_sequences
from torchscan.recording.sharding import Apply, by_its_own_plan
from torchscan.recording.training.optimizers import OptimizerChoice, class_of
from torchscan.recording.training.recipe import layers_of
from torchscan.torch_versions import joined_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

#: "fsdp2": torch's ``fully_shard``; "fsdp1": the same, with one flat parameter for each layer;
#: "zero2": as "fsdp2", but parameters stay all-gathered until the backward pass is over; "zero1":
#: DDP, with sharded optimizer states
Sharding = Literal["fsdp2", "fsdp1", "zero1", "zero2"]
DIMENSIONS = ("replicate", "dp", "cp", "ep", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan:
    """The way in which a language model is sharded. It is an ``apply`` for :func:`plan`."""

    sharding: Sharding = "fsdp2"
    #: divide activations between products of tensor parallelism by sequence
    sequence_parallel: bool = False
    #: True if the host has parameters, gradients and the optimizer
    offloads: bool = False
    #: type in which parameters are all-gathered, or None for the one that they are stored in
    gathered: torch.dtype | None = None
    #: type in which gradients are reduced, or None for that of parameters
    reduced: torch.dtype | None = None

    def __call__(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Shard a model, and return it."""
        sizes = _sizes(mesh)
        if sizes.get("tp", 1) > 1:
            divide = shard_sequences if self.sequence_parallel else by_its_own_plan
            model = divide(model, mesh)
        if sizes.get("cp", 1) > 1:
            divide_context(model, mesh["cp"])
        return self.shard_data(model, mesh)

    def shard_data(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Shard a model whose layers are divided already, and return it."""
        sizes = _sizes(mesh)
        layers = layers_of(model)
        along = [name for name in ("replicate", "dp", "cp", "ep") if name in sizes]
        if sizes.get("ep", 1) > 1:
            self._divide_experts(model, mesh)
        if not along:
            return model
        if self.sharding == "zero1":
            return _replicate(model, mesh, along)
        return self._shard(model, layers, _data_mesh(mesh, along))

    def _divide_experts(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """Divide experts along "ep", and shard those of a rank along "dp"."""
        if "dp" not in (mesh.mesh_dim_names or ()) or self.sharding in ("fsdp1", "zero1"):
            raise InputError(
                Argument("mesh"),
                " has a dimension ep, whose experts FSDP2 shards along dp: give a size of dp, 1 "
                "for example, before it, and ",
                Give("sharding", "fsdp2"),
            )
        for each in divide_experts(model, mesh["ep"]):
            self._shard(each, [], mesh["dp"])

    def _shard(self, model: nn.Module, layers: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        """Shard each layer by FSDP2, and the parameters outside of layers."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=self.gathered, reduce_dtype=self.reduced)
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
        if self.offloads:
            options["offload_policy"] = CPUOffloadPolicy()
        if self.sharding == "zero2":
            options["reshard_after_forward"] = False
        for unit in (*layers, model):
            if self.sharding == "fsdp1":
                flatten_parameters(unit)
            fully_shard(unit, **options)
        return model


def sharding_plan(
    apply: Apply | None,
    *,
    sharding: Sharding | None = None,
    sequence_parallel: bool = False,
    async_tp: bool = False,
    compiled: bool = False,
    offloads: bool = False,
) -> Apply:
    """Return the function that shards a model: the user's, or a plan of these options."""
    if sharding is not None and sharding not in get_args(Sharding):
        raise InputError.of_choice("sharding", sharding, get_args(Sharding))
    if async_tp:
        require_overlap(apply, sequence_parallel=sequence_parallel, compiled=compiled)
    if apply is None:
        kind = sharding or "fsdp2"
        if offloads and kind == "zero1":
            raise InputError(
                Argument("offload"),
                " has 'parameters', which DDP keeps on the device: give ",
                Give("sharding", "fsdp2"),
            )
        return ShardingPlan(sharding=kind, sequence_parallel=sequence_parallel, offloads=offloads)
    if sharding is not None or sequence_parallel:
        name = "sequence_parallel" if sharding is None else "sharding"
        raise InputError(
            Argument(name), " and ", Argument("apply"), " are both given: leave out one of them"
        )
    return apply


def require_overlap(apply: Apply | None, *, sequence_parallel: bool, compiled: bool) -> None:
    """Raise an InputError if no collective of tensor parallelism can overlap with a product."""
    if apply is None and not sequence_parallel:
        raise InputError(
            Argument("async_tp"),
            " overlaps the collectives of sequence parallelism: give ",
            Give("sequence_parallel", True),
        )
    if not compiled:
        raise InputError(
            Argument("async_tp"),
            " is True, which only compiled steps have: give ",
            Give("compiled", True),
        )


def optimizer_for(
    sharding: Sharding | None, optimizer: OptimizerChoice | None
) -> OptimizerChoice | None:
    """Return the optimizer of a kind of sharding: ZeRO-1 divides parameters among ranks.

    Each rank updates the parameters that it owns, and broadcasts them.
    """
    if optimizer is None or sharding != "zero1":
        return optimizer
    with warnings.catch_warnings():  # its package compiles scripts, which torch warns of
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    kind = class_of(optimizer)

    def make(parameters: list[Tensor]) -> Optimizer:
        made: Optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=kind)
        return made

    return make


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    """Return the size of each dimension by its name, or raise if a name is not known."""
    names = mesh.mesh_dim_names or ()
    unknown = [name for name in names if name not in DIMENSIONS]
    if unknown:
        raise InputError(
            Argument("mesh"),
            f" has a dimension {unknown[0]}: choose from {', '.join(DIMENSIONS)}, or give ",
            Give("apply"),
        )
    return {name: mesh[name].size() for name in names}


def _replicate(model: nn.Module, mesh: DeviceMesh, along: Sequence[str]) -> nn.Module:
    """Wrap the model in DDP, which copies it on all ranks."""
    if list(along) != list(mesh.mesh_dim_names or ()) or "cp" in along:
        raise InputError(
            Argument("sharding"),
            " is 'zero1', which torch has for data parallelism alone: give ",
            Give("sharding", "fsdp2"),
        )
    return nn.parallel.DistributedDataParallel(model)


def _data_mesh(mesh: DeviceMesh, along: Sequence[str]) -> DeviceMesh:
    """Return the mesh of FSDP: ranks of context parallelism have shards of the same parameters."""
    shards = tuple(name for name in along if name != "replicate")
    if "replicate" not in along:
        joined: DeviceMesh = joined_mesh(mesh, shards)
        return joined
    if len(shards) > 1:
        raise InputError(
            Argument("mesh"),
            " has the dimensions replicate, dp and cp: leave one of them out, or give ",
            Give("apply"),
        )
    return mesh["replicate", shards[0]]
