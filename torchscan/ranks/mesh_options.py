"""The options of a search for meshes, validated before there is a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import nn

from torchscan.analyses.fsdp_times import DerivedSharding
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.model_products import FlopsConvention
from torchscan.analyses.pipeline_schedule import Schedule
from torchscan.analyses.roofline import Fabric, require_float8
from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import Device, device_named
from torchscan.precisions import Precision, name_choices, supported_precision
from torchscan.ranks.mesh_candidates import SCHEDULES, checked_layouts
from torchscan.ranks.sharding_kinds import require_overlap
from torchscan.recording.request import require_positive
from torchscan.recording.sequences import positions_of
from torchscan.recording.sharding import Apply
from torchscan.recording.training.optimizers import OptimizerChoice, require_known
from torchscan.recording.training.recipe import Checkpoint, Recipe
from torchscan.units import Tokens, tokens_of

#: precisions in which steps are compared
_PRECISIONS: tuple[Precision, ...] = ("bf16", "bf16-mixed", "fp32")


@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """The options of a search. They are explained in :func:`torchscan.parallel.search`."""

    num_gpus: int
    device: str | None
    length: Tokens
    batch_size: int
    global_batch_size: int | None
    meshes: Sequence[Mapping[str, int]] | None
    precision: Precision
    optimizer: OptimizerChoice
    checkpoint: Checkpoint | None
    accumulation_steps: int | None
    sharding: DerivedSharding | Sequence[DerivedSharding]
    sequence_parallel: bool
    async_tp: bool
    flops: FlopsConvention
    per_machine: int
    link_gbs: float | None
    network_gbs: float
    #: the other options of a step, by name
    changes: Mapping[str, Any]
    apply: Apply | None = None
    schedule: Schedule | None = None
    stages_per_rank: int | None = None

    def __post_init__(self) -> None:
        """Raise an InputError for the first option that is invalid or contradicts another."""
        counts = ("num_gpus", "batch_size", "global_batch_size", "accumulation_steps")
        for name in (*counts, "stages_per_rank"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.global_batch_size is not None and self.batch_size != 1:
            raise InputError(
                Argument("batch_size"),
                " and ",
                Argument("global_batch_size"),
                " are both given: give the sequences of each device, or of all",
            )
        if self.flops not in get_args(FlopsConvention):
            raise InputError.of_choice("flops", self.flops, get_args(FlopsConvention))
        if supported_precision(self.precision, _PRECISIONS) is None:
            raise InputError.of_value("precision", None, "give ", name_choices(_PRECISIONS))
        if self.schedule not in (None, *SCHEDULES):
            raise InputError.of_choice("schedule", self.schedule, SCHEDULES)
        tokens_of("length", self.length)
        require_known(self.optimizer)
        self._require_shardings()
        self._require_recipe()
        require_float8(self.gpu, self.recipe.float8)
        if self.async_tp:
            is_divided, is_compiled = self.sequence_parallel, self.recipe.compiled
            require_overlap(self.apply, sequence_parallel=is_divided, compiled=is_compiled)
        self.fabric  # noqa: B018 - raises if no machine has these links
        self.given_layouts  # noqa: B018 - raises if a mesh does not have these devices

    def _require_recipe(self) -> None:
        """Raise if an option of the step excludes another, or is not derived."""
        if self.accumulation_steps is not None:
            replace(self.recipe, accumulation_steps=self.accumulation_steps)
        if "parameters" in self.recipe.offloaded:
            raise InputError(
                Argument("offload"),
                " has 'parameters', which a search does not compare: give it to plan(), with a "
                "mesh",
            )

    def _require_shardings(self) -> None:
        for each in self.shardings:
            if each not in get_args(DerivedSharding):
                raise InputError.of_choice("sharding", each, get_args(DerivedSharding))
        if self.apply is not None and self.shardings != ("fsdp2",):
            raise InputError(
                Argument("sharding"),
                " and ",
                Argument("apply"),
                " are both given: leave out one of them",
            )

    @property
    def gpu(self) -> Device:
        """The device of each rank."""
        return device_named(self.device, is_timed=True)

    @property
    def fabric(self) -> Fabric:
        """The devices and their links."""
        return Fabric(
            device=self.gpu,
            per_machine=self.per_machine,
            link=None if self.link_gbs is None else 1e9 * self.link_gbs,
            network=1e9 * self.network_gbs,
            overlaps_products=self.async_tp,
        )

    @property
    def recipe(self) -> Recipe:
        """The options of a step, with one choice of checkpoint."""
        checkpoint = False if self.checkpoint is None else self.checkpoint
        return Recipe(**self.changes, checkpoint=checkpoint)

    @property
    def num_passes(self) -> int | None:
        """The number of micro batches, or None to compare several."""
        if self.accumulation_steps is None and (
            self.apply is not None or self.recipe.optimizer_in_backward
        ):
            return 1
        return self.accumulation_steps

    @property
    def shardings(self) -> tuple[DerivedSharding, ...]:
        """The kinds of sharding to compare."""
        if isinstance(self.sharding, list | tuple):
            return tuple(dict.fromkeys(self.sharding))
        one: Any = self.sharding
        return (one,)

    @property
    def pipelines(self) -> dict[str, Any]:
        """The schedules to compare, and the stages of a rank in interleaved ones, if given."""
        found: dict[str, Any] = {}
        if self.schedule is not None:
            found["schedules"] = (self.schedule,)
        if self.stages_per_rank is not None:
            found["stages_per_rank"] = (self.stages_per_rank,)
        return found

    @property
    def sequences(self) -> int:
        """The sequences of all devices in a step."""
        if self.global_batch_size is None:
            return self.batch_size * self.num_gpus
        return self.global_batch_size

    @property
    def given_layouts(self) -> list[MeshLayout] | None:
        """The meshes that were given, or None to compare all."""
        return None if self.meshes is None else checked_layouts(self.meshes, self.num_gpus)

    def length_for(self, module: nn.Module) -> int:
        """Return the tokens of a sequence. Raise if the model has fewer positions."""
        tokens = tokens_of("length", self.length)
        limit = positions_of(module)
        if limit is not None and tokens > limit:
            raise InputError(
                f"the model has {limit:,} positions, fewer than sequences of {tokens:,} tokens "
                "need: give ",
                Give("length", limit),
                " or less",
            )
        return tokens

    def checkpoints(self, *, has_layers: bool) -> tuple[Any, ...]:
        """Return the choices of checkpoint to compare."""
        if self.checkpoint is not None:
            return (self.checkpoint,)
        if self.apply is not None or not has_layers:
            return (False,)
        return (False, "selective", True)
