"""The arguments of a search for meshes, and the passes that it records."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchscan.analyses.few_layers import Short
from torchscan.analyses.model_products import FlopsConvention
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.errors import Argument, InputError
from torchscan.hardware.device_specs import Device
from torchscan.precisions import Precision
from torchscan.ranks.local_passes import LocalQuestion
from torchscan.ranks.mesh_candidates import MeshStep
from torchscan.ranks.mesh_options import MeshOptions
from torchscan.ranks.parameter_shapes import StorageSizes
from torchscan.ranks.rank_recording import RankQuestion, planned
from torchscan.ranks.sharding_kinds import ShardingPlan
from torchscan.ranks.short_models import LayeredModel
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.context_parallel import divide_context
from torchscan.recording.sequence_parallel import (
    dividing_loss,
    has_sequence_plan,
    shard_sequences,
)
from torchscan.recording.sharding import Apply, by_its_own_plan
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.recipe import Recipe, change_model

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: weights and gradients of mixed precision: stored in 32 bits, gathered in 16, reduced in 32
_MIXED = StorageSizes(stored=4, gathered=2, reduced=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshQuestion:
    """The arguments of a search, except for the mesh."""

    model: LayeredModel
    fabric: Fabric
    length: int
    #: of all devices
    sequences: int
    precision: Precision
    optimizer: OptimizerChoice
    recipe: Recipe
    apply: Apply | None
    flops: FlopsConvention
    #: divide activations between products of tensor parallelism by sequence, if the model can
    asks_sequence_parallel: bool

    @classmethod
    def of(cls, model: LayeredModel, options: MeshOptions) -> MeshQuestion:
        """Return the question about a model."""
        return cls(
            model=model,
            fabric=options.fabric,
            length=options.length_for(model.module),
            sequences=options.sequences,
            precision=options.precision,
            optimizer=options.optimizer,
            recipe=options.recipe,
            apply=options.apply,
            flops=options.flops,
            asks_sequence_parallel=options.sequence_parallel and options.apply is None,
        )

    @property
    def module(self) -> nn.Module:
        """The model."""
        return self.model.module

    @property
    def device(self) -> Device:
        """Each rank's device."""
        return self.fabric.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which weights are stored."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def sequence_parallel(self) -> bool:
        """True if activations between products of tensor parallelism are divided by sequence."""
        return self.asks_sequence_parallel and has_sequence_plan(self.module)

    @property
    def keeps_sequences(self) -> bool:
        """True if sequence parallelism was requested, but the model's plan does not support it."""
        return self.asks_sequence_parallel and not self.sequence_parallel

    @property
    def peak(self) -> float:
        """Operations per second of a device's products, at best."""
        return Rates(self.device).peak("fp32" if self.precision == "fp32" else "bf16")

    def local(self, checkpoints: tuple[Any, ...]) -> LocalQuestion:
        """Return the passes that are recorded on one rank, without data parallelism.

        Mixed precision is FSDP's, which gathers weights in 16 bits.
        """
        dtype, sizes = self.dtype, StorageSizes()
        if self.precision == "bf16-mixed":
            dtype, sizes = torch.bfloat16, _MIXED
        return LocalQuestion(
            model=self.model,
            fabric=self.fabric,
            dtype=dtype,
            sizes=sizes,
            step=lambda sequences: self._step(sequences, self.length, self.recipe.of_step),
            change=lambda model, layers: change_model(
                model, replace(self.recipe, checkpoint=False), layers
            ),
            divide=self._divide,
            around=self._dividing_loss,
            checkpoints=checkpoints,
            compiled=self.recipe.compiled,
        )

    def sharded_pass(self, step: MeshStep, numbers: Sequence[int]) -> Short:
        """Return a pass on a mesh, with this number of layers of each kind."""
        mesh = step.layout.mesh
        short, paths = self.model.shorten(numbers)

        def apply(model: nn.Module, devices: DeviceMesh) -> object:
            model.train()
            if self.apply is not None:
                return self.apply(model, devices)
            return self._shard(step, model, devices)

        recipe = replace(self.recipe, checkpoint=step.checkpoint)
        asked = self._step(step.sequences, self.length, recipe)
        asked = replace(asked, accumulate=step.num_microbatches > 1)
        if self.precision == "bf16-mixed":  # FSDP gathers weights in 16 bits, also among one
            mesh = {"dp": 1, **mesh} if "dp" not in mesh else mesh
        with warnings.catch_warnings(), self._dividing_loss():
            # of views, which nothing writes to here
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            rank = planned(short, mesh, apply, 0, asked, self.fabric, self.dtype)
        return Short(rank, numbers, paths, self.fabric)

    def _step(self, sequences: int, length: int, recipe: Recipe) -> RankQuestion:
        tokens = torch.zeros(sequences, length, dtype=torch.long)
        kwargs: dict[str, Any] = {"input_ids": tokens, "labels": tokens}
        if _takes(self.module, "use_cache"):
            kwargs["use_cache"] = False
        return RankQuestion(
            device=self.device.name,
            kwargs=kwargs,
            training=True,
            loss=_loss_of,
            optimizer=self.optimizer,
            recipe=recipe,
        )

    def _divide(self, model: nn.Module, devices: DeviceMesh) -> nn.Module:
        """Divide layers along "tp" and, if requested, activations between them by sequence."""
        kind = self.recipe.cross_entropy
        if kind == "liger" or (kind is not None and not self.sequence_parallel):
            raise InputError(
                Argument("cross_entropy"),
                f" is {kind!r}, and tensor parallelism has the chunked loss of divided sequences "
                "only: leave it out",
            )
        if not self.sequence_parallel:
            return by_its_own_plan(model, devices)
        return shard_sequences(model, devices, divides_logits=True)

    def _dividing_loss(self) -> AbstractContextManager[None]:
        """Return the context in which each rank computes the loss of its part of the vocabulary."""
        return dividing_loss() if self.sequence_parallel else nullcontext()

    def _shard(self, step: MeshStep, model: nn.Module, devices: DeviceMesh) -> nn.Module:
        """Shard by tensor parallelism, then by FSDP: layers, and parameters outside of layers."""
        names = devices.mesh_dim_names or ()
        if "tp" in names:
            self._divide(model, devices)
        if "cp" in names:
            divide_context(model, devices["cp"])
        gathered, reduced = None, None
        if self.precision == "bf16-mixed":
            gathered, reduced = torch.bfloat16, torch.float32
        plan = ShardingPlan(sharding=step.sharding, gathered=gathered, reduced=reduced)
        return plan.shard_data(model, devices)


def _loss_of(output: Any) -> Any:
    return output["loss"]


def require_tokens(module: nn.Module) -> None:
    """Raise an InputError unless the model is a language model."""
    missing = [name for name in ("input_ids", "labels") if not _takes(module, name)]
    if missing:
        raise InputError(
            f"{type_name_of(module)} does not take {' and '.join(missing)}: give a language "
            "model; torchscan.parallel.plan shards models of any kind"
        )


def _takes(module: nn.Module, name: str) -> bool:
    """Return whether ``forward`` takes an argument with this name."""
    taken = inspect.signature(module.forward).parameters
    return name in taken or any(each.kind is each.VAR_KEYWORD for each in taken.values())
